"""CKA in four ways, its interval over images, and images that are the same."""

import copy
import itertools
import json
import logging

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.analysis.similarity.grams import Grams
from sightline.analysis.similarity.measures import gram, u_center
from sightline.analysis.similarity.sums import CALIBRATED, LEAN, WITHIN, PairSums, Sums
from sightline.analysis.similarity.ways import ordinary_images, permuted, top_channels, within_class
from sightline.data.draws import hash_key, permute
from sightline.evals.interval import jackknife
from sightline.observe.groups import ImageGroups
from sightline.observe.model import observe
from sightline.observe.twin import reset, untrained

WAYS = ("calibrated", "within class", "without outliers")


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def grams(*features):
    return Grams({str(i): gram(x) for i, x in enumerate(features)})


def ratio(x, y):
    return ((x * y).sum() / ((x * x).sum() * (y * y).sum()).sqrt()).item()


@pytest.mark.parametrize("m", [5, 6])
def test_the_null_of_unbiased_cka_is_known(m):
    """Over all permutations its mean is 0 and its variance 2 / (m (m - 3)), whatever the features are."""
    x, y = (u_center(gram(normal(seed, m, 3).abs())) for seed in (0, 1))
    null = [ratio(x, y[list(p)][:, list(p)]) for p in itertools.permutations(range(m))]
    assert np.mean(null) == pytest.approx(0, abs=1e-12)
    assert np.var(null) == pytest.approx(2 / (m * (m - 3)), abs=1e-12)


@pytest.mark.parametrize("m", [8, 33, 120])
def test_shifts_are_permutations(m):
    """Each of the 99 is the inner product with the matrix whose images were permuted, found by trying all shifts."""
    x, y = (torch.stack([u_center(gram(normal(seed + i, m, 4))) for i in range(2)]) for seed in (0, 10))
    found = permuted(x, y, seed=3, batch=0)
    assert found.shape == (99, 2, 2)
    order = permute(m, hash_key(3, "shifts", 0, 0), np.arange(m))
    place = np.argsort(order)
    for s in 1 + permute(m - 1, hash_key(3, "shift", 0, 0), np.arange(3)):
        to = torch.from_numpy(order[(place + s) % m])
        want = torch.einsum("aij,bij->ab", x, y[:, to][:, :, to]).float()
        assert torch.isclose(found, want, atol=1e-3).all((1, 2)).any()


def test_batches_are_small_where_only_the_printed_value_is_asked_for():
    model, images = sl.build("vit-nano4", classes=3, depth=1), torch.rand(140, 3, 32, 32)
    plain, more = (sl.cka(model, None, images, layers="blocks", ways=w) for w in ((), "within class"))
    assert plain.how["batch"] == 64
    assert "batches of 64" in plain.caption
    assert more.how["batch"] == 128
    assert (more.how["n"], more.how["dropped"]) == (140, 0)
    given = sl.cka(model, None, images, layers="blocks", batch=128)
    assert np.array_equal(given.similarity, more.similarity)  # which a way beside it does not change
    with pytest.raises(ValueError, match="batch must be a positive whole number; got 0"):
        sl.cka(model, None, images, batch=0)


def test_calibrated(vit, images):
    """Unrelated features have p of any size, the layers of one network the smallest there is."""
    found = sl.cka(vit, None, images, layers="blocks", ways=["calibrated"], batch=48)
    assert (found.p == 0.01).all()
    np.testing.assert_allclose(found.null_std, (2 / (48 * 45) / 2) ** 0.5, rtol=0.4)
    np.testing.assert_allclose(found.way("calibrated"), found.similarity, atol=0.02)  # an unbiased null has mean 0
    want = (found.similarity - found.null_mean) / (1 - found.null_mean)
    np.testing.assert_allclose(found.way("calibrated"), want)


