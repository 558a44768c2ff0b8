"""Check a dataset before training: bad files, duplicates, empty classes, label leaks."""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.data.datasets import Dataset
from sightline.data.errors import BadImage
from sightline.data.images import EncodedImage, RawImage, decode_pixels, exif_orientation, orient_image, read_header
from sightline.data.quality.duplicates import GRAY, MAX_BITS, DuplicatePair, find_duplicates, halve, perceptual_hashes
from sightline.data.quality.sheet import contact_sheet, save_sheet
from sightline.progress import progress

BLOCK = 256
SMALL, TINY = 32, 16  # pixels of the short side
MODES = {"CMYK": "cmyk", "P": "palette", "PA": "palette", "LA": "transparent", "RGBA": "transparent", "1": "bilevel"}
LEAK = 0.1  # a cue leaks the label if it is this much more accurate than guessing
SERIOUS = (
    "unreadable",
    "truncated",
    "empty class",
    "duplicate across splits",
    "near duplicate across splits",
    "conflicting labels",
    "label leak",
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem: its kind, where it is, and the details.

    >>> sl.data.Finding(kind="truncated", where="cats/1.jpg", detail="image file is truncated").serious
    True
    """

    kind: str
    where: str
    detail: str = ""

    @property
    def serious(self) -> bool:
        """Whether it harms training or evaluation; other findings are informational."""
        return self.kind in SERIOUS


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """All findings of `check`.

    >>> report = sl.data.check(sl.dataset("scenes/shape", num=100))
    >>> report.images, report.counts()
    (100, {})
    """

    name: str
    images: int
    classes: int
    findings: tuple[Finding, ...]
    sheet: str | None = None

    def counts(self) -> dict[str, int]:
        """Number of findings of each kind, most frequent first."""
        return dict(Counter(f.kind for f in self.findings).most_common())


@dataclass
class _Scan:
    """What one pass over the images keeps of each: a gray thumbnail, hashes, the size, the encoding."""

    pending: list[NDArray[np.uint8]] = field(default_factory=list)  # gray copies that are not hashed yet
    hashes: list[NDArray[np.uint64]] = field(default_factory=list)
    thumbs: list[NDArray[np.uint8]] = field(default_factory=list)  # a quarter of the pixels is enough to compare
    exact: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    encodings: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # indices of the readable images
    findings: list[Finding] = field(default_factory=list)


def check(
    dataset: Dataset, against: Dataset | None = None, *, sheet: str | Path | None = None, near: int = MAX_BITS
) -> CheckReport:
    """Check every image of a dataset, and look for images that it shares with another split (`against`).

    Finds unreadable and truncated files; CMYK, 16-bit, palette, transparent, rotated (EXIF) and animated images; tiny
    images; empty classes; duplicates and near duplicates (perceptual hashes that differ in at most `near` of 64 bits),
    within a split or across both, and those with conflicting labels; and labels that can be predicted from the size or
    the encoding of an image. `sheet` is a file for a contact sheet.

    >>> d = sl.dataset("scenes/shape", num=60)
    >>> sl.data.check(d, d.subset(indices=[3])).counts()
    {'duplicate across splits': 1}
    """
    scan = _scan(dataset)
    findings = [*scan.findings, *_empty_classes(dataset), *_tiny(dataset, scan), *_leaks(dataset, scan)]
    findings += _duplicates_within(dataset, scan, near)
    if against is not None:
        other = _scan(against)
        findings += [Finding(kind=f.kind, where=f.where, detail=f.detail) for f in other.findings]
        findings += _duplicates_between((dataset, scan), (against, other), near)
    if sheet is not None:
        save_sheet(contact_sheet(dataset), sheet)
    total = len(dataset) + (len(against) if against is not None else 0)
    return CheckReport(
        name=dataset.name,
        images=total,
        classes=len(dataset.classes),
        findings=tuple(findings),
        sheet=None if sheet is None else str(sheet),
    )


def _scan(dataset: Dataset) -> _Scan:
    scan = _Scan()
    skipped = getattr(dataset.origins()[0], "skipped", [])
    scan.findings += [
        Finding(
            kind="skipped", where=path, detail="a link that leads out of the folder, or a folder that cannot be read"
        )
        for path in skipped
    ]
    for start in progress(range(0, len(dataset), BLOCK), f"checking {dataset.name}"):
        rows = np.arange(start, min(start + BLOCK, len(dataset)))
        for row, image in zip(rows, dataset.images(rows)):
            _scan_image(dataset, int(row), image, scan)
        copies = np.array(scan.pending, dtype=np.uint8).reshape(-1, GRAY, GRAY)
        scan.hashes.append(perceptual_hashes(copies))
        scan.thumbs.append(halve(copies))
        scan.pending.clear()
    return scan


def _scan_image(dataset: Dataset, row: int, raw: RawImage | BadImage, scan: _Scan) -> None:
    kind = "unreadable"
    encoding = "array"
    try:
        if isinstance(raw, BadImage):
            raise raw
        if isinstance(raw, EncodedImage):
            header = read_header(raw)
            kind = "truncated"
            orientation = exif_orientation(header)
            odd, encoding = list(_oddities(header, orientation)), _encoding(header)
            scan.findings += [Finding(kind=k, where=dataset.where(row), detail=d) for k, d in odd]
            image = orient_image(decode_pixels(header, raw.name), orientation)
        else:
            image = Image.fromarray(raw)
    except Exception as error:  # one image never stops the check, whatever is wrong with it
        detail = str(error) if isinstance(error, BadImage) else f"{type(error).__name__}: {error}"
        scan.findings.append(Finding(kind=kind, where=dataset.where(row), detail=detail))
        return
    scan.rows.append(row)
    scan.sizes.append(image.size)
    scan.encodings.append(encoding)
    body = hashlib.blake2b(repr(image.size).encode() + image.tobytes(), digest_size=8).digest()
    scan.exact.append(int.from_bytes(body, "little", signed=True))
    scan.pending.append(np.asarray(image.convert("L").resize((GRAY, GRAY), Image.Resampling.BOX)))


def _oddities(image: Image.Image, orientation: int) -> Iterator[tuple[str, str]]:
    """Unusual properties of a file, from its header: kind and details."""
    if image.mode.startswith("I") or image.mode == "F":
        yield "16-bit", f"mode {image.mode}"
    elif image.mode in MODES:
        yield MODES[image.mode], f"mode {image.mode}"
    if (frames := _frames(image)) > 1:
        yield "animated", f"{frames} frames; the first one is used"
    if orientation != 1:
        yield "rotated", f"EXIF orientation {orientation}; rotated upright when read"


def _frames(image: Image.Image) -> int:
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception:  # counting frames reads further into the file, which may be broken
        return 1
    finally:
        with contextlib.suppress(Exception):
            image.seek(0)


def _encoding(image: Image.Image) -> str:
    """Format, mode and JPEG quantization: classes that come from different sources often differ in them."""
    tables = getattr(image, "quantization", None) or {}
    quality = sum(sum(t) for t in tables.values())
    return f"{image.format} {image.mode} {quality}"


def _empty_classes(dataset: Dataset) -> list[Finding]:
    return [Finding(kind="empty class", where=c) for c, n in zip(dataset.classes, dataset.counts()) if n == 0]


def _tiny(dataset: Dataset, scan: _Scan) -> Iterator[Finding]:
    """Images under 16 pixels, or under 32 pixels and less than half the median size of the dataset."""
    short = np.array([min(s) for s in scan.sizes])
    median = float(np.median(short)) if len(short) else 0.0
    for row, side, size in zip(scan.rows, short, scan.sizes):
        if side < TINY or (side < SMALL and side < median / 2):
            yield Finding(kind="tiny", where=dataset.where(row), detail=f"{size[0]} x {size[1]} pixels")


def _leaks(dataset: Dataset, scan: _Scan) -> Iterator[Finding]:
    """Properties that should not predict the label, but do. A table of the most frequent label for each value of the
    property, made from half of the images, is compared on the other half with guessing the most frequent label."""
    if dataset.labels.ndim != 1 or len(scan.rows) < 20:
        return
    labels = dataset.labels[scan.rows]
    for cue, values in (("the size in pixels", scan.sizes), ("the encoding (format, mode, quality)", scan.encodings)):
        _, codes = np.unique(np.array([str(v) for v in values]), return_inverse=True)
        accuracy, baseline = _cue_accuracy(codes, labels.astype(np.int64))
        if accuracy > baseline + LEAK:
            detail = f"{cue} alone predicts {accuracy:.0%} of the labels, guessing {baseline:.0%}"
            yield Finding(kind="label leak", where=dataset.name, detail=detail)


def _cue_accuracy(codes: NDArray[np.int64], labels: NDArray[np.int64]) -> tuple[float, float]:
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[::2], order[1::2]
    most_frequent = np.bincount(labels[train]).argmax()
    votes = np.zeros((codes.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(votes, (codes[train], labels[train]), 1)
    predicted = np.where(votes.sum(1) > 0, votes.argmax(1), most_frequent)
    return float((predicted[codes[test]] == labels[test]).mean()), float((most_frequent == labels[test]).mean())


def _duplicates_within(dataset: Dataset, scan: _Scan, near: int) -> Iterator[Finding]:
    for pair in find_duplicates(_hashes(scan), _hashes(scan), near=near, same=True):
        first, second = scan.rows[pair.first], scan.rows[pair.second]
        agree = bool(np.all(dataset.labels[first] == dataset.labels[second]))
        kind = ("duplicate" if pair.exact else "near duplicate") if agree else "conflicting labels"
        yield Finding(kind=kind, where=dataset.where(second), detail=_describe_pair(pair, dataset.where(first)))


def _duplicates_between(one: tuple[Dataset, _Scan], two: tuple[Dataset, _Scan], near: int) -> Iterator[Finding]:
    for pair in find_duplicates(_hashes(one[1]), _hashes(two[1]), near=near, same=False):
        first, second = one[1].rows[pair.first], two[1].rows[pair.second]
        kind = "duplicate across splits" if pair.exact else "near duplicate across splits"
        yield Finding(kind=kind, where=two[0].where(second), detail=_describe_pair(pair, one[0].where(first)))


def _hashes(scan: _Scan) -> tuple[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.int64]]:
    return np.concatenate(scan.hashes), np.concatenate(scan.thumbs), np.array(scan.exact, dtype=np.int64)


def _describe_pair(pair: DuplicatePair, other: str) -> str:
    return f"same pixels as {other}" if pair.exact else f"{pair.bits} of 64 hash bits differ from {other}"


@dataclass(frozen=True, kw_only=True)
class DatasetDescription:
    """A summary of a dataset.

    >>> sl.data.describe_dataset(sl.dataset("scenes/shape", num=100, size=32)).fewest
    10
    """

    name: str
    images: int
    classes: tuple[str, ...]
    per_class: tuple[int, ...]  # images of each class
    height: int  # median of a sample, in pixels; 0 if none of it can be read
    width: int
    fingerprint: str

    @property
    def fewest(self) -> int:
        """Images of the smallest class."""
        return min(self.per_class, default=0)

    @property
    def most(self) -> int:
        """Images of the largest class."""
        return max(self.per_class, default=0)


def describe_dataset(data: Dataset, *, sample: int = 64) -> DatasetDescription:
    """Counts, classes, and the median size of up to `sample` images; bad images are skipped.

    >>> sl.data.describe_dataset(sl.dataset("scenes/shape", num=100, size=32)).height
    32
    """
    few = data.sample(min(len(data), sample), seed=0)
    sizes = []
    for i in range(len(few)):
        with contextlib.suppress(BadImage):
            sizes.append(few[i][0].shape[:2])
    height, width = np.median(np.array(sizes or [(0, 0)]), axis=0)
    return DatasetDescription(
        name=data.name,
        images=len(data),
        classes=tuple(data.classes),
        per_class=tuple(data.counts()),
        height=int(height),
        width=int(width),
        fingerprint=data.fingerprint(),
    )
