"""`sl.report.write_atlas`: every claim that studies have decided on one page, from their JSON files alone."""

import importlib.resources
import math
from collections import Counter
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sightline.report.page import STATES, environment
from sightline.spec import atomic, legible
from sightline.studies.definitions.table import get_study
from sightline.studies.effects import LEVEL
from sightline.studies.engine.results import judge_folder, read_results, read_spent, result_files

WIDTH = 260  # of the plot of one effect


def write_atlas(results: str | Path, page: str | Path | None = None) -> Path:
    """Write the atlas of all studies whose results are in a folder; no run folder is needed.

    >>> sl.report.write_atlas("no such folder")
    Traceback (most recent call last):
        ...
    ValueError: There are no results of studies in no such folder: sightline study run NAME writes them.
    """
    rows = judge_folder(results)
    studies = [study_of(path) for path in result_files(results)]
    css = (importlib.resources.files("sightline.report") / "page.css").read_text()
    states = Counter(row["state"] for row in rows if not row["smoke"])
    text = (
        environment()
        .get_template("atlas.html")
        .render(
            css=Markup(css),
            counts=[(states[state], state, name) for state, name in STATES.items()],
            rows=[card(row) for row in rows],
            studies=studies,
            smoke=any(row["smoke"] for row in rows),
            judged=sum(math.isfinite(row["p"]) for row in rows),
            wrong=round(LEVEL * sum(math.isfinite(row["p"]) for row in rows), 1),
            hours=round(sum(s["hours"] for s in studies), 1),
            forest_width=WIDTH,
        )
    )
    path = Path(page) if page is not None else Path(results) / "atlas.html"
    with atomic(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def study_of(path: Path) -> dict[str, Any]:
    """What the page says of a study."""
    held, _ = read_results(path)
    study, spent = get_study(held["study"]), read_spent(path)
    return {
        "name": study.name,
        "question": study.question,
        "scale": study.scale,
        "fixed": study.fixed,
        "axes": study.axes,
        "seeds": len(held["seeds"]),
        "trainings": held["trainings"],
        "complete": held["complete"],
        "petamacs": held["macs"] / 1e15,
        "hours": float(spent.get("core_hours", 0.0)),
        "commit": spent.get("commit") or "",
        "command": spent.get("command") or "",
    }


def card(row: dict[str, Any]) -> dict[str, Any]:
    """A claim with plots of its effects and of its controls."""
    effects = [(e, said(e), forest(e)) for e in row["effects"]]
    controls = [(kind, e, said(e), forest(e)) for kind, e in row["controls"].items()]
    return {**row, "css": STATES[row["state"]], "plots": effects, "checks": controls}


def said(e: dict[str, Any]) -> str:
    """Value, interval and what is required, in a line."""
    place = f"within {e['margin']:g} of {e['bound']:g}" if e["side"] == "within" else f"{e['side']} {e['bound']:g}"
    known = math.isfinite(e["low"]) and math.isfinite(e["high"])
    found = f"{e['value']:.3g} [{e['low']:.3g}, {e['high']:.3g}]" if known else f"{e['value']:.3g}, no interval"
    return f"{legible(found)}; required: {place}"


def forest(e: dict[str, Any]) -> dict[str, float | None] | None:
    """Where an effect lies in a plot with its bound in the middle, so that those of all claims share one line."""
    if not math.isfinite(e["value"]):
        return None
    known = math.isfinite(e["low"]) and math.isfinite(e["high"])
    ends = [e["value"], *((e["low"], e["high"]) if known else ())]
    reach = 1.15 * max([abs(x - e["bound"]) for x in ends] + [e["margin"]]) or 1.0

    def at(x: float) -> float:
        return round(WIDTH / 2 * (1 + (x - e["bound"]) / reach), 1)

    match e["side"]:
        case "above":
            left, right = WIDTH / 2, float(WIDTH)
        case "below":
            left, right = 0.0, WIDTH / 2
        case _:
            left, right = at(e["bound"] - e["margin"]), at(e["bound"] + e["margin"])
    ends_at = (at(e["low"]), at(e["high"])) if known else (None, None)
    return {
        "left": left,
        "width": round(right - left, 1),
        "value": at(e["value"]),
        "low": ends_at[0],
        "high": ends_at[1],
    }
