"""`sightline demo`: train, measure and analyze every family on built-in data, and write one page."""

from __future__ import annotations

import math
import time
from typing import Any

import click

import sightline as sl
from sightline.cli.options import FOLDER, Words
from sightline.cli.shell import show, verb


@verb
@click.option("--data", default="scenes/count", show_default=True, help="Scenes, or a dataset such as cifar10.")
@click.option("--minutes", default=10.0, show_default=True, help="About how long it takes on two cores.")
@click.option("--out", default="demo", show_default=True, type=FOLDER, help="Folder for everything it writes.")
@click.option("--seed", default=0, show_default=True, help="Seed of models, data and draws.")
@click.option("--models", type=Words(), default="ViT,ViT-GAP,BiT,hybrid", show_default=True, help="Which to train.")
def demo(data: str, minutes: float, out: str, seed: int, models: tuple[str, ...], as_json: bool) -> None:
    """Train small models of every family, measure and analyze them, and write one page.

    The models are a ViT, the same with global average pooling, a BiT and a hybrid. Run it again to resume after an
    interruption; a finished demo only prints its results.

    Example: sightline demo --minutes 2
    """
    start = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - start:4.0f} s] {text}", err=True)

    report = sl.report.run_demo(sl.studies.Demo(out=out, data=data, minutes=minutes, seed=seed, models=models), say=say)
    verdicts = [verdict_row(v) for v in report.verdicts]
    if as_json:
        show({"models": report.models, "verdicts": verdicts, "page": report.page, "seconds": report.seconds}, True)
        return
    show(list(report.models), False, title=f"Models (seed {seed}, {report.steps} steps each)")
    short = [{k: v for k, v in row.items() if k != "paper"} for row in verdicts]  # a line each; the page has the rest
    show(short, False, title="The papers' claims on these models; few can be decided after minutes of training")
    click.echo(f"Page: {report.page}")


def verdict_row(v: sl.studies.Verdict) -> dict[str, Any]:
    """A verdict with its decisive effect; the page shows all effects."""
    effect = min(v.effects, key=lambda e: ("does not hold", "undecided", "holds").index(e.state)) if v.effects else None
    known = effect is not None and math.isfinite(effect.value)
    value = f"{effect.value:.2g} [{effect.low:.2g}, {effect.high:.2g}]" if known and effect else ""
    return {"claim": v.claim, "models": ", ".join(v.models), "verdict": v.state, "effect": value, "paper": v.statement}
