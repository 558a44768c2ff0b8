"""The atlas: one page from JSON files alone, whole with whole results, and honest with partial ones."""

import math
import re

import pytest
from markupsafe import escape

import sightline as sl
from sightline.report.atlas.answers import answers
from sightline.report.atlas.figures import FIGURES
from sightline.report.atlas.page import figures
from sightline.report.page import PLURAL
from sightline.studies.engine.results import caution, takes
from sightline.studies.verdict import Verdict
from tests.studies.made_up import write_all

DRAWN = ("data", "positions", "pooling", "skips", "seeing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made-up results of the studies that draw figures; compute, whose plan takes seconds, is missing."""
    place = tmp_path_factory.mktemp("results")
    write_all(place, DRAWN)
    return place


@pytest.fixture(scope="module")
def page(folder):
    return sl.report.write_atlas(folder, folder / "atlas.html").read_text()


def test_every_figure_is_drawn_from_the_numbers_or_called_not_measured(folder):
    drawn = {f["source"]: len(f["panels"]) for f in figures(folder)}
    missing = {f.source for f in FIGURES if f.study not in DRAWN}
    assert {source for source, count in drawn.items() if not count} == missing
    papers = {"ViT": {3, 4, 5, 7, 8, 9, 10, 11}, "BiT": {5}, "Raghu et al.": set(range(1, 14))}
    for paper, numbers in papers.items():
        named = {int(n) for f in FIGURES if f.source.startswith(paper) for n in re.findall(r"\b\d+\b", f.source)}
        assert numbers <= named


def test_the_page_has_every_claim_with_its_controls_and_opens_from_disk(page):
    assert len(page) < 10_000_000
    assert not re.search(r'(?:src|href)="(?!#|data:)', page)
    for study in DRAWN:
        for d in sl.studies.get_study(study).decides:
            place = re.sub(r"\W+", "-", f"{d.claim}-{study}")
            assert f'id="{place}"' in page
            assert f'href="#{place}"' in page
    claim = page[page.index('id="V1-data"') :]
    claim = claim[: claim.index("</section>")]
    for words in (
        "The paper: ImageNet",
        "Here: ViT, BiT",
        "null: ",
        "positive control: ",
        "On constructed numbers",
        "Holm",
    ):
        assert words in claim
    assert "wrong decisions" in page


def test_open_questions_are_answered_from_numbers_or_not_at_all(folder):
    said = dict(answers(sl.studies.judge_folder(folder)))
    assert len(said) == 3
    same = said["Do models with a class token and with average pooling learn the same representation?"]
    assert "differ at the end, so they do not (C19: " in same
    assert "not measured" not in same
    assert "C11 is not measured yet." in said["Does the residual connection of a Transformer act like that of a CNN?"]


def test_an_answer_says_what_is_required_where_nothing_is_shown():
    e = sl.studies.over_seeds("accuracy, GAP minus CLS", [0.0, 0.02, 0.04], side="within", margin=0.01)
    row = {"claim": "V5", "smoke": False, "state": e.state, "effects": [{**vars(e), "state": e.state}]}
    said = dict(answers([row]))["Do models with a class token and with average pooling learn the same representation?"]
    assert said.startswith("It is undecided whether both reach the same accuracy")
    assert "0.020 [-0.030 to 0.070]; required: between -0.01 and 0.01)." in said


def test_an_undecided_claim_says_what_it_would_take(folder):
    rows = {row["claim"]: row for row in sl.studies.judge_folder(folder)}
    assert rows["V1"]["takes"] == ""
    assert "at least 3 training seeds" in rows["C11"]["takes"]

    def needed(*values, **place):
        effects = tuple(sl.studies.over_seeds("gain", [v, v + 0.1, v - 0.1], **place) for v in values)
        return takes(Verdict(claim="C1", source="", statement="", models=(), effects=effects))

    # half the interval is 0.1 t / root n: below 0.15 from 5 seeds on, below 0.05 from 18 on
    assert needed(0.15).endswith("about 5 training seeds would decide it: it would then hold.")
    assert needed(0.15, 0.05).endswith("about 18 training seeds would decide it: it would then hold.")
    assert needed(-0.15, 0.05).endswith("about 5 training seeds would decide it: it would then not hold.")
    assert needed(0.05, side="within", margin=0.2).endswith(
        "about 5 training seeds would decide it: it would then hold."
    )
    assert "1,000 training seeds would not decide it" in needed(1e-4)


def test_rows_for_machines(folder, capsys, tmp_path):
    from sightline.cli import main

    page = tmp_path / "atlas.html"
    main(["study", "report", str(folder), "--json", "--to", str(page)])
    assert page.exists()
    rows = sl.spec.from_json(capsys.readouterr().out)
    assert len(rows) == sum(len(sl.studies.get_study(name).decides) for name in DRAWN)
    for row in rows:
        assert {"claim", "state", "seeds", "scale", "effects"} <= row.keys()
        assert row["state"] in ("holds", "does not hold", "undecided")
        assert all({"value", "low", "high", "bound"} <= e.keys() for e in row["effects"])


def test_every_claim_stands_beside_its_line_and_what_is_not_judged_is_named(page):
    for study in DRAWN:
        for d in sl.studies.get_study(study).decides:
            assert f'<li title="{escape(d.statement)}">' in page
    assert "V3, V12 (study compute)" in page
    figure = page[page.index("Raghu et al., figure 1</h2>") :]
    assert re.search(r"\d training seeds: \S", figure[: figure.index("</p>")])
    assert 'href="#study-compute"' not in page  # which has no place there yet


def test_tiles_count_what_rows_for_machines_say(folder, page):
    rows = sl.studies.judge_folder(folder)
    for state, words in PLURAL.items():
        count = sum(row["state"] == state for row in rows)
        assert f"<b>{count}</b>{state if count == 1 else words}<" in page


def test_a_control_that_did_not_come_out_is_said():
    effect = {"low": 0.1, "high": 0.2}
    assert caution({"null": {**effect, "state": "undecided"}, "positive control": {**effect, "state": "holds"}}) == ""
    assert "null holds" in caution({"null": {**effect, "state": "holds"}})
    assert "positive control is undecided" in caution({"positive control": {**effect, "state": "undecided"}})
    assert caution({"positive control": {"low": math.nan, "high": math.nan, "state": "undecided"}}) == ""
    twins = {f"untrained twins, {i}": {**effect, "state": "holds"} for i in (1, 2)}
    assert "architecture is enough" in caution(twins, "holds")
    assert (
        caution(twins, "does not hold")
        == caution({**twins, "untrained twins, 2": {"state": "undecided"}}, "holds")
        == ""
    )