@pytest.mark.parametrize("n", [32, 128])
def test_unrelated_features_are_found_alike_in_5_percent_of_cases(n):
    """12 x 12 pairs of independent layers of few and of many features, three draws: about 5 % of 432; the benchmark
    goes on to 1,024 images and thousands of pairs."""
    hits = []
    for draw in range(3):
        a, b = (
            [normal(1000 * draw + side + i, n, wide) for i, wide in enumerate((2, 5, 20, 100) * 3)] for side in (0, 500)
        )
        sums = Sums(list(map(str, range(12))), list(map(str, range(12))), ways=[CALIBRATED], seed=draw)
        sums.add(n, grams(*a), grams(*b))
        p = 1 + (sums.null_cka() >= sums.cka()).sum(0)
        hits.append((p <= 5).double())
    assert torch.stack(hits).mean() < 0.085


def test_within_class_forgets_the_classes():
    """Two sets of features that share their classes and nothing else: alike as printed, unrelated within class."""
    values = {"printed": [], "within class": []}
    for draw in range(20):
        labels = torch.arange(60) % 6
        centers = normal(draw, 6, 8) * 3
        x, y = (centers[labels] + normal(100 * draw + side, 60, 8) for side in (1, 2))
        sums = Sums(["0"], ["0"], ways=[WITHIN])
        sums.add(60, grams(x), grams(y), labels=labels)
        for way, found in values.items():
            found.append(sums.ways[way].cka().item())
    assert np.mean(values["printed"]) > 0.8
    assert abs(np.mean(values["within class"])) < 0.05
    shared = normal(7, 60, 8)
    sums = Sums(["0"], ["0"], ways=[WITHIN])
    sums.add(60, grams(centers[labels] + shared), grams(centers.flip(0)[labels] + shared), labels=labels)
    assert sums.ways["within class"].cka().item() > 0.9


@pytest.mark.parametrize("sizes", [(2,) * 15, (5,) * 6, (1, 2, 3, 4, 20), (30,)])
def test_within_class_is_unbiased_whatever_the_classes(sizes):
    """Independent features: inner products around 0. Plain centering per class is off by many standard errors."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    found, plain = [], []
    for draw in range(80):
        k, l = (gram(normal(draw + seed, 30, 50))[None] for seed in (0, 10_000))
        found.append((within_class(k, labels) * within_class(l, labels)).sum().item())
        residuals = [normal(draw + seed, 30, 50) for seed in (0, 10_000)]
        for x in residuals:
            for c in labels.unique():
                x[labels == c] -= x[labels == c].mean(0)
        plain.append((u_center(gram(residuals[0])) * u_center(gram(residuals[1]))).sum().item())
    assert abs(np.mean(found)) < 3.5 * np.std(found) / 80**0.5
    if max(sizes) < 10:
        assert np.mean(plain) > 5 * np.std(plain) / 80**0.5


def test_without_outliers_two_images_decide_nothing():
    """Unrelated features, alike because of two extreme images; one alone has no pair to be alike with."""
    x, y = normal(0, 200, 40), normal(1, 200, 40)
    x[[3, 8]] += 50
    y[[3, 8]] += 50
    keep = ordinary_images(torch.stack([gram(x), gram(y)])).tolist()
    assert len(keep) == 198
    assert not {3, 8} & set(keep)
    sums = Sums(["0"], ["0"], ways=[LEAN])
    a, b = grams(x), grams(y)
    a.lean, b.lean = a.whole, b.whole
    sums.add(200, a, b)
    assert sums.cka().item() > 0.9
    assert abs(sums.ways[LEAN].cka().item()) < 0.1
    x[:, 7] *= 100
    assert top_channels(x[:, None]).tolist() == [7]


def test_channels_are_left_out_of_a_model(vit, images):
    """A model with one massive channel: CKA with another is that channel's alone, unless it is left out."""
    massive = copy.deepcopy(vit)
    with torch.no_grad():
        massive.embed.proj.weight[5] *= 300
    first = "encoder_input"
    found = sl.cka(vit, massive, images, layers=(first, first), tokens="patches", batch=96, ways=["without outliers"])
    assert found.way("without outliers")[0, 0] > found.similarity[0, 0] + 0.1
    with torch.no_grad(), sl.record(massive, first) as tape:
        massive(torch.cat([x for x, _ in images.batches(vit.image, batch=96)]))
    assert top_channels(tape[first][:, 1:]).tolist() == [5]


@pytest.fixture(scope="module")
def vit():
    return sl.build("vit-nano4", classes=10, depth=2)


