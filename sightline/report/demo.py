"""The demo with its page: train, measure and analyze small models of every family, and test the papers' claims."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sightline.report.write import write_report
from sightline.spec import Result
from sightline.studies.claims import verdicts
from sightline.studies.demo import Demo
from sightline.studies.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class DemoReport:
    """The result of a demo.

    >>> sl.report.DemoReport(models=(), verdicts=(), page="demo/report/report.html", steps=500, seconds=600.0).page
    'demo/report/report.html'
    """

    models: tuple[dict[str, Any], ...]  # size, cost and accuracy of each model
    verdicts: tuple[Verdict, ...]
    page: str
    steps: int  # optimizer steps of each model
    seconds: float


def run_demo(plan: Demo | None = None, *, say: Callable[[str], None] = print) -> DemoReport:
    """Run a demo and write its page. Finished steps of an earlier call are reused; `say` gets progress messages.

    The models are trained in processes of their own: in a script, call it under `if __name__ == "__main__":`.

    >>> sl.report.run_demo(sl.studies.Demo(minutes=0))
    Traceback (most recent call last):
        ...
    ValueError: ...
    """
    plan = plan or Demo()
    start = time.monotonic()
    steps = list(plan.run(say))
    paths = [path for step in steps for path in step.results]
    # named by their path in the demo's folder: each of the four models has an accuracy
    results = {str(path.relative_to(plan.path).with_suffix("")): Result.load(path) for path in paths}
    page = plan.path / "report" / "report.html"
    if not page.exists() or page.stat().st_mtime < max(path.stat().st_mtime for path in paths):
        say(f"writing the page about {len(results)} results")
        title = f"Four small models on {plan.data}: a demo of {plan.minutes:g} minutes, one seed"
        page = write_report(results, page.parent, title)
    return DemoReport(
        models=tuple(step.row for step in steps if step.row is not None),
        verdicts=tuple(verdicts(list(results.values()))),
        page=str(page),
        steps=plan.steps,
        seconds=time.monotonic() - start,
    )
