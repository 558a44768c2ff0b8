"""The same (seed, epoch) gives the same batches, whoever makes them and in whatever order."""

import io
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import sightline as sl

SPEC = sl.ImageSpec(size=(16, 16))
STRONG = sl.data.Augment(randaugment=(2, 10), jitter=(0.4, 0.4, 0.4, 0.1), erase=0.5, mixup=0.2, cutmix=1.0)


def arrays(n=40, size=20, classes=4):
    chance = np.random.default_rng(0)
    images = chance.integers(0, 256, (n, size, size, 3), dtype=np.uint8)
    return sl.data.Arrays(images, np.arange(n) % classes)


def all_of(batches):
    images, labels = zip(*batches)
    return torch.cat(images), torch.cat(labels)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    chance = np.random.default_rng(1)
    for kind in ("a", "b"):
        (root / kind).mkdir()
        for i in range(100):
            size = tuple(int(v) for v in chance.integers(20, 60, 2))
            Image.fromarray(chance.integers(0, 256, (*size, 3), dtype=np.uint8)).save(root / kind / f"{i:03}.jpg")
    return root


@pytest.mark.parametrize("train", [None, sl.data.Augment(), STRONG], ids=["eval", "plain", "strong"])
def test_workers_do_not_change_batches(photos, train):
    d = sl.Folder(photos)
    want = all_of(d.batches(SPEC, batch=48, train=train, seed=3, epoch=2, device=None))
    for workers in (1, 4):
        got = all_of(d.batches(SPEC, batch=48, train=train, seed=3, epoch=2, workers=workers, device=None))
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("train", [None, STRONG], ids=["eval", "strong"])
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_make_the_same_batches(train, world):
    d = arrays(n=50)
    ranks = [list(d.batches(SPEC, batch=8, train=train, rank=r, world=world)) for r in range(world)]
    assert len({len(r) for r in ranks}) == 1, "every rank makes the same number of steps"
    for step, (images, labels) in enumerate(d.batches(SPEC, batch=8, train=train)):
        assert torch.equal(torch.cat([r[step][0] for r in ranks]), images)
        assert torch.equal(torch.cat([r[step][1] for r in ranks]), labels)


def test_evaluation_sees_each_image_once_on_any_number_of_ranks():
    d = arrays(n=37)
    for world in (1, 2, 3, 5):
        seen = [all_of(d.batches(SPEC, batch=10, rank=r, world=world))[1] for r in range(world)]
        assert sum(map(len, seen)) == 37


def test_a_run_taken_up_again_goes_on_with_the_same_batches():
    b = arrays().batches(SPEC, batch=8, train=STRONG, seed=5)
    whole = list(b)
    for start in range(6):
        rest = list(replace(b, start=start))
        assert len(rest) == max(0, 5 - start)
        assert all(torch.equal(x, y) for x, y in zip((i for i, _ in rest), (i for i, _ in whole[start:])))


def test_epochs_and_seeds_differ_and_each_epoch_holds_everything():
    b = arrays().batches(SPEC, batch=8, train=sl.data.Augment())
    rows = {
        (s, e): tuple(i for step in range(5) for i in replace(b, seed=s, epoch=e).indices(step)[0])
        for s in (0, 1)
        for e in (0, 1)
    }
    assert len(set(rows.values())) == 4
    assert all(sorted(r) == list(range(40)) for r in rows.values())


def test_a_small_dataset_fills_a_large_batch():
    images, _ = next(iter(arrays(n=5).batches(SPEC, batch=12, train=sl.data.Augment())))
    assert len(images) == 12
    assert len({i.numpy().tobytes() for i in images}) > 5, "each lap draws its own crops"


