"""One rule of uncertainty: what a result says of itself has an interval over images, or a reason to have none."""

import math
import re
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import sightline as sl
from benchmarks import sentences
from benchmarks import verdicts as bench
from sightline.archives import pack_arrays, read_arrays
from sightline.evals.interval import ends, of_difference, of_mean, of_median, over_groups, without_each
from sightline.views.table import view_of
from tests import peers
from tests.analysis.test_outlier_tokens import PATCH, SIZE, planted_images, planted_model

# numbers that are no estimate over images: counts, settings, intervals themselves, and what is read from the weights
EXACT = (
    "uniform attention", "heads without a distance", "largest band", "share of pairs with p", "patched runs", "images",
    "place with the most outliers", "rank correlation, lower end", "rank correlation, upper end", "±", "half of its",
    "scored",
)  # fmt: skip
FROM_WEIGHTS = (sl.analysis.PatchFilters, sl.analysis.PositionSimilarity)
IMAGES = 24


@pytest.fixture(scope="module")
def vit():
    return sl.load("vit-nano4.cifar10")


@pytest.fixture(scope="module")
def cnn():
    return sl.load("bit-basic.cifar10")


def looks(vit, cnn):
    """Every analysis of images, by name: a function of a dataset."""
    a, i = sl.analysis, lambda **more: {"n": IMAGES, **more}
    return {
        "cka": lambda d: sl.cka(vit, None, d, layers="blocks", ways=["calibrated", "without outliers"]),
        "cka of two": lambda d: sl.cka(vit, cnn, d, layers="blocks"),
        "distance": lambda d: sl.attention_distance(vit, d),
        "head subsets": lambda d: a.head_subsets(vit, cnn, d),
        "head attention": lambda d: sl.head_attention(vit, d, **i()),
        "maps": lambda d: a.attention_maps(vit, d, block=-1, **i()),
        "position and content": lambda d: a.position_content(vit, d),
        "fields": lambda d: sl.receptive_field(vit, d, **i()),
        "residual": lambda d: sl.residual_ratios(vit, d),
        "residual, CNN": lambda d: sl.residual_ratios(cnn, d),
        "localization": lambda d: sl.localization(vit, d),
        "blocks": lambda d: a.block_similarity({"hybrid": sl.load("r8-vit-nano4.cifar10")}, vit, d),
        "pca": lambda d: sl.feature_pca(vit, d, **i()),
        "neighbors": lambda d: a.neighbor_similarity(vit, d),
        "biases": lambda d: a.inductive_bias(vit, d, **i()),
        "outliers": lambda d: a.outlier_tokens(planted_model(), with_outliers(len(d))),
        "lens": lambda d: a.logit_lens(vit, d, **i()),
        "what if": lambda d: sl.what_if(vit, d, ["block 1", "head 0.1"]),
        "focus": lambda d: a.object_focus(vit, d, methods=["rollout"]),
        "attribution": lambda d: sl.attribution(vit, d, n=8, method="rollout"),
        "pooling": lambda d: a.pooling_comparison(*twins(), d, scenes(40), shots=2),
        "accuracy": lambda d: sl.evaluate(answering(), d),
        "labels": lambda d: sl.evals.score_labels(
            np.random.default_rng(0).random((24, 3)), np.eye(3)[[0, 1, 2, 1] * 6]
        ),
        "episodes": lambda d: sl.evals.episodes(features(), ways=3, shots=2, queries=2, episodes=9),
        "retrieval": lambda d: sl.evals.retrieval(features()),
        "probe": lambda d: sl.probe(features(), features(1)),
        "corruptions": lambda d: sl.evals.evaluate_corruptions(answering(), d, ["fog"], severities=(1, 5)),
        "test sets": lambda d: sl.evals.evaluate_sets(answering(), {"one": d, "two": scenes(30)}),
    }


def twins():
    return [sl.build("vit-nano4", patch=16, depth=2, pool=pool) for pool in ("cls", "gap")]


