"""README and docs: links lead somewhere, pages are reachable, nothing private is cited, commands and examples exist."""

import re
from pathlib import Path

import pytest

import sightline as sl

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
GUIDE = [p for p in PAGES if p.name not in ("log.md", "CHANGELOG.md")]  # these two tell of what was
GENERATED = "reference/"  # pages that docs/tools/reference.py writes when the site is built
NOTEBOOKS = "tutorials/"  # and docs/tools/tutorials.py
# numbers of a list that no reader has; R26, R50, R101 and R152 are ResNets
PRIVATE_NUMBER = re.compile(r"\b(?:[RE](?!(?:26|50|101|152)\b)\d{1,3}|issue \d+)\b")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """Without the file tree, which is made of docstrings; tests/test_house.py reads those."""
    return re.sub(r"```tree\n.*?```", "", path.read_text(), flags=re.S)


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]+))?\)", page.read_text()):
        if target.startswith((GENERATED, NOTEBOOKS)):
            continue
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), f"{page.name}: {target}"
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), f"{page.name}: {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_private_numbers(page):
    found = PRIVATE_NUMBER.search(prose(page))
    assert not found, f"{page.name}: {found} says nothing to a reader"


def test_the_site_has_every_page_and_one_of_the_reference_per_room():
    pages = re.findall(r"^ *- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    notebooks = {p.with_suffix(".md") for p in (ROOT / "docs").rglob("*.ipynb")}  # shown by docs/tools/tutorials.py
    written = {str(p.relative_to(ROOT / "docs")) for p in {*(ROOT / "docs").rglob("*.md"), *notebooks}}
    rooms = {p.parent.name for p in (ROOT / "sightline").glob("*/__init__.pyi")}
    assert set(pages) == written | {f"{GENERATED}{name}.md" for name in rooms | {"index", "spec"}}


@pytest.mark.parametrize("page", GUIDE, ids=name_of)
def test_names_in_the_guide_exist(page):
    for name in set(re.findall(r"\bsl\.(\w+(?:\.\w+)*)", prose(page))):
        thing = sl
        for part in name.split("."):
            assert hasattr(thing, part), f"{page.name}: sl.{name}"
            thing = getattr(thing, part)


def test_readme_fits_two_screens():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