def test_repeated_augmentation_shows_an_image_again_with_other_draws():
    b = arrays().batches(SPEC, batch=9, train=sl.data.Augment(repeats=3))
    indices, turns = b.indices(0)
    assert len(set(indices)) == 3
    assert sorted(turns) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_bytes_until_the_device_then_normalized():
    d = arrays(size=16)
    raw, _ = all_of(d.batches(SPEC, batch=8, device=None))
    assert raw.dtype == torch.uint8
    images, _ = all_of(d.batches(SPEC, batch=8, device="cpu"))
    torch.testing.assert_close(images, (raw.float() / 255 - 0.5) / 0.5)


def test_two_models_see_the_same_images_each_in_its_own_way(photos):
    d = sl.Folder(photos)
    small, large = (
        sl.ImageSpec(size=(8, 8)),
        sl.ImageSpec(size=(16, 24), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), fit="squash"),
    )
    for (x, a), (y, b) in zip(d.batches(small, batch=50), d.batches(large, batch=50)):
        assert x.shape[2:] == (8, 8)
        assert y.shape[2:] == (16, 24)
        assert torch.equal(a, b)


def spoil(root, names):
    for name in names:
        path = root / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def copy_of(photos, tmp_path):
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
        for path in (photos / kind).iterdir():
            (tmp_path / kind / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_image_is_named_counted_and_replaced(photos, tmp_path, caplog, workers):
    root = copy_of(photos, tmp_path)
    spoil(root, ["a/007.jpg", "b/099.jpg"])
    b = sl.Folder(root).batches(SPEC, batch=25, workers=workers)
    with caplog.at_level(logging.WARNING, logger="sightline.data"):
        images, labels = all_of(b)
    assert len(images) == 200
    assert sorted(n.rsplit("/", 2)[-1] for n in b.bad) == ["007.jpg", "099.jpg"]
    assert "007.jpg" in caplog.text
    assert torch.equal(images[7], images[8]), "the next readable image of its class"
    assert torch.equal(images[199], images[100]), "round the end"
    assert labels.tolist() == [0] * 100 + [1] * 100


@pytest.mark.parametrize("workers", [0, 2])
def test_more_than_one_percent_bad_stops_with_the_list(photos, tmp_path, workers):
    root = copy_of(photos, tmp_path)
    spoil(root, ["a/001.jpg", "a/002.jpg", "b/050.jpg"])
    with pytest.raises(sl.data.TooManyBad, match=r"3 of 200 .*001.jpg.*002.jpg.*050.jpg") as caught:
        all_of(sl.Folder(root).batches(SPEC, batch=200, train=sl.data.Augment(), workers=workers))
    assert len(caught.value.bad) == 3


def test_a_class_without_a_readable_image_stops(tmp_path):
    (tmp_path / "a").mkdir()
    for i in range(3):
        (tmp_path / "a" / f"{i}.png").write_bytes(b"no image")
    with pytest.raises(sl.data.TooManyBad):
        all_of(sl.Folder(tmp_path).batches(SPEC, batch=3))


@given(st.integers(1, 60), st.integers(1, 20), st.sampled_from([1, 2, 3]))
def test_rows_cover_an_evaluation_exactly(n, batch, world):
    d = arrays(n=n)
    rows = [
        i
        for step in range(-(-n // batch))
        for r in range(world)
        for i in d.batches(SPEC, batch=batch, rank=r, world=world).indices(step)[0]
    ]
    assert rows == list(range(n))


@pytest.mark.parametrize(
    "bad",
    [
        {"batch": 0},
        {"rank": 2, "world": 2},
        {"batch": 5, "world": 2, "train": sl.data.Augment()},
        {"start": -1},
        {"workers": -1},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=r"."):
        arrays().batches(SPEC, **{"batch": 4, **bad})


def test_a_sixteen_bit_image_keeps_its_range(tmp_path):
    Image.fromarray(np.full((4, 4), 65535, np.uint16)).save(tmp_path / "w.png")
    data = io.BytesIO((tmp_path / "w.png").read_bytes())
    assert Image.open(data).mode.startswith("I")
    assert sl.open_images(tmp_path / "w.png", SPEC).min() == 1
