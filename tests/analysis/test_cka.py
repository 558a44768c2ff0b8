"""CKA: the laws of the measure, the streaming of it, and what it does with bad input (E12)."""

import gc
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from sightline.analysis.similarity.measures import SLICE, gram
from sightline.observe.images import ImageSource
from sightline.observe.model import observe

X = torch.tensor([[1.0, 0], [0, 1], [1, 1], [2, 0], [0, 2], [2, 1]])
Y = torch.tensor([[1.0], [2], [3], [4], [5], [7]])


def features(seed, rows=40, wide=30):
    return torch.randn(rows, wide, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_oracles():
    """paper-facts 4.2, to the digits given."""
    assert sl.analysis.hsic(X, Y, biased=True) == pytest.approx(1.1777778, abs=5e-8)
    assert sl.analysis.hsic(X, X, biased=True) == pytest.approx(1.2811111, abs=5e-8)
    assert sl.analysis.hsic(Y, Y, biased=True) == pytest.approx(21.7777778, abs=5e-8)
    assert sl.analysis.linear_cka(X, Y, biased=True) == pytest.approx(0.2229786, abs=5e-8)
    assert sl.analysis.hsic(X, Y) == pytest.approx(0.1111111, abs=5e-8)
    assert sl.analysis.hsic(X, X) == pytest.approx(0.9888889, abs=5e-8)
    assert sl.analysis.hsic(Y, Y) == pytest.approx(16.3333333, abs=5e-8)
    assert sl.analysis.linear_cka(X, Y) == pytest.approx(0.0276469, abs=5e-8)


def song(k, l):
    """The formula as Song et al. write it."""
    n = len(k)
    k, l = k - torch.diag(k.diagonal()), l - torch.diag(l.diagonal())
    one = torch.ones(n, dtype=k.dtype)
    cross = (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (one @ k @ l @ one)
    return ((k @ l).trace() + cross) / (n * (n - 3))


@given(seed=st.integers(0, 1000), rows=st.integers(4, 80), wide=st.integers(1, 40))
def test_u_centering_is_songs_formula(seed, rows, wide):
    x, y = features(seed, rows, wide), features(seed + 1, rows, wide)
    want = song(x @ x.mT, y @ y.mT)
    assert sl.analysis.hsic(x, y) == pytest.approx(want.item(), abs=1e-9 * wide)


@given(seed=st.integers(0, 1000), scale=st.floats(0.01, 100), shift=st.floats(-1e3, 1e3))
def test_invariances(seed, scale, shift):
    x, y = features(seed), features(seed + 1) + features(seed)
    turn = torch.linalg.qr(features(seed + 2, 30, 30)).Q
    want = sl.analysis.linear_cka(x, y)
    assert sl.analysis.linear_cka(x, x) == pytest.approx(1)
    assert sl.analysis.linear_cka(y, x) == pytest.approx(want)
    assert sl.analysis.linear_cka(x @ turn * scale + shift, y) == pytest.approx(want, abs=1e-9)
    assert (
        abs(sl.analysis.linear_cka(x * torch.linspace(0.01, 10, 30), y) - want) > 1e-3
    )  # a general linear map changes it


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [0.0, 3.0, 30.0, 1e3])
def test_a_shared_mean_changes_nothing(dtype, shift):
    from sightline.analysis.similarity.measures import gram, u_center

    x = features(0, 128, 400)
    y = x @ features(1, 400, 300) / 20

    def cka(x, y):
        k, l = u_center(gram(x.to(dtype))).flatten(), u_center(gram(y.to(dtype))).flatten()
        return (k @ l / (k.norm() * l.norm())).item()

    assert cka(x + shift, y - 2 * shift) == pytest.approx(cka(x, y), abs=1e-5 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("threads", [1, 2])  # by NumPy, by torch
@pytest.mark.parametrize("rows", [5, 63, 128])
@pytest.mark.parametrize("shift", [0.0, 0.5, 50.0])
def test_the_gram_matrix_of_centered_features(threads, rows, shift, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    x = features(rows, rows, SLICE + 1000) + shift  # more than one slice
    want = (x - x.mean(0)) @ (x - x.mean(0)).mT
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for dtype, close in ((torch.float64, 1e-12), (torch.float32, 5e-6)):  # 7e-7 on some CPUs
            got = gram(x.to(dtype))
            assert got.dtype == torch.float64
            assert ((got - want).abs().max() / want.diagonal().mean()).item() < close
        half = x.bfloat16()
        torch.testing.assert_close(gram(half), gram(half.float()), rtol=0, atol=0)  # products are not rounded to it
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("told", "threads", "by_numpy"),
    [({}, 1, False), ({"OMP_NUM_THREADS": "1"}, 1, True), ({"OMP_NUM_THREADS": "1"}, 2, False),
     ({"OPENBLAS_NUM_THREADS": "1"}, 1, True), ({"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "1"}, 1, False)],
)  # fmt: skip
def test_numpy_multiplies_only_where_it_has_one_thread(told, threads, by_numpy, monkeypatch):
    """Its threads spin beside the model: four tests of this file took 40 s of processor time instead of 6."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    calls = []
    dot = np.dot
    monkeypatch.setattr(np, "dot", lambda a, b: calls.append(1) or dot(a, b))
    torch.set_num_threads(threads)  # every test begins with one again
    gram(features(0))
    assert bool(calls) == by_numpy


def test_unrelated_features_are_unlike_only_without_bias():
    draws = [(features(2 * i, 32, 20), features(2 * i + 1, 32, 20)) for i in range(300)]
    unbiased = np.array([sl.analysis.linear_cka(x, y) for x, y in draws])
    biased = np.mean([sl.analysis.linear_cka(x, y, biased=True) for x, y in draws])
    assert biased == pytest.approx(0.389, abs=0.01)
    assert abs(unbiased.mean()) < 3 * unbiased.std() / 300**0.5 + 0.005
    assert (unbiased < 0).any()  # nothing is clamped


@pytest.mark.parametrize("rows", [32, 128])
def test_far_more_features_than_rows(rows):
    """p = 10,000: the biased estimate finds unrelated features alike (0.997 and 0.987), the unbiased one does not."""
    draws = [(features(2 * i, rows, 10_000), features(2 * i + 1, rows, 10_000)) for i in range(8)]
    assert min(sl.analysis.linear_cka(x, y, biased=True) for x, y in draws[:2]) > 0.98
    assert abs(np.mean([sl.analysis.linear_cka(x, y) for x, y in draws])) < 0.04


@given(seed=st.integers(0, 100), shift=st.floats(-100, 100), scale=st.floats(0.1, 10))
def test_mutual_neighbors(seed, shift, scale):
    x, y = features(seed), features(seed + 1)
    assert sl.analysis.mutual_knn(x, scale * x + shift, k=5, metric="euclidean") == 1
    assert sl.analysis.mutual_knn(x, scale * x, k=5) == 1
    unit = torch.nn.functional.normalize(x, dim=1)
    assert sl.analysis.mutual_knn(x, unit, k=5) == 1  # cosine: the length of a row does not count
    assert sl.analysis.mutual_knn(x, y, k=5) == sl.analysis.mutual_knn(
        unit, torch.nn.functional.normalize(y, dim=1), k=5, metric="euclidean"
    )  # on the sphere the nearest by distance are the nearest by angle
    assert sl.analysis.mutual_knn(x, y, k=5) == sl.analysis.mutual_knn(y, x, k=5)
    assert sl.analysis.mutual_knn(x, y, k=39) == 1  # all the others


@pytest.mark.parametrize("shift", [3.0, 100.0, 3e3])
def test_neighbors_by_cosine_keep_their_digits(vit, shift):
    """Features that share a large mean, as those of large ViTs do: cosines differ in digits that float32 has not."""
    one, two = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).unbind()
    paths = "blocks.0.mlp_sum", "blocks.1.mlp_sum"
    hooks = [
        vit.get_submodule(p).register_forward_hook(lambda m, a, out, v=v: out + shift * v)
        for p, v in zip(paths, (one, two))
    ]
    images = torch.rand(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    try:
        found = sl.cka(vit, None, images, layers=list(paths), batch=24)
        with torch.no_grad(), sl.record(vit, *paths) as tape:
            vit(next(iter(ImageSource(data=images, batch=24).batches([observe(vit)]))).images[0])
    finally:
        for hook in hooks:
            hook.remove()
    want = sl.analysis.mutual_knn(*(tape[p].flatten(1).double() for p in paths))
    assert found.knn[0, 1] == pytest.approx(want, abs=0.01)  # of 240 neighbors, two that are as near as others


def test_refused():
    with pytest.raises(ValueError, match="at least 4 rows"):
        sl.analysis.hsic(X[:3], Y[:3])
    with pytest.raises(ValueError, match="same rows"):
        sl.analysis.linear_cka(X, Y[:4])
    with pytest.raises(ValueError, match="NaN"):
        sl.analysis.linear_cka(X * torch.nan, Y)
    with pytest.raises(ValueError, match="k lies between"):
        sl.analysis.mutual_knn(X, Y, k=6)
    with pytest.raises(ValueError, match="'cosine' or 'euclidean'"):
        sl.analysis.mutual_knn(X, Y, k=2, metric="manhattan")
    assert np.isnan(sl.analysis.linear_cka(X, torch.ones(6, 2)))


@pytest.fixture(scope="module")
def vit():
    return sl.build("vit-nano4", classes=10, depth=3)


@pytest.fixture(scope="module")
def cnn():
    return sl.build("bit-nano", classes=10)


@pytest.fixture(scope="module")
def make_images():
    return sl.dataset("scenes/objects", num=96, size=32)


def test_streamed_equals_features_held_at_once(vit, cnn, make_images):
    found = sl.cka(vit, cnn, make_images, layers="blocks", batch=96)
    images = torch.cat([x for x, _ in make_images.batches(vit.image, batch=96)])
    with torch.no_grad(), sl.record(vit, *found.rows) as a, sl.record(cnn, *found.columns) as b:
        vit(images), cnn(images)
    for i, row in enumerate(found.rows):
        for j, column in enumerate(found.columns):
            x, y = a[row].flatten(1), b[column].flatten(1)
            assert found.similarity[i, j] == pytest.approx(sl.analysis.linear_cka(x, y), abs=1e-5)
            assert found.knn[i, j] == pytest.approx(sl.analysis.mutual_knn(x, y, k=10), abs=0.02)


def ragged(x, y, batch):
    """CKA of features by Song's formula, batch after batch; a batch of m weighs m(m-3)."""
    pairs = [(a, b) for a, b in zip(x.split(batch), y.split(batch)) if len(a) >= 4]

    def total(of):
        return sum(len(a) * (len(a) - 3) * song(*of(a @ a.mT, b @ b.mT)).item() for a, b in pairs)

    own = total(lambda k, l: (k, k)) * total(lambda k, l: (l, l))
    return total(lambda k, l: (k, l)) / own**0.5


@pytest.fixture(scope="module")
def two_layers(vit):
    """Images, and what two layers make of them in float64."""
    images = torch.rand(100, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    names = ("blocks.0.mlp_sum", "blocks.2.mlp_sum")
    with torch.no_grad(), sl.record(vit, *names) as tape:
        vit(images)
    return images, names, [tape[name].flatten(1).double() for name in names]


@settings(max_examples=30)
@given(n=st.integers(8, 60), batch=st.integers(4, 60))
def test_a_batch_of_m_weighs_m_times_m_minus_3(vit, two_layers, n, batch):
    images, names, (x, y) = two_layers
    found = sl.cka(vit, None, images[:n], layers=names, batch=batch)
    assert found.similarity[0, 1] == pytest.approx(ragged(x[:n], y[:n], batch), abs=1e-4)
    np.testing.assert_allclose(found.similarity.diagonal(), 1, atol=1e-9)


def test_a_short_last_batch_changes_little(vit, two_layers):
    """100 images in batches of 96: four more images cannot move what ninety-six say."""
    images, names, _ = two_layers
    whole, parted = (sl.cka(vit, None, images, layers=names, batch=b) for b in (100, 96))
    np.testing.assert_allclose(parted.similarity, whole.similarity, atol=0.02)
    np.testing.assert_allclose(
        parted.knn.diagonal(), 1
    )  # a batch too small for neighbors is not counted as having none


def test_within_one_model(vit, make_images):
    found = sl.cka(vit, None, make_images, batch=32)
    assert found.rows == found.columns
    assert len(found.rows) == 3 * 6 + 2  # Raghu et al.: about six per block
    np.testing.assert_allclose(found.similarity, found.similarity.T, atol=1e-12)
    np.testing.assert_allclose(found.similarity.diagonal(), 1, atol=1e-12)
    np.testing.assert_allclose(found.knn.diagonal(), 1)
    again = sl.cka(vit, vit, make_images, batch=32)
    np.testing.assert_array_equal(again.similarity, found.similarity)
    assert found.how["n"] == 96


def test_stable_over_batch_sizes_and_orders():
    """A known pair of layers: the unbiased value stays, whatever the batch; the order of images does not matter."""
    vit = sl.build("vit-nano4", classes=0, depth=2)
    data = torch.cat([x for x, _ in sl.dataset("scenes/objects", num=512, size=32).batches(vit.image, batch=128)])
    values = [sl.cka(vit, None, data, layers="blocks", tokens="gap", batch=b).similarity[0, 1] for b in (16, 128, 512)]
    assert max(values) - min(values) < 0.01
    order = torch.randperm(512, generator=torch.Generator().manual_seed(5))
    mixed = sl.cka(vit, None, data[order], layers="blocks", tokens="gap", batch=256)
    assert mixed.similarity[0, 1] == pytest.approx(values[1], abs=0.01)
    whole = sl.cka(vit, None, data.flip(0), layers="blocks", tokens="gap", batch=512)
    assert whole.similarity[0, 1] == pytest.approx(values[2], abs=1e-6)


def test_repeats_are_averaged(vit, cnn, make_images):
    found = sl.cka(vit, cnn, make_images, layers="blocks", batch=24, n=72, repeats=4, seed=3)
    assert (found.band > 0).all()
    whole = sl.cka(vit, cnn, make_images, layers="blocks", batch=96)
    inside = np.abs(whole.similarity - found.similarity) < found.band + 0.02
    assert inside.mean() > 0.8
    again = sl.cka(vit, cnn, make_images, layers="blocks", batch=24, n=72, repeats=4, seed=3)
    np.testing.assert_array_equal(again.similarity, found.similarity)
    np.testing.assert_array_equal(again.replicates, found.replicates)


@pytest.mark.parametrize("tokens", ["all", "cls", "patches", "gap", 5])
def test_token_choices(vit, make_images, tokens):
    found = sl.cka(vit, None, make_images, layers="blocks", tokens=tokens, batch=96)
    images = torch.cat([x for x, _ in make_images.batches(vit.image, batch=96)])
    with torch.no_grad(), sl.record(vit, *found.rows) as tape:
        vit(images)
    pick = {
        "all": lambda t: t,
        "cls": lambda t: t[:, 0],
        "patches": lambda t: t[:, 1:],
        "gap": lambda t: t[:, 1:].mean(1),
        5: lambda t: t[:, 6],
    }[tokens]
    want = sl.analysis.linear_cka(pick(tape[found.rows[0]]), pick(tape[found.rows[1]]))
    assert found.similarity[0, 1] == pytest.approx(want, abs=1e-5)


def test_what_is_undefined_has_a_reason(vit, cnn, make_images):
    found = sl.cka(vit, cnn, make_images, layers=("all", "blocks"), tokens=("cls", "gap"), batch=48)
    assert "same for every image" in found.reasons["encoder_input"]  # the class token has seen nothing yet
    assert np.isnan(found.similarity[0]).all()
    assert np.isfinite(found.similarity[-1]).all()
    none = sl.cka(vit, cnn, make_images, layers="blocks", tokens="cls", batch=48)
    assert all("no class token" in none.reasons[c] for c in none.columns)
    assert np.isnan(none.similarity).all()


def test_a_last_batch_under_four_is_dropped_with_notice(vit, make_images, caplog):
    found = sl.cka(vit, None, make_images.subset(indices=np.arange(35)), layers="blocks", batch=16)
    assert found.how["n"] == 32
    assert found.how["dropped"] == 3
    assert "fewer than 4" in caplog.text
    with pytest.raises(ValueError, match="at least 4"):
        sl.cka(vit, None, make_images.subset(indices=[0, 1, 2]), batch=16)


def test_each_model_prepares_its_own_images(make_images):
    small, large = sl.build("vit-nano4", classes=0, depth=1), sl.build("bit-nano", classes=0, size=64)
    found = sl.cka(small, large, make_images, layers="blocks", batch=32)
    assert np.isfinite(found.similarity).all()
    bytes_ = np.stack([make_images[i][0] for i in range(32)])
    for data in (bytes_, list(bytes_), (image for image in bytes_), torch.from_numpy(bytes_).permute(0, 3, 1, 2)):
        other = sl.cka(small, large, data, layers="blocks", batch=32)
        want = sl.cka(small, large, make_images.subset(indices=np.arange(32)), layers="blocks", batch=32)
        np.testing.assert_allclose(other.similarity, want.similarity, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": "median"}, "tokens is"),
        ({"tokens": True}, "tokens is"),
        ({"layers": "nothing.*"}, "matches 'nothing"),
        ({"layers": []}, "layers is empty"),
        ({"batch": 0}, "batch must be"),
        ({"repeats": 0}, "repeats is"),
        ({"n": -1}, "n must be"),
        ({"data": []}, "no images"),
        ({"data": 5}, "Images must be"),
        ({"data": torch.rand(5, 3, 16, 16)}, "Preprocessed images"),
        ({"data": torch.full((8, 3, 32, 32), torch.nan)}, "NaN"),
        ({"data": np.zeros((5, 32, 32))}, "four dimensions"),
        ({"data": iter(torch.rand(8, 3, 32, 32)), "repeats": 2}, "only once"),
        ({"b": "vit-b16"}, "A model is expected"),
        ({"ways": ["whitened"]}, "ways is 'all' or some of"),
        ({"neighbors": "manhattan"}, "'cosine' or 'euclidean'"),
    ],
)
def test_errors_say_what_to_do(vit, make_images, change, message):
    settings = {"b": None, "data": make_images, "layers": "blocks", **change}
    with pytest.raises(ValueError, match=message):
        sl.cka(vit, settings.pop("b"), settings.pop("data"), **settings)


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_nothing_stays_behind_after_an_exception(vit, cnn):
    vit.train()

    def broken():
        yield from torch.rand(40, 3, 32, 32)
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="disk"):
        sl.cka(vit, cnn, broken(), batch=8)
    assert hooks(vit) == hooks(cnn) == 0
    assert vit.training
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    vit.eval()


def test_memory_does_not_grow_with_images(vit):
    def peak(count):
        stream = (np.full((32, 32, 3), i % 251, np.uint8) for i in range(count))
        gc.collect()
        tracemalloc.start()
        sl.cka(vit, None, stream, layers="blocks", batch=16)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(64)
    assert peak(384) < peak(64) + 500_000  # the images alone are 1.2 MB; a progress bar may come in


PEAK = """
import numpy as np, sightline as sl
from benchmarks.race import high_water
vit = sl.build("vit-nano4", classes=10)
for count in (40, 200):
    stream = lambda: (np.full((32, 32, 3), i % 251, np.uint8) + np.uint8(i % 3) for i in range(count))
    sl.cka(vit, None, stream(), batch=16)
    sl.attention_distance(vit, stream()), sl.residual_ratios(vit, stream())
    print(high_water())
"""


def test_resident_memory_does_not_grow_with_images():
    """Peak resident memory of a process of its own; the features of 200 images would be 115 MiB."""
    run = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    few, many = map(float, run.stdout.split())
    assert many < few + 25


def test_saved_and_loaded(vit, make_images, tmp_path):
    found = sl.cka(vit, None, make_images, layers="blocks", batch=32)
    again = sl.Result.load(found.save(tmp_path / "cka.npz"))
    np.testing.assert_array_equal(again.similarity, found.similarity)
    assert again.rows == found.rows
    assert again.how == found.how
    assert again.summary().keys() == found.summary().keys()
