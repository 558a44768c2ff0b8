"""`sightline demo`: train, measure and analyze every family on built-in data, and write one page."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from typing import Any

import click

import sightline as sl
from sightline.cli.options import FOLDER, Words
from sightline.cli.shell import show, verb

STATEMENT = 46  # characters of a claim in the table, which then fits 80 columns


@verb
@click.option("--data", default="scenes/count", show_default=True, help="Scenes, or a dataset such as cifar10.")
@click.option("--minutes", default=10.0, show_default=True, help="About how long it takes on two cores.")
@click.option("--out", default="demo", show_default=True, type=FOLDER, help="Folder for everything it writes.")
@click.option("--seed", default=0, show_default=True, help="Seed of models, data and draws.")
@click.option("--models", type=Words(), default="ViT,ViT-GAP,BiT,hybrid", show_default=True, help="Which to train.")
def demo(data: str, minutes: float, out: str, seed: int, models: tuple[str, ...], as_json: bool) -> None:
    """Look at the models that come with Sightline, train a small one of every family, and write one page about all.

    It trains a ViT, the same ViT with global average pooling, a BiT and a hybrid. Run it again to resume after an
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
    title = "The papers' claims, and for how many models they hold (the page says why)"
    show(claim_rows(report.verdicts), False, title=title)
    click.echo(f"Page: {report.page}")


def claim_rows(verdicts: Sequence[sl.studies.Verdict]) -> list[dict[str, Any]]:
    """One line per claim that fits a terminal: the claim in brief, and how many verdicts say what."""
    from sightline.studies.claims import CLAIMS  # here: `--help` does without

    brief = {c.number: c.brief for c in CLAIMS}
    rows: dict[str, dict[str, Any]] = {}
    for v in verdicts:
        words = brief.get(v.claim) or textwrap.shorten(v.statement, STATEMENT, placeholder=" ...")
        row = rows.setdefault(
            v.claim, {"claim": v.claim, "paper": words, "holds": 0, "does not hold": 0, "undecided": 0}
        )
        row[v.state] += 1
    return [{"not" if k == "does not hold" else k: v for k, v in row.items()} for row in rows.values()]


def verdict_row(v: sl.studies.Verdict) -> dict[str, Any]:
    """A verdict with its decisive effect; the page shows all effects."""
    value = sl.studies.effect_text(sl.studies.decisive_effect(v.plain()["effects"]))
    return {"claim": v.claim, "models": ", ".join(v.models), "verdict": v.state, "effect": value, "paper": v.statement}
