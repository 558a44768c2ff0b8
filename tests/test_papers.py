"""docs/papers.md lists everything, and what it names exists."""

import re
from pathlib import Path

import pytest

import sightline as sl
from sightline.cli.verbs import VERBS
from sightline.studies.claims import CLAIMS

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/papers.md").read_text()
NUMBERS = [
    *(f"R{i}" for i in range(1, 87)),
    *(f"E{i}" for i in range(1, 27)),
    *(f"V{i}" for i in range(1, 15)),
    *(f"B{i}" for i in range(1, 7)),
    *(f"C{i}" for i in range(1, 25)),
]


def test_every_number_has_a_row_with_a_status():
    rows = {row[1].strip(): row for line in TEXT.splitlines() if len(row := line.split("|")) == 6}
    for number in NUMBERS:
        assert number in rows, number
        assert re.search(r"shown|measured|ready|missing", rows[number][4]), number


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
    told = {line.split("|")[1].strip() for line in TEXT.splitlines() if "| verdict;" in line}
    assert told == {c.number for c in CLAIMS}


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
