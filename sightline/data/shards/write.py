"""Write any dataset as tar shards in WebDataset format, in shuffled order, with an index."""

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.archives import pack_arrays
from sightline.data.datasets import Dataset
from sightline.data.draws import hash_key, permute
from sightline.data.errors import BadImage, TooManyBad, printable
from sightline.data.images import EncodedImage, RawImage, read_header
from sightline.data.shards.tar import CHECKSUMS, ShardIndex, checksum, index_shard
from sightline.files import atomic, exclusive
from sightline.progress import progress

BLOCK = 64  # images read at a time; drawing many scenes at once is faster


@dataclass(frozen=True, kw_only=True)
class ShardSummary:
    """What `shard` wrote.

    >>> sl.data.ShardSummary(folder="out", shards=3, images=50, megabytes=0.2).bad
    {}
    """

    folder: str
    shards: int
    images: int
    megabytes: float
    bad: dict[str, str] = field(default_factory=dict)  # images left out: name and reason


def shard(
    dataset: Dataset, out: str | Path, *, per_shard: int = 10_000, shuffle: bool = True, seed: int = 0
) -> ShardSummary:
    """Write a dataset as `00000.tar`, `00001.tar`, ... of `per_shard` images each; files are copied, arrays become PNG.

    The order is shuffled, so that every shard is a random sample. An image whose header cannot be read is left out and
    listed; more than 1 % of them are an error. Each shard is written atomically.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> sl.data.shard(sl.dataset("scenes/shape", num=50), folder.name, per_shard=20).shards
    3
    >>> folder.cleanup()
    """
    out = Path(out)
    if per_shard < 1:
        raise ValueError(f"per_shard={per_shard}: a shard has at least one image.")
    if out.exists() and any(out.glob("*.tar")):
        raise ValueError(f"{printable(out)} already has shards; give an empty folder.")
    if dataset.labels.ndim != 1:
        raise ValueError(f"{dataset.name} has several labels per image; shards store one.")
    bad: dict[str, str] = {}
    samples = _samples(dataset, shuffle, seed, bad)
    paths: list[Path] = []
    sums: list[int] = []
    with exclusive(out):
        while len(sums) < len(dataset):
            path = out / f"{len(paths):05}.tar"
            added = _write_shard(path, samples, per_shard)
            if not added:
                path.unlink()
                break
            sums += added
            paths.append(path)
        with atomic(out / "classes.json") as partial:
            partial.write_text(json.dumps(dataset.classes), encoding="utf-8")
        _write_index(out, paths, sums)
    total = sum(p.stat().st_size for p in paths)
    return ShardSummary(folder=str(out), shards=len(paths), images=len(sums), megabytes=total / 1e6, bad=bad)


def _samples(dataset: Dataset, shuffle: bool, seed: int, bad: dict[str, str]) -> Iterator[tuple[bytes, str, int]]:
    """Bytes, file extension and label of each readable image."""
    n = len(dataset)
    for start in progress(range(0, n, BLOCK), "writing shards"):
        rows = np.arange(start, min(start + BLOCK, n))
        indices = permute(n, hash_key(seed, "shard"), rows) if shuffle else rows
        for index, image in zip(indices, dataset.images(indices)):
            try:
                yield *_encode(image), int(dataset.labels[index])
            except BadImage as error:
                bad[dataset.where(int(index))] = str(error)
                if len(bad) > max(1, 0.01 * n):
                    raise TooManyBad(bad, n) from error


def _encode(image: RawImage | BadImage) -> tuple[bytes, str]:
    match image:
        case BadImage():
            raise image
        case EncodedImage():
            kind = (read_header(image).format or "JPEG").lower()
            return image.data, {"jpeg": "jpg", "mpo": "jpg", "tiff": "tif"}.get(kind, kind)
        case _:
            file = io.BytesIO()
            Image.fromarray(image).save(file, "PNG", compress_level=1)
            return file.getvalue(), "png"


def _write_shard(path: Path, samples: Iterator[tuple[bytes, str, int]], limit: int) -> list[int]:
    """Write one shard; the checksums of its images."""
    sums: list[int] = []
    with atomic(path) as partial, tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as tar:
        for data, extension, label in samples:
            name = f"{path.stem}{len(sums):06}"
            for suffix, body in ((extension, data), ("cls", str(label).encode())):
                info = tarfile.TarInfo(f"{name}.{suffix}")
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
            sums.append(checksum(data))
            if len(sums) == limit:
                break
    return sums


def _write_index(out: Path, paths: list[Path], sums: list[int]) -> None:
    index = ShardIndex.join([index_shard(str(p), number=i) for i, p in enumerate(paths)])
    columns: dict[str, NDArray[Any]] = {
        "shard": index.shard,
        "offset": index.offset,
        "size": index.size,
        "label": index.label,
        CHECKSUMS: np.array(sums, dtype=np.int64),
    }
    files = {"names": np.array([p.name for p in paths]), "sizes": np.array([p.stat().st_size for p in paths])}
    with atomic(out / "index.npz") as partial:
        partial.write_bytes(pack_arrays({**files, **columns}, compress=False))
