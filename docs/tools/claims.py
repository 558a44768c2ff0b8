"""Write the atlas, the statuses in docs/papers.md and the counts in README from docs/studies."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import sightline as sl
from sightline.studies.engine.results import core_hours, result_files

README = Path("README.md")
PAGE, RESULTS, ATLAS = Path("docs/papers.md"), Path("docs/studies"), Path("docs/gallery/atlas.html")
STATES = ("holds", "does not hold", "undecided")
# "ready: study data (V1, V2)" before there are results, "[study data](...): V1 holds, V2 undecided" from then on
READY = re.compile(r"ready: study (?P<study>[\w-]+)(?: \((?P<claims>[^)]*)\))?")
STUDIED = re.compile(r"\[studied\]\([^)]*#study-(?P<study>[\w-]+)\): (?P<said>[^|;]*\))")
SAID = re.compile(rf"(?P<claim>[^,]+?) (?:{'|'.join(STATES)})(?: \([^)]*\))?(?:, |$)")
COUNTED = re.compile(
    r"first \d+ judged(?P<how>[^|]*?), \d+ hold, \d+ do not, \d+(?P<gap>\s+)are undecided, in [\d.]+ core-hours"
)
RUN = re.compile(r"\| [\w-]+ of \d+ run \|")
Rows = Mapping[tuple[str, str], Mapping[str, Any]]  # by study and claim


def fill(text: str, rows: Rows) -> str:
    """The page with what the studies say in the place of what they will."""
    return "\n".join(fill_line(line, rows) for line in text.split("\n"))


def fill_line(line: str, rows: Rows) -> str:
    if not line.startswith("|"):
        return line
    own = line.strip("| ").split(" | ")[0]

    def ready(found: re.Match[str]) -> str:
        named = [c.strip() for c in (found["claims"] or own).split(",")]
        return status(found["study"], named, rows) or found[0]

    def studied(found: re.Match[str]) -> str:
        named = [m["claim"].strip() for m in SAID.finditer(found["said"].strip())]
        return status(found["study"], named, rows) or found[0]

    return READY.sub(ready, STUDIED.sub(studied, line))


def status(study: str, claims: Iterable[str], rows: Rows) -> str:
    """What a study says of claims; empty where it has no results."""
    known = [(claim, rows[study, claim]) for claim in claims if (study, claim) in rows]
    if not known:
        return ""
    said = ", ".join(f"{claim} {row['state']} ({numbers(row)})" for claim, row in known)
    return f"[studied](gallery/atlas.html#study-{study}): {said}"


def numbers(row: Mapping[str, Any]) -> str:
    """Seeds, and the effect that decides."""
    found = sl.studies.effect_text(sl.studies.decisive_effect(row["effects"]))
    return found if found == "not measured" else f"{row['seeds']} seeds: {found}"


def headline(rows: Iterable[Mapping[str, Any]], hours: float) -> str:
    """One sentence for README."""
    states = Counter(row["state"] for row in rows)
    counts = f"{states['holds']} hold, {states['does not hold']} do not, {states['undecided']} are undecided"
    return f"Of {sum(states.values())} claims, over training seeds of small models, {counts} ({hours:.1f} core-hours)."


def fill_readme(text: str, rows: Iterable[Mapping[str, Any]], hours: float, run: tuple[int, int]) -> str:
    """README with the numbers of the atlas."""
    states = Counter(row["state"] for row in rows)
    counts = f"{states['holds']} hold, {states['does not hold']} do not, {states['undecided']}"

    def counted(found: re.Match[str]) -> str:
        first = f"first {sum(states.values())} judged{found['how']}, {counts}"
        return f"{first}{found['gap']}are undecided, in {hours:.1f} core-hours"

    return RUN.sub(f"| {run[0]} of {run[1]} run |", COUNTED.sub(counted, text))


def main() -> None:
    judged = sl.studies.judge_folder(RESULTS)
    sl.report.write_atlas(RESULTS, ATLAS)
    rows = {(row["study"], row["claim"]): row for row in judged if not row["smoke"]}
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    hours = core_hours(result_files(RESULTS))
    run = (len(result_files(RESULTS)), len(sl.studies.list_studies()))
    README.write_text(fill_readme(README.read_text(encoding="utf-8"), rows.values(), hours, run), encoding="utf-8")
    print(headline(rows.values(), hours))


if __name__ == "__main__":
    main()