def features(seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(40) % 4
    return torch.nn.functional.one_hot(y, 4) + 0.7 * torch.randn(40, 4, generator=g), y


def answering():
    """A model whose answers to scenes differ, and are right at times."""
    return peers.fill(sl.build("vit-nano4", classes=10, depth=1), std=0.1)


NAMES = list(looks(None, None))


def with_outliers(count):
    """Images with one to three bright red patches each, which a planted neuron makes outliers of."""
    x = planted_images(max(count, 4))[:count]
    random = np.random.default_rng(0)
    for image in x:
        for cell in random.permutation(SIZE // PATCH)[: random.integers(1, 4)]:
            image[0, PATCH * cell : PATCH * (cell + 1), :PATCH] = 2.0 + random.random()
    return x


def scenes(count):
    return sl.dataset("scenes/shape", "test", num=count, size=32)


@pytest.fixture(scope="module")
def found(vit, cnn):
    """Each analysis is done once, and kept."""
    kept = {}

    def look(name):
        if name not in kept:
            kept[name] = looks(vit, cnn)[name](scenes(IMAGES))
        return kept[name]

    return look


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_its_interval(found, name):
    r = found(name)
    numbers, known = r.summary(), r.intervals()
    assert set(known) <= set(numbers)
    without = [n for n in numbers if n not in known and not any(word in n for word in EXACT)]
    varies = [n for n in without if not (math.isnan(numbers[n]) or numbers[n] in (0, 1, math.inf))]  # saturated: none
    assert not varies, varies
    for n, (low, high) in known.items():
        assert low < high, n
        assert low - 1e-9 <= numbers[n] <= high + 1e-9, n


@pytest.mark.parametrize("name", ["residual", "outliers", "distance", "fields", "neighbors", "biases", "pca"])
def test_one_image_has_no_interval(vit, cnn, name):
    r = looks(vit, cnn)[name](scenes(1))
    assert r.intervals() == {}
    assert not re.search(r"\d( %)? to \d|nan", view_of(r).sentence(r))


def test_one_image_many_times_has_no_interval():
    """What differs between its copies is rounding in float32, which says nothing of other images."""
    same = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)).repeat(21, 1, 1, 1)
    r = sl.analysis.position_content(sl.load("vit-nano4.cifar10-gap"), same)
    assert r.summary()["position, first block"] == pytest.approx(1)
    assert not [name for name in r.intervals() if "position" in name]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_without_replicates_is_read_and_said(found, name, tmp_path):
    """As older versions wrote it: numbers as they are, intervals only of what the file holds."""
    r = found(name)
    path = r.save(tmp_path / "new.npz")
    again = sl.Result.load(path)
    assert again.intervals().keys() == r.intervals().keys()
    kept = [f.name for f in fields(r) if "replicates" not in f.name and f.name != "per_image"]
    held = {k: v for k, v in read_arrays(path).items() if k == "__head__" or k in kept}
    (tmp_path / "old.npz").write_bytes(pack_arrays(held))
    old = sl.Result.load(tmp_path / "old.npz")
    numbers = {n: v for n, v in r.summary().items() if "end of its" not in n}
    assert {n: old.summary()[n] for n in numbers} == pytest.approx(numbers, nan_ok=True)
    assert view_of(old).sentence(old)
    assert set(old.intervals()) <= set(r.intervals())


def test_what_is_read_from_the_weights_has_none(vit):
    for r in (sl.analysis.patch_filters(vit), sl.analysis.position_similarity(vit)):
        assert isinstance(r, FROM_WEIGHTS)
        assert r.intervals() == {}


def test_patching_of_pairs(vit):
    """The place where the class token takes over: undecided for one pair, between two places for several."""
    data = scenes(64)
    one = sl.analysis.activation_patching(vit, data, pairs=1, cells=1)
    assert one.intervals() == {}
    several = sl.analysis.activation_patching(vit, data, pairs=6, cells=1)
    name = "place from which the class token carries half"
    low, high = several.intervals()[name]
    assert low <= several.summary()[name] <= high
    assert several.summary()[name] - 1 < several.take_over() <= several.summary()[name]
    assert "the class token alone carries half of it from block" in view_of(several).sentence(several)
    never = replace(several, prefix=0 * several.prefix)
    assert math.isinf(never.take_over())
    assert name not in never.intervals()
    assert "carries half of it nowhere" in view_of(never).sentence(never)


def test_registers_of_a_mean_are_no_class_token_that_takes_over():
    """A model without a class token has nothing to say of it, whatever stands before its patches."""
    net = peers.timm.create_model(
        "vit_tiny_patch16_224", img_size=32, num_classes=5, depth=2, global_pool="avg", class_token=False, reg_tokens=2
    )
    r = sl.analysis.activation_patching(sl.adopt(peers.fill(net).eval()), torch.rand(8, 3, 32, 32), pairs=4, cells=1)
    assert r.prefix.shape[2] == 2
    assert not r.has_class_token
    assert "place from which the class token carries half" not in {*r.summary(), *r.intervals()}
    view = view_of(r)
    assert "class token" not in view.sentence(r) + str(view.payload(r, 10**6)["notes"])
    labels = [text.get_text() for ax in sl.draw(r).axes if ax.get_legend() for text in ax.get_legend().get_texts()]
    assert "prefix token 0" in labels
    assert "class token" not in labels