@pytest.fixture(scope="module")
def images():
    return sl.dataset("scenes/objects", num=96, size=32)


def test_all_ways_at_once_and_saved(vit, images, tmp_path):
    found = sl.cka(vit, sl.build("bit-nano", classes=0), images, layers="blocks", ways="all", batch=48)
    assert found.ways == ("within class", "without outliers", "untrained")
    again = sl.Result.load(found.save(tmp_path / "cka.npz"))
    for way in ("printed", *WAYS, "untrained"):
        assert np.isfinite(again.way(way)).all()
        np.testing.assert_array_equal(again.way(way), found.way(way))
        assert again.replicates_of(way).shape == (64, *found.similarity.shape)
        np.testing.assert_allclose(again.replicates_of(way).mean(0), found.way(way), atol=0.05)
    assert (found.way("untrained") != found.similarity).any()
    one, other = (sl.build("vit-nano4", depth=2, seed=seed) for seed in (1, 2))
    twins = sl.cka(one, other, images, layers="blocks", ways=["untrained"], batch=48).way("untrained")
    assert (twins < 0.999).all()  # two architectures alike, two different initializations
    plain = sl.cka(vit, sl.build("bit-nano", classes=0), images, layers="blocks", batch=48)
    np.testing.assert_array_equal(plain.similarity, found.similarity)
    assert not plain.has("within class")
    with pytest.raises(ValueError, match="ways='all'"):
        plain.way("within class")


def test_files_of_version_0_2_0_load(vit, images, tmp_path):
    """They hold no other ways and no replicates: nothing has an interval, and the ways say how to get them."""
    found = sl.cka(vit, None, images.subset(indices=np.arange(16)), layers="blocks")
    new = {"ways", "values", "replicates", "p", "null_mean", "null_std"}
    with np.load(found.save(tmp_path / "new.npz")) as file:
        held = {k: file[k] for k in file.files if k not in new}
    head = json.loads(str(held["__head__"]))
    head["values"] = {k: v for k, v in head["values"].items() if k not in new}
    np.savez(tmp_path / "old.npz", **held | {"__head__": np.array(json.dumps(head))})
    old = sl.Result.load(tmp_path / "old.npz")
    np.testing.assert_array_equal(old.similarity, found.similarity)
    assert old.replicates_of("printed").shape == (0, *found.similarity.shape)
    assert not any(old.has(way) for way in WAYS)
    assert old.summary()["mean"] == found.summary()["mean"]


def test_without_labels_there_are_no_classes(vit, images):
    bare = np.stack([images[i][0] for i in range(24)])
    found = sl.cka(vit, None, bare, layers="blocks", ways="all")
    assert not found.has("within class")
    assert "no labels" in found.how["left out"]


def test_the_untrained_twin(vit):
    s = observe(vit)
    first, again, other = (untrained(s, seed=seed).model.embed.proj.weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    before = torch.get_rng_state()
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2, 2), torch.nn.BatchNorm2d(4))
    net[1].running_mean += 3
    trained, state = net[0].weight.clone(), torch.get_rng_state()
    reset(net, 3)
    assert not torch.equal(net[0].weight, trained)
    assert not net[1].running_mean.any()
    assert torch.equal(torch.get_rng_state(), state)  # and the user's random numbers go on as before
    torch.set_rng_state(before)


def exact(x, y, batch, groups, g):
    """CKA without a group, computed again from the features."""
    sums = PairSums(1, 1)
    for a, b, of in zip(x.split(batch), y.split(batch), groups.split(batch)):
        sums.add(u_center(gram(a[of != g]))[None], u_center(gram(b[of != g]))[None])
    return sums.cka().item()


@pytest.mark.parametrize("batch", [40, 120])
def test_replicates_are_what_is_left_without_a_group(batch):
    x = normal(0, 120, 30)
    y = x @ normal(1, 30, 20) + 3 * normal(2, 120, 20)
    groups = torch.from_numpy(ImageGroups(120, 0)(np.arange(120)))
    sums = PairSums(1, 1, 20)
    for a, b, of in zip(x.split(batch), y.split(batch), groups.split(batch)):
        sums.add(u_center(gram(a))[None], u_center(gram(b))[None], of)
    left = sums.without_groups()[:, 0, 0].numpy()
    want = np.array([exact(x, y, batch, groups, g) for g in range(20)])
    assert np.abs(left - want).max() < 0.15 * np.ptp(want)
    assert jackknife(left) == pytest.approx(jackknife(want), rel=0.15)


