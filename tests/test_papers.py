"""docs/papers.md lists everything, and what it names exists."""

import re
import runpy
from pathlib import Path

import pytest

import sightline as sl
from sightline.cli.verbs import VERBS
from sightline.studies.claims import CLAIMS
from sightline.studies.engine.results import core_hours, result_files

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/papers.md").read_text()
ROWS = [
    row for line in TEXT.splitlines() if line.startswith("|") and len(row := line.strip(" |").split(" | ")) in (3, 4)
]
ITEMS = [row for row in ROWS if row[-1] != "status" and set(row[0]) != {"-"}]
CLAIM = re.compile(r"[VBC]\d+")


def test_every_row_has_a_status():
    for row in ITEMS:
        assert re.search(r"shown|measured|studied|ready|missing", row[-1]), row


def test_nothing_is_left_out():
    claims = {row[0] for row in ITEMS if CLAIM.fullmatch(row[0])}
    assert claims == {f"{paper}{i + 1}" for paper, count in (("V", 14), ("B", 6), ("C", 24)) for i in range(count)}
    assert len(ITEMS) - len(claims) >= 37 + 86 + 26  # figures and tables, definitions and methods, numbers


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[^`]+)`", TEXT))))
def test_tests_exist(named):
    path, _, function = named.partition("::")
    text = (ROOT / path).read_text()
    assert not function or f"def {function}(" in text


def test_commands_and_names_exist():
    for verb in set(re.findall(r"`sightline (\w+)", TEXT)):
        assert verb in VERBS, verb
    for name in set(re.findall(r"`sl\.([\w.]+)", TEXT)):
        thing = sl
        for part in name.split("."):
            thing = getattr(thing, part)


def test_claims_with_a_verdict_are_those_that_are_judged():
    judged = {line.split("|")[1].strip() for line in TEXT.splitlines() if "| verdict;" in line}
    assert judged == {c.number for c in CLAIMS}


def test_every_claim_names_the_study_that_decides_it():
    studies = {d.claim: s.name for s in sl.studies.list_studies() for d in s.decides}
    for row in ITEMS:
        for found in re.finditer(r"(?:ready: study |#study-)([\w-]+)", row[-1]):
            assert found[1] in studies.values(), row
        if CLAIM.fullmatch(row[0]) and row[0] in studies:
            assert re.search(rf"(?:ready: study |#study-){studies[row[0]]}\b", row[-1]), row


def test_results_take_the_place_of_ready():
    tool = runpy.run_path(str(ROOT / "docs/tools/claims.py"))
    effect = {"state": "holds", "value": 0.1, "low": 0.05, "high": 0.15, "bound": 0.0, "side": "above", "margin": 0.0}
    rows = {
        ("data", c): {"state": state, "seeds": 5, "effects": [effect]}
        for c, state in (("V1", "holds"), ("V2", "undecided"))
    }
    line = "| Figures 3, 4 | somewhere | ready: study data (V1, V2) |\n| V1 | it | there | ready: study data |"
    filled = tool["fill"](line, rows)
    assert "ready" not in filled
    assert (
        "(gallery/atlas.html#study-data): V1 holds (5 seeds: 0.100 [0.050 to 0.150]), V2 undecided (5 seeds" in filled
    )
    assert tool["fill"](filled, rows) == filled
    rows["data", "V1"]["state"] = "does not hold"
    assert tool["fill"](filled, rows).count("V1 does not hold") == 2
    assert tool["fill"](line, {}) == line


def test_readme_and_this_page_say_what_the_committed_results_say():
    tool = runpy.run_path(str(ROOT / "docs/tools/claims.py"))
    folder = ROOT / "docs/studies"
    rows = {(row["study"], row["claim"]): row for row in sl.studies.judge_folder(folder) if not row["smoke"]}
    assert tool["fill"](TEXT, rows) == TEXT, "python docs/tools/claims.py writes it anew"
    readme, files = (ROOT / "README.md").read_text(), result_files(folder)
    run = (len(files), len(sl.studies.list_studies()))
    assert tool["COUNTED"].search(readme)
    assert tool["RUN"].search(readme)
    assert tool["fill_readme"](readme, rows.values(), core_hours(files), run) == readme


def test_no_row_stays_ready_once_its_study_is_run():
    tool = runpy.run_path(str(ROOT / "docs/tools/claims.py"))
    effect = {"state": "holds", "value": 0.1, "low": 0.05, "high": 0.15, "bound": 0.0, "side": "above", "margin": 0.0}
    decided = [(s.name, d.claim) for s in sl.studies.list_studies() for d in s.decides]
    rows = {key: {"state": "holds", "seeds": 5, "effects": [effect]} for key in decided}
    filled = tool["fill"](TEXT, rows)
    assert not re.findall(r"ready: study.*", filled)
    for study, claim in decided:
        assert f"#study-{study})" in filled, f"no row names the study {study}"
        assert f"{claim} holds (5 seeds" in filled, f"no row has the claim {claim}"
