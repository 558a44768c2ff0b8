"""Published numbers: exact, with their source, never merged; and what the papers say of them."""

import json

import pytest

import sightline as sl
from sightline.cli.models import pretraining_cost
from sightline.views.table import view_of
from tests.command import run

find = sl.references.find


def only(table, **asked):
    (row,) = find(table, **asked)
    return row


def test_every_row_has_a_table_a_source_and_a_value_in_our_units():
    every = find()
    assert len(every) > 400
    assert all(r.source == sl.references.tables()[r.table].source and r.printed for r in every)
    assert all(0 < r.value < 1 for r in every if r.dataset)
    assert {r.metric for r in every if not r.dataset} == {"TPUv3-core-days", "exaFLOPs"}
    assert {"vit-2", "vit-5", "vit-6", "vit-7", "vit-8", "vit-9", "bit-1", "bit-2", "fixres"} <= set(
        sl.references.tables()
    )
    assert all("http" in t.url and t.about.endswith(".") for t in sl.references.tables().values())


@pytest.mark.parametrize(
    ("table", "asked", "value"),
    [
        ("vit-2", {"model": "vit-h14", "dataset": "imagenet"}, 0.8855),
        ("vit-2", {"model": "bit-r152x4", "dataset": "vtab"}, 0.7629),
        ("vit-5", {"model": "vit-b16", "dataset": "imagenet", "pretraining": "imagenet"}, 0.7791),
        ("vit-6", {"model": "R50+ViT-B/16", "dataset": "pets"}, 0.9665),
        ("vit-6", {"model": "bit-r200x3", "metric": "exaFLOPs"}, 3306),
        ("vit-9", {"model": "vit-l16", "dataset": "vtab/dmlab", "pretraining": "imagenet-21k"}, 0.419),
        ("vit-objectnet", {"model": "vit-h14", "metric": "top-1"}, 0.617),
        ("bit-fewshot", {"dataset": "cifar10"}, 0.97),
        ("fixres", {"metric": "top-5"}, 0.98),
    ],
)
def test_numbers_as_printed(table, asked, value):
    assert only(table, **asked).value == pytest.approx(value, abs=1e-9)


def test_tables_5_and_6_are_never_merged():
    """They disagree for ViT-H/14, so both numbers stand, each under its table."""
    rows = find(model="vit-h14", dataset="imagenet", pretraining="jft-300m")
    assert {r.table: r.value for r in rows} == {"vit-2": 0.8855, "vit-5": 0.8804, "vit-6": 0.8808}


def test_table_8_has_its_eight_cells_and_every_model_of_ours_is_built():
    cells = {(r.settings["position"], r.settings.get("position_at")): r.value for r in find("vit-8")}
    assert len(cells) == 8
    assert cells["none", None] == min(cells.values()) == pytest.approx(0.61382)
    ours = {r.model for r in find()} - {"efficientnet-l2", "resnet50", "resnext101-32x48d"}
    assert all(sl.references.published_name(sl.models.config(name, classes=3)) == name for name in ours)
    assert sl.references.published_name(sl.models.config("vit-nano4")) == ""


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("vit-b16", {"attention": "axial"}),
        ("vit-b16", {"no_skip": (3,)}),
        ("vit-b16", {"norm_at": "post"}),
        ("bit-r50x1", {"norm": "batch"}),
        ("bit-r50x1", {"standardize": False}),
        ("r50-vit-b16", {"attention": "axial"}),
    ],
)
def test_another_architecture_of_the_same_size_is_not_the_published_one(name, change):
    assert sl.references.published_name(sl.models.config(name, size=256, classes=3)) == name
    assert sl.references.published_name(sl.models.config(name, **change)) == ""


def test_core_days():
    assert sl.references.days_on(8, 230) == 28.75
    assert sl.references.core_days(8, 28.75) == 230
    with pytest.raises(ValueError, match="cores must be a number above 0; got 0"):
        sl.references.days_on(0, 230)


def test_all_tasks_has_its_two_exceptions():
    claims = sl.references.table_2_claims()
    assert claims[0].exceptions == {"imagenet-real": (0.9054, 0.9054), "vtab": (0.7628, 0.7629)}
    assert [c.holds for c in claims] == [False, True, True, True]
    assert "vtab (0.7628 against 0.7629)" in claims[0].sentence


def test_what_is_not_there_is_said():
    with pytest.raises(ValueError, match=r"No published number has table 'vit-3'; there are .*vit-2"):
        find("vit-3")
    assert sl.references.published_rows("vit-b16", "my-photos") == ()


def test_show_says_what_the_papers_report(capsys):
    assert "28.75 days on 8 cores" in pretraining_cost("vit-l16")["published pre-training (imagenet-21k)"]
    rows = json.loads(run(capsys, "show", "ViT-L/16", "--published", "--json")[1])
    assert {"vit-2", "vit-5", "vit-6", "vit-9"} <= {row["table"] for row in rows}
    code, _, error = run(capsys, "show", "vit-nano4", "--published")
    assert code == 2
    assert "No table of the papers reports vit-nano4" in error


def test_published_numbers_stand_beside_an_evaluation():
    """By architecture and dataset, on the page too."""
    how = {"variant": "vit-b16", "dataset": "cifar10"}
    paper = view_of(scored := sl.evals.score([[1.0, 0], [0, 1]], [0, 1], how=how)).paper_of(scored)
    assert "table 5" in paper.where
    assert "ViT-B/16 98.1 % (imagenet, size 384)" in paper.finding
    other = sl.evals.score([[1.0, 0], [0, 1]], [0, 1], how={"variant": "", "dataset": "cifar10"})
    assert view_of(other).paper_of(other) is None
    real = sl.evals.score_real([3, 1], [[3], [2]], how={"variant": "vit-l16", "dataset": "imagenet-real"})
    assert "ViT-L/16 90.5 % ± 0.03 (jft-300m)" in view_of(real).paper_of(real).finding
