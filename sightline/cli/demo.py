"""`sightline demo`: train, measure and look at every family on built-in data, and one page that comes out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

import sightline as sl
from sightline.cli.shell import show, verb


@verb
@click.option("--data", default="scenes/count", show_default=True, help="Scenes, or a dataset such as cifar10.")
@click.option("--minutes", default=10.0, show_default=True, help="About how long, on two cores.")
@click.option("--out", default="demo", show_default=True, type=click.Path(file_okay=False), help="Where files go.")
@click.option("--seed", default=0, show_default=True, help="Seed of models, data and draws.")
def demo(data: str, minutes: float, out: str, seed: int, as_json: bool) -> None:
    """Train a ViT, its GAP twin, a BiT and a hybrid; measure them, look into them, and write one page about it.

    Interrupted, it goes on where it was; a second time, everything is there already.
    """
    begun = time.monotonic()
    plan = sl.studies.Demo(out=out, data=data, minutes=minutes, seed=seed)

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - begun:4.0f} s] {text}", err=True)

    steps = list(plan.run(say))
    results = [path for step in steps for path in step.results]
    title = f"Four small models on {data}: a demo of {minutes:g} minutes, one seed"
    page = plan.path / "report" / "report.html"
    if not page.exists() or page.stat().st_mtime < max(path.stat().st_mtime for path in results):
        say(f"writing the page about {len(results)} results")
        page = sl.write_report(unique(results, plan.path), plan.path / "report", title)
    rows = [step.row for step in steps if step.row is not None]
    verdicts = sl.verdicts([sl.Result.load(path) for path in results])
    told = [verdict(v) for v in verdicts]
    if as_json:
        show({"models": rows, "verdicts": told, "page": str(page), "seconds": time.monotonic() - begun}, True)
        return
    show(rows, False, title=f"What came out (seed {seed}, {plan.steps} steps of each model)")
    show(told, False, title="The papers' claims, on these models; a demo of minutes decides few")
    click.echo(f"The page: {page}")


def unique(paths: list[Path], root: Path) -> dict[str, Any]:
    """Results by where they stand in the demo's folder: four models have an accuracy each."""
    return {str(path.relative_to(root).with_suffix("")): sl.Result.load(path) for path in paths}


def verdict(v: sl.studies.Verdict) -> dict[str, Any]:
    """One line; the page has the whole of it."""
    effect = min(v.effects, key=lambda e: ("does not hold", "undecided", "holds").index(e.state)) if v.effects else None
    found = "" if effect is None else f"{effect.value:.2g} [{effect.low:.2g}, {effect.high:.2g}]"
    return {"claim": v.claim, "models": ", ".join(v.models), "verdict": v.state, "effect": found, "paper": v.statement}
