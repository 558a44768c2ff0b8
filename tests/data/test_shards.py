"""Shards: WebDataset's format both ways, exact order, and honesty about damage."""

import io
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

import sightline as sl

SPEC = sl.ImageSpec(size=(32, 32))


@pytest.fixture(scope="module")
def scenes():
    return sl.dataset("scenes/shape", num=230, size=32)


@pytest.fixture(scope="module")
def folder(scenes, tmp_path_factory):
    out = tmp_path_factory.mktemp("shards")
    report = sl.data.shard(scenes, out, per_shard=50, seed=1)
    assert (report.shards, report.images, report.bad) == (5, 230, {})
    return out


def everything(batches):
    images, labels = zip(*batches)
    return torch.cat(images), torch.cat(labels)


def test_a_dataset_survives_sharding(scenes, folder):
    d = sl.dataset(folder)
    assert d.classes == scenes.classes
    pairs = {(p.tobytes(), label) for p, label in d}
    assert pairs == {(p.tobytes(), label) for p, label in scenes}


@pytest.mark.parametrize("train", [None, sl.data.Augment()], ids=["eval", "train"])
def test_workers_ranks_and_resuming_do_not_change_shard_batches(folder, train):
    d = sl.data.Shards(folder, mix=2)
    settings = {"batch": 20, "train": train, "seed": 4, "epoch": 1, "device": None}
    images, _ = everything(d.batches(SPEC, **settings))
    again, _ = everything(d.batches(SPEC, workers=2, **settings))
    assert torch.equal(images, again)
    ranks = [list(d.batches(SPEC, rank=r, world=2, **settings)) for r in (0, 1)]
    together = torch.cat([torch.cat([a[0], b[0]]) for a, b in zip(*ranks)])
    assert torch.equal(images, together)
    rest, _ = everything(d.batches(SPEC, start=4, **settings))
    assert torch.equal(images[80:], rest)


def test_an_epoch_holds_every_entry_once_and_stays_within_its_groups(folder):
    d = sl.data.Shards(folder, mix=2)
    order = d.order(0, 0, np.arange(230))
    assert sorted(order) == list(range(230))
    assert not np.array_equal(order, d.order(0, 1, np.arange(230)))
    groups = [set(d.shard[order[:n]].tolist()) for n in (60,)]
    assert all(len(g) <= 2 for g in groups), "only two shards are open at a time"


def test_the_index_is_used_and_distrusted(folder, tmp_path):
    files = sorted(folder.glob("*.tar"))
    for file in files[:2]:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "index.npz").write_bytes((folder / "index.npz").read_bytes())  # of five shards, here are two
    d = sl.data.Shards(tmp_path)
    assert len(d) == 100
    assert len(sl.data.Shards(str(tmp_path / "{00000..00001}.tar"))) == 100
    assert len(sl.data.Shards([tmp_path / "00001.tar"])) == 50


def tar_with(path, members, **kind):
    with tarfile.open(path, "w", **kind) as tar:
        for name, body in members:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))


def png(value=0):
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (value, 0, 0)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_other_peoples_tars(tmp_path, kind):
    long = "n" * 90 + ("é" * 60 if kind != tarfile.USTAR_FORMAT else "")
    members = [("a/1.png", png(1)), ("a/1.cls", b"3"), (f"b/{long}.png", png(2)), (f"b/{long}.json", b'{"label": 1}')]
    members += [
        ("c/no-label.png", png()),
        ("d/no-image.cls", b"1"),
        ("e/2.seg.png", png()),
        ("e/2.png", png(9)),
        ("e/2.cls", b"0"),
    ]
    tar_with(tmp_path / "x.tar", members, format=kind)
    d = sl.dataset(tmp_path / "x.tar")
    assert [(int(p[0, 0, 0]), label) for p, label in d] == [(1, 3), (2, 1), (9, 0)]
    assert "1.png" in d.where(0)
    with tarfile.open(tmp_path / "x.tar") as tar:
        theirs = {m.offset_data: m.size for m in tar}
    assert all(theirs[offset] == size for offset, size in zip(d.offset.tolist(), d.size.tolist()))


@pytest.mark.filterwarnings("ignore")  # the package leaves its files open
def test_the_webdataset_package_reads_ours(folder):
    wds = pytest.importorskip("webdataset")
    urls = [str(p) for p in sorted(folder.glob("*.tar"))]
    theirs = list(wds.WebDataset(urls, shardshuffle=False).decode("rgb8").to_tuple("png", "cls"))
    ours = list(sl.data.Shards(folder))
    assert len(theirs) == len(ours)
    assert all(np.array_equal(a, b) and x == y for (a, x), (b, y) in zip(theirs, ours))


def test_ours_reads_what_the_webdataset_package_writes(tmp_path):
    wds = pytest.importorskip("webdataset")
    with wds.TarWriter(str(tmp_path / "t.tar")) as writer:
        for i in range(5):
            writer.write({"__key__": f"{i:04}", "png": np.full((4, 4, 3), i * 10, np.uint8), "cls": i % 2})
    d = sl.data.Shards(tmp_path)
    assert [int(p[0, 0, 0]) for p, _ in d] == [0, 10, 20, 30, 40]
    assert d.labels.tolist() == [0, 1, 0, 1, 0]


def test_damage_is_named(folder, tmp_path):
    whole = sorted(folder.glob("*.tar"))[0].read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2 + 100])
    with pytest.raises(ValueError, match=r"cut\.tar is truncated|damaged"):
        sl.data.Shards(tmp_path / "cut.tar")
    (tmp_path / "noise.tar").write_bytes(bytes(range(256)) * 16)
    with pytest.raises(ValueError, match=r"not a tar archive"):
        sl.data.Shards(tmp_path / "noise.tar")
    with pytest.raises(ValueError, match=r"No shard"):
        sl.data.Shards(tmp_path / "none-*.tar")
    with pytest.raises(ValueError, match=r"already has shards"):
        sl.data.shard(sl.dataset("scenes/shape", num=3), tmp_path)


def test_an_image_that_is_no_image_is_left_out_and_named(tmp_path):
    source = tmp_path / "images" / "a"
    source.mkdir(parents=True)
    for i in range(120):
        (source / f"{i:03}.png").write_bytes(png(i) if i != 7 else b"nothing")
    report = sl.data.shard(sl.Folder(tmp_path / "images"), tmp_path / "out")
    assert report.images == 119
    assert [n.rsplit("/")[-1] for n in report.bad] == ["007.png"]