def test_the_class_token_takes_over_between_two_additions():
    """Ratios cross halfway between the second and the third addition; ratios that do not cross have no such place."""
    c, p = np.exp([2.0, 1.0, -1.0, -2.0]), np.ones(4)
    take_over = sl.analysis.residual.take_over
    assert take_over(c, p) == pytest.approx(2.5)
    assert math.isnan(take_over(np.exp([1.0, 2.0, 1.0, 2.0]), p))
    assert math.isnan(take_over(p, np.exp([1.0, 2.0, 1.0, 2.0])))
    images = c + np.random.default_rng(0).normal(0, 0.2, (40, 4))
    both = (images.mean(0), without_each(images)), (p, np.tile(p, (40, 1)))
    low, high = over_groups(take_over, *both)
    assert 2 < low < 2.5 < high < 3


def test_the_share_of_a_channel_is_that_of_a_long_way_round():
    """Delete-a-group by hand: the analysis of all images but those of one group."""
    model, images = planted_model(), with_outliers(8)
    whole = sl.analysis.outlier_tokens(model, images, batch=3)
    assert len(whole.replicates) == 8
    assert whole.channels[whole.peak, 0].max() == pytest.approx(whole.summary()["share of the largest channel"])
    groups = set()
    for left in range(8):
        rest = sl.analysis.outlier_tokens(model, images[torch.arange(8) != left], batch=3)
        gap = np.abs(whole.replicates - np.stack([rest.typical, rest.largest], 1)).sum((1, 2))
        groups.add(group := int(gap.argmin()))
        assert gap[group] < 1e-9
        assert whole.channel_replicates[group] == pytest.approx(rest.channels[whole.peak, 0], abs=1e-6)
    assert len(groups) == 8


def test_outliers_of_a_single_image_have_no_interval():
    """Without that image there are none, so nothing is known of how their channels vary."""
    x = with_outliers(8)
    x[1:, 0] = 0
    r = sl.analysis.outlier_tokens(planted_model(), x)
    assert r.share.max() > 0
    assert "share of the largest channel" not in r.intervals()
    assert "largest norm over median norm, most" in r.intervals()


def test_intervals_cover_in_small(vit, cnn):
    """Norm ratios, the take-over, the share of a channel, neighbors in common: 60 draws tell 0.95 from 0.8. In full,
    with photographs and more draws: `python -m benchmarks.sentences`."""
    data = scenes(72)
    layers = [bench.pooled(m, data, ident) for m, ident in ((vit, bench.VIT), (cnn, bench.CNN))]
    rows = []
    for p in (
        sentences.of_verdicts(bench.of_residual(*2 * [bench.single(sl.residual_ratios, vit, data, 72)]), 0),
        sentences.of_outliers(planted_model(), with_outliers(72), 3.0),
        sentences.of_neighbors(*layers),
    ):
        rows += sentences.coverage(p, draws=60, n=24)
    covered = {row["number"]: row["covered"] for row in rows}
    wanted = {
        "ratio of the patches, median", "largest norm over median norm, most", "share of the largest channel",
        "mean mutual kNN", "log ratio, class token minus patches, upper half",
    }  # fmt: skip
    assert wanted <= set(covered)
    assert min(covered.values()) >= 0.8, covered
    assert 0.9 <= np.mean(list(covered.values())) <= 0.99, covered


def test_neighbors_lose_more_than_their_own_question():
    """Without a group of images its places among the neighbors go to others: compare with the long way round, all
    neighbors searched again. The spread of the quick way is that of the long one to a third."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(80, 6, generator=g)
    y = x + 0.7 * torch.randn(80, 6, generator=g)
    one, two = (bench.Layers(bench.VIT, {"a": z.double()}) for z in (x, y))
    quick = sentences.of_neighbors(one, two).make(np.arange(80), 40).knn_replicates[:, 0, 0]
    keep = [torch.arange(80) % 40 != g for g in range(40)]
    slow = np.array([sl.analysis.mutual_knn(x[k].double(), y[k].double()) for k in keep])
    assert np.corrcoef(quick, slow)[0, 1] > 0.7
    assert 2 / 3 < quick.std() / slow.std() < 3 / 2


def test_the_small_rules():
    assert of_mean(np.array([1.0])) != of_mean(np.array([1.0, 2.0]))
    assert all(math.isnan(end) for end in (*of_mean(np.ones(5)), *ends(0.5, 0.0), *of_median(np.arange(5.0))))
    assert of_median(np.arange(6.0)) == (0.0, 5.0)
    assert all(math.isnan(end) for end in over_groups(float, (np.array(1.0), np.ones(3))))
    low, high = of_difference(0.8, 0.7, (0.75, 0.85), (0.65, 0.75))
    assert (low, high) == pytest.approx((0.1 - 0.05 * 2**0.5, 0.1 + 0.05 * 2**0.5))


def test_medians_are_covered():
    draws = np.random.default_rng(0).exponential(size=(400, 25))
    held = [low <= math.log(2) <= high for low, high in map(of_median, draws)]
    assert 0.92 <= np.mean(held) <= 0.99
