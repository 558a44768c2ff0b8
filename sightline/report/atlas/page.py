"""`sl.report.write_atlas`: every claim that studies have decided on one page, from their JSON files alone."""

import importlib.resources
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sightline.report.atlas.answers import answers
from sightline.report.atlas.drawn import Drawn
from sightline.report.atlas.figures import FIGURES
from sightline.report.atlas.forest import FULL, ROW, WIDTH, all_claims, forest
from sightline.report.page import PLURAL, STATES, environment
from sightline.spec import atomic, legible
from sightline.studies.definitions.table import STUDIES, get_study
from sightline.studies.effects import LEVEL, requirement
from sightline.studies.engine.results import core_hours, judge_folder, read_results, read_spent, result_files
from sightline.studies.engine.study import SeedNumbers


def write_atlas(results: str | Path, page: str | Path | None = None) -> Path:
    """Write the atlas of all studies whose results are in a folder; no run folder is needed.

    >>> sl.report.write_atlas("no such folder")
    Traceback (most recent call last):
        ...
    ValueError: There are no results of studies in no such folder: sightline study run NAME writes them.
    """
    rows = [card(row) for row in judge_folder(results)]
    studies = [study_of(path) for path in result_files(results)]
    real = [row for row in rows if not row["smoke"]]
    judged = sum(math.isfinite(row["p"]) for row in real)
    states = Counter(row["state"] for row in real)
    text = (
        environment()
        .get_template("atlas.html")
        .render(
            css=Markup((importlib.resources.files("sightline.report") / "page.css").read_text(encoding="utf-8")),
            counts=[(n := states[state], state if n == 1 else PLURAL[state], name) for state, name in STATES.items()],
            rows=rows,
            studies=studies,
            smoke=any(row["smoke"] for row in rows),
            judged=judged,
            wrong=round(LEVEL * judged, 1),
            surviving=sum(row["survives"] and row["state"] != "undecided" for row in real),
            hours=round(core_hours(result_files(results)), 1),
            forest_width=WIDTH,
            forest_row=ROW / FULL,
            missing=missing(studies),
            plot=all_claims(rows),
            figures=figures(results),
            answers=answers(rows),
        )
    )
    path = Path(page) if page is not None else Path(results) / "atlas.html"
    with atomic(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def figures(results: str | Path) -> list[dict[str, Any]]:
    """Every figure with its panels; without panels where its numbers are missing."""
    seeds = {}
    for path in result_files(results):
        held, numbers = read_results(path)
        study = get_study(held["study"])
        seeds[study.name] = [SeedNumbers(study, numbers, seed) for seed in sorted(numbers)]
    return [
        {
            "source": f.source,
            "caption": f.caption,
            "study": f.study,
            "seeds": len(seeds.get(f.study, ())),
            "scale": get_study(f.study).scale,
            "panels": panels(f, seeds.get(f.study, ())),
        }
        for f in FIGURES
    ]


def missing(studies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The studies without results, and the claims that they decide."""
    known = {study["name"] for study in studies}
    rest = [study for name, study in STUDIES.items() if name not in known]
    return [{"name": study.name, "decides": [d.claim for d in study.decides]} for study in rest]


def panels(figure: Any, seeds: Sequence[SeedNumbers]) -> list[tuple[str, Markup]]:
    """The charts of a figure; none if a number that it needs is missing."""
    try:
        return list(figure.draw(Drawn(seeds)))
    except LookupError:
        return []


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


def card(row: Mapping[str, Any]) -> dict[str, Any]:
    """A claim with plots of its effects and of its controls."""
    effects = [(e, describe_effect(e), forest(e)) for e in row["effects"]]
    controls = [(kind, e, describe_effect(e), forest(e)) for kind, e in row["controls"].items()]
    place = re.sub(r"\W+", "-", f"{row['claim']}-{row['study']}")
    return {**row, "css": STATES[row["state"]], "plots": effects, "checks": controls, "id": place}


def describe_effect(e: Mapping[str, Any]) -> str:
    """Value, interval and what is required, in a line."""
    place = requirement(e)
    known = math.isfinite(e["low"]) and math.isfinite(e["high"])
    if not math.isfinite(e["value"]):
        return f"not measured yet; required: {place}"
    found = f"{e['value']:.3g} [{e['low']:.3g}, {e['high']:.3g}]" if known else f"{e['value']:.3g}, no interval"
    return f"{legible(found)}; required: {place}"