def test_groups_are_equal_random_and_stay():
    groups = ImageGroups(100, 5)
    order = np.random.default_rng(0).permutation(1000)[:100]
    first = groups(order)
    assert np.bincount(first).tolist() == [5] * 20
    assert (np.diff(first) % 20 != 1).any()
    np.testing.assert_array_equal(groups(order[::-1]), first[::-1])
    np.testing.assert_array_equal(ImageGroups(100, 5)(order), first)
    assert ImageGroups(7, 0).count == 7


def test_intervals_of_cka_cover():
    """150 draws of 80 of 600 images: the value of all images lies within the interval in 90 to 99 % of them.

    Features of a network on real images; the benchmark does it for photographs, all ways and claims.
    """
    vit = sl.build("vit-nano4", classes=10, depth=2)
    data = sl.dataset("scenes/objects", num=600, size=32)
    tape = sl.extract(vit, data, layers=[0, 1], tokens="gap")
    x, y = (tape.layers[name].double() for name in tape.layers)
    k, l = gram(x), gram(y)
    truth = ratio(u_center(k), u_center(l))
    hits = 0
    for draw in range(150):
        rows = torch.from_numpy(np.random.default_rng(draw).permutation(600)[:80])
        sums = PairSums(1, 1, 20)
        for part in rows.split(40):
            of = torch.arange(20).repeat(2)
            sums.add(u_center(k[part][:, part])[None], u_center(l[part][:, part])[None], of)
        half = jackknife(sums.without_groups().numpy())[0, 0] * (1 - 80 / 600) ** 0.5  # of a finite population
        hits += abs(sums.cka().item() - truth) < half
    assert 0.9 <= hits / 150 <= 0.99


def test_the_same_image_twice_is_left_out(vit, images, caplog):
    once = np.stack([images[i][0] for i in range(24)])
    twice = np.concatenate([once, once[:12]])
    with caplog.at_level(logging.WARNING):
        found = sl.cka(vit, None, twice, layers="blocks", batch=36)
    assert "12 images are the same" in caplog.text
    assert found.how["duplicates"] == 12
    want = sl.cka(vit, None, once, layers="blocks", batch=24)
    np.testing.assert_allclose(found.similarity, want.similarity, atol=1e-9)
    assert sl.localization(vit, twice, batch=36).how["n"] == 24
    with pytest.raises(ValueError, match="different images"):
        sl.cka(vit, None, np.repeat(once[:2], 8, axis=0), layers="blocks")


def test_batches_stay_full_where_images_are_left_out(vit, images):
    """Every image three times in a row, eight at a time: three different ones in a batch would be too few."""
    pairs = [images[i] for i in range(20)]
    thrice = [pair for pair in pairs for _ in range(3)]
    found, want = (sl.cka(vit, None, data, layers="blocks", batch=8, ways=["within class"]) for data in (thrice, pairs))
    assert (found.how["n"], found.how["dropped"], found.how["duplicates"]) == (20, 0, 40)
    np.testing.assert_allclose(found.similarity, want.similarity, atol=1e-9)
    np.testing.assert_allclose(found.values, want.values, atol=1e-9)


@pytest.mark.parametrize("neighbors", ["cosine", "euclidean"])
def test_neighbors_by_either_metric(vit, images, neighbors):
    found = sl.cka(vit, None, images, layers="blocks", tokens="gap", batch=96, neighbors=neighbors)
    pixels = torch.cat([x for x, _ in images.batches(vit.image, batch=96)])
    with torch.no_grad(), sl.record(vit, *found.rows) as tape:
        vit(pixels)
    x, y = (tape[name][:, 1:].mean(1) for name in found.rows)
    want = sl.analysis.mutual_knn(x, y, metric=neighbors)
    assert found.knn[0, 1] == pytest.approx(want, abs=0.01)
    assert found.how["neighbors by"] == neighbors
