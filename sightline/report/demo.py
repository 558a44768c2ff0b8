"""The demo with its page: train, measure and analyze small models of every family, and test the papers' claims."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.analysis.inspection import look
from sightline.data.datasets import Dataset
from sightline.data.named.store import is_prepared
from sightline.data.source import dataset
from sightline.evals.accuracy import evaluate
from sightline.observe.identity import identify
from sightline.report.write import write_report
from sightline.spec import Result, from_json
from sightline.studies.claims import verdicts
from sightline.studies.demo import Demo, load_or_compute
from sightline.studies.verdict import Verdict
from sightline.untrusted import read_text
from sightline.weights.loading import load
from sightline.weights.published import shipped

SHOWN, TESTED = 16, 2000  # images that the shipped models are looked at with, and tested on
TITLE = "What the models that come with Sightline see"


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


def named_results(paths: Sequence[Path], plan: Demo) -> dict[str, Result]:
    """Results by their path in the demo's folder: each of the models has an accuracy."""
    return {str(path.relative_to(plan.path).with_suffix("")): Result.load(path) for path in paths}


def look_at_shipped(plan: Demo, say: Callable[[str], None], n: int = SHOWN) -> list[Path]:
    """What `look --quick` finds in the models that come with the package, on images of their own kind if these are
    here, or else on scenes: something to see before anything is trained."""
    found: list[Path] = []
    for name in shipped():
        say(f"{name}, from the package: what it sees in {n} images")
        place = plan.path / "shipped" / name
        rows = look(load(name), images_for(name), place, n=n, seed=plan.seed, only="quick", name=name)
        found += [place / row.path for row in rows if row.path]
        found += measure_shipped(name, place, say)
    return found


def measure_shipped(name: str, place: Path, say: Callable[[str], None]) -> list[Path]:
    """The accuracy of a shipped model, where the test images of its data are here; on some of them, in seconds."""
    if not is_prepared(trained_on(name)):
        return []
    say(f"{name}: accuracy on {TESTED:,} test images")
    model, images = load(name), dataset(trained_on(name), split="test").sample(TESTED, seed=0)
    load_or_compute(
        place / "accuracy.npz", lambda: evaluate(model, images), identify(model, name=name), images.fingerprint()
    )
    return [place / "accuracy.npz"]


def images_for(name: str) -> Dataset:
    """Test images of the data that a shipped model was trained on; scenes where they are not on this machine."""
    data = trained_on(name)
    return dataset(data, split="test") if is_prepared(data) else dataset("scenes/objects", split="test", num=256)


def trained_on(name: str) -> str:
    """The dataset in the name of a shipped model."""
    return name.partition(".")[2].partition("-")[0]


def has_all(page: Path, paths: Sequence[Path]) -> bool:
    """Whether a page is there that was written after these results, and is about as many or more: the first page, about
    some of them, must not replace the last."""
    told = page.with_name("results.json")
    if not (page.exists() and told.exists()):
        return False
    rows = from_json(read_text(told))["results"]
    return len(rows) >= len(paths) and page.stat().st_mtime >= max(path.stat().st_mtime for path in paths)


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
    plan.prepare()
    ready = look_at_shipped(plan, say) if plan.minutes >= 1 else []  # a demo of seconds only trains
    page = plan.path / "report" / "report.html"
    if ready and not has_all(page, ready):
        write_report(named_results(ready, plan), page.parent, TITLE)
        say(f"a first page, about trained models: {page}")
    steps = list(plan.run(say))
    paths = [*ready, *(path for step in steps for path in step.results)]
    results = named_results(paths, plan)
    if not has_all(page, paths):
        say(f"writing the page about {len(results)} results")
        trained = f"{len(plan.models)} trained from scratch on {plan.data} in minutes"
        title = f"What {len(shipped())} trained models see, and {trained}" if ready else f"What models see: {trained}"
        page = write_report(results, page.parent, title)
    return DemoReport(
        models=tuple(step.row for step in steps if step.row is not None),
        verdicts=tuple(verdicts(list(results.values()))),
        page=str(page),
        steps=plan.steps,
        seconds=time.monotonic() - start,
    )
