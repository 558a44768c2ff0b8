"""One place per kind of result: a type that is registered in the table of views is drawn, described and on the page."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import sightline as sl
from sightline.spec import About, ModelId
from sightline.views import table
from sightline.views.similarity import layer_marks
from sightline.views.table import VIEWS, view_of
from sightline.views.view import Paper, View, counted, in_front, percent, with_interval
from tests.views import makers

EVERY = makers.every()


@dataclass(frozen=True, kw_only=True)
class Sparsity(sl.Result):
    """An analysis that somebody adds."""

    share: np.ndarray


def draw_sparsity(r, ax):
    ax.plot(r.share)
    ax.set_xlabel("block, first to last")


SPARSITY = View(
    of=Sparsity,
    heading="Sparse activations",
    sentence=lambda r: f"{100 * r.share[-1]:.0f} % of the units are zero in the last block.",
    draw=draw_sparsity,
    size=(5.0, 3.0),
    paper=Paper("Somebody 2030, figure 1", "Activations become sparser with depth."),
    payload=lambda r, room: {"widget": "heat", "notice": f"{len(r.share)} blocks"},
    figure_and_widget=True,
)


def test_one_registration_is_enough(monkeypatch, tmp_path):
    monkeypatch.setattr(table, "VIEWS", (SPARSITY, *VIEWS))
    about = About(models=(ModelId(name="small ViT"), ModelId(name="small CNN")))
    r = Sparsity(title="Sparsity", caption="Synthetic.", share=np.array([0.25, 0.75]), about=about)
    assert sl.draw(r).axes[0].get_xlabel() == "block, first to last"
    text = sl.write_report([makers.mass(), r], tmp_path).read_text()
    assert "<h2>Sparse activations: small ViT and small CNN</h2>" in text
    assert "75 % of the units are zero in the last block." in text
    assert "In the paper (Somebody 2030, figure 1)" in text
    assert "Activations become sparser with depth." in text
    assert 'data-widget="heat" data-source="data-Sparsity"' in text
    assert 'data-points="points-Sparsity"' in text
    assert text.index("Sparse activations:") < text.index("How much of a map lies on the object</h2>")
    assert "Sparse activations" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("name", EVERY)
def test_every_view_says_something(name):
    r = EVERY[name]
    view = view_of(r)
    assert view.heading_of(r).startswith(view.heading)
    assert view.sentence_of(r).endswith(".")
    paper = view.paper_of(r)
    assert paper is None or (paper.where and paper.finding.endswith("."))


def test_a_type_without_a_view_goes_by_its_title():
    r = Sparsity(title="How sparse", caption="", share=np.zeros(2))
    assert view_of(r).heading == "How sparse"
    assert view_of(r).sentence_of(r) == "This result has no summary."


def test_variants_are_told_apart():
    before, pooled = makers.receptive(side="before"), makers.cka(4, 5, models=(makers.VIT, makers.CNN), tokens="x")
    assert view_of(before).heading_of(before) == "Effective receptive fields: before the residual addition"
    assert view_of(pooled).variant(pooled) == "small ViT and small CNN"
    mean = makers.cka(4, 5, models=(makers.VIT, makers.CNN), tokens=("gap", "gap"))
    assert view_of(mean).variant(mean) == "small ViT and small CNN, average over positions"


def test_the_paper_has_a_counterpart_only_for_its_own_question():
    assert view_of(makers.scale()).paper_of(makers.scale()) is None
    study = makers.scale(varied="data")
    assert view_of(study).paper_of(study).where == "Raghu et al. 2021, figure 12"


def test_cka_is_shown_in_every_way_that_a_result_holds():
    r = makers.cka(6, 6)
    names = [plane["name"] for plane in view_of(r).payload(r, 0)["planes"]]
    assert names == ["CKA", "mutual neighbors", "± of CKA"]
    assert "other ways" not in view_of(r).sentence(r)
    ways = ("within class", "without outliers", "untrained")
    null = {"p": np.full((6, 6), 0.01), "null_mean": np.zeros((6, 6)), "null_std": np.full((6, 6), 0.02)}
    full = replace(r, ways=ways, values=np.stack([r.similarity * 0.5] * 3), **null)
    data = view_of(full).payload(full, 0)
    shown = [plane["name"] for plane in data["planes"]]
    other = ["CKA, calibrated", "CKA, within class", "CKA, without outliers", "CKA, untrained"]
    assert shown == ["CKA", *other, "p", "mutual neighbors", "± of CKA"]
    assert set(data["notes"]) == set(shown)
    half = np.mean(r.similarity) / 2
    assert f"{half:.2f} within class" in view_of(full).sentence(full)
    assert "100 % of the pairs have p ≤ 0.05" in view_of(full).sentence(full)


def test_heads_without_a_distance_are_counted():
    r = makers.distance()
    gone = replace(r, pixels=np.where(np.arange(3) == 1, np.nan, r.pixels))
    said = view_of(gone).sentence(gone)
    assert "6 of 18 heads spend all attention on prefix tokens" in said
    assert "nan" not in said
    sl.draw(gone)


def sentence(r):
    return view_of(r).sentence(r)


def test_shares_of_images_and_pairs_have_intervals():
    """What a sentence claims of single tokens, it claims of images that were drawn: with the interval over them."""
    lens = makers.logit_lens(12)
    assert "is settled from block 2 on in 100 % of 12 images (76 % to 100 %)" in sentence(lens)
    late = replace(lens, agrees=np.tile([0.0, 0, 0, 1], (12, 1)) * (np.arange(12) < 3)[:, None])
    assert "is settled from block 3 on in 25 % of 12 images (8.9 % to 53 %)" in sentence(late)
    assert "is never settled" in sentence(replace(lens, agrees=0 * lens.agrees))
    assert "is settled from block 2 on in this one image; after" in sentence(makers.logit_lens(1))
    outliers = makers.outlier_tokens()
    none = replace(outliers, share=0 * outliers.share, how={"n": 73})
    assert "No outliers in 73 images; up to 5.0 % of such images could still have one" in sentence(none)
    assert "place with the most outliers" in outliers.summary()
    assert "place with the most outliers" not in none.summary()
    mass = outliers.mass.copy()
    mass[:, 1] = [0.1, 0.2, 0.1]
    known = replace(outliers, mass=mass, mass_band=np.full_like(mass, 0.05))
    assert "outliers receive up to 20 % (15 % to 25 %) of the attention" in sentence(known)


def test_layers_of_a_hybrid_are_marked_by_stage_and_then_by_block():
    stages = (-1, 0, 0, 1, -1, -1, -1, -1)  # stem, three units in two stages, the encoder's input, two blocks
    blocks = (-1, 0, 1, 2, -1, 3, 3, 4)
    of = {
        "row_stages": stages,
        "row_blocks": blocks,
        "column_stages": (-1,) * 8,
        "column_blocks": (0, 0, 1, 1, 2, 2, 3, 3),
    }
    (rows, columns), unit = layer_marks(replace(makers.cka(8, 8), **of))
    assert [text for _, text in rows] == ["s1", "s2", "1", "2"]
    assert [at for at, _ in rows] == [2 / 8, 3.5 / 8, 6 / 8, 7.5 / 8]
    assert [text for _, text in columns] == ["1", "2", "3", "4"]
    assert unit == "block, s for stage"


def test_heads_have_intervals():
    once = makers.patching()
    heads = np.array([0.1, 0.2, 0.3])[:, None, None] * np.array([[1.0, 0.5], [0.2, 0.1]])
    thrice = replace(once, heads=heads, branches=np.repeat(once.branches, 3, 0), classes=np.repeat(once.classes, 3, 0))
    assert "head 1 of block 1 restores most, 20 % (0 % to 45 %)" in sentence(thrice)
    assert "restores most, 20 %;" in sentence(replace(once, heads=heads[1:2]))
    split = makers.position_content()
    block, head = split.most_positional()
    left = np.stack([split.energy * (1 + 0.02 * i * (np.arange(3) == 0)[:, None, None]) for i in range(-2, 3)])
    shares = left[:, 0, block, head] / left[:, :, block, head].sum(1)
    half = 2.776 * np.sqrt(0.8 * np.square(shares - shares.mean()).sum())
    low, high = (percent(split.share[0, block, head] + d) for d in (-half, half))
    assert f"({low} to {high})." in sentence(replace(split, replicates=left))
    assert "to" not in sentence(split).rsplit(":", 1)[1]


def spread_cells(*spreads):
    """Features of four images; the larger its spread, the less alike the cells of a layer are."""
    rng = np.random.default_rng(0)
    scales = np.array(spreads, dtype=float)[None, :, None, None]
    features = np.array([100.0, 0, 0]) + scales * rng.uniform(-1, 1, (4, len(spreads), 16, 3))
    features = np.clip(features, -127, 127).astype(np.int8)
    return sl.analysis.FeaturePCA(
        title="", caption="", images=np.zeros((4, 8, 8, 3), np.uint8), features=features,
        layers=tuple("abc"[: len(spreads)]), grids=((4, 4),) * len(spreads), explained=np.ones(len(spreads)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spreads", "said"),
    [
        ((127, 10), "are more similar after"),
        ((10, 127), "are less similar after"),
        ((60, 60), "are not shown to be more or less similar after"),
        ((60,), "after the only block"),
    ],
)
def test_cells_become_alike_only_if_the_images_say_so(spreads, said):
    r = spread_cells(*spreads)
    assert said in view_of(r).sentence(r)


@pytest.mark.parametrize(
    "name", ["vit-nano4", "bit-nano", "r8-vit-nano4", "r6-vit-nano4", "conv-vit-nano4", "mixer-nano4"]
)
def test_every_layer_of_our_families_has_words_of_its_own(name):
    paths = [part.path for part in sl.anatomy(sl.build(name, classes=2))]
    words = [counted(path) for path in paths]
    assert not [w for w in words if "." in w or "_" in w]
    assert len(set(words)) == len(paths)
    assert all(in_front(path)[0].isupper() for path in paths)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("layer3.0", "unit 1 of stage 3"),  # torchvision and timm
        ("layer3.0.conv2", "convolution 2 of unit 1 of stage 3"),
        ("vit.encoder.layer.3", "vit.encoder.layer.3"),
        ("blocks.3.ls1", "blocks.3.ls1"),
    ],
)
def test_paths_of_other_libraries_become_words_where_they_are_known(path, words):
    assert counted(path) == words
    assert in_front(path) == (words if words == path else words[0].upper() + words[1:])


def test_an_interval_of_small_numbers_is_not_all_zeros():
    """As insertion minus deletion of an untrained model: 0.00 (0.00 to 0.00) says nothing."""
    assert with_interval(0.00076, (0.0004, 0.0011)) == "0.0008 (0.0004 to 0.0011)"
    assert with_interval(-0.002, (-0.004, 0.0)) == "-0.0020 (-0.0040 to 0.0000)"
    assert with_interval(0.0, (0.0, 0.0)) == "0.00 (0.00 to 0.00)"
    assert with_interval(1e-9, (0.0, 2e-9)) == "0.00 (0.00 to 0.00)"
