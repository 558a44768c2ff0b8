"""Hygiene: what is wrong with a dataset before a model is trained on it."""

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
from sightline.data.quality.sheet import contact_sheet
from sightline.progress import progress

BLOCK = 256
SMALL, TINY = 32, 16  # pixels of the short side
MODES = {"CMYK": "cmyk", "P": "palette", "PA": "palette", "LA": "transparent", "RGBA": "transparent", "1": "bilevel"}
LEAK = 0.1  # a cue that beats guessing by this share of all images leaks the label
SERIOUS = (
    "unreadable",
    "truncated",
    "empty class",
    "in both splits",
    "nearly in both splits",
    "two labels",
    "label leak",
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to look at: its kind, where it is, what it is.

    >>> sl.data.Finding(kind="truncated", where="cats/1.jpg", detail="image file is truncated").serious
    True
    """

    kind: str
    where: str
    detail: str = ""

    @property
    def serious(self) -> bool:
        """Whether it spoils training or a measurement; the rest is good to know."""
        return self.kind in SERIOUS


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """All findings about a dataset.

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
        """How many findings of each kind, most frequent first."""
        return dict(Counter(f.kind for f in self.findings).most_common())


@dataclass
class _Scan:
    """What one pass over the images keeps of each: a small gray copy, its size, how it was encoded."""

    fresh: list[NDArray[np.uint8]] = field(default_factory=list)  # gray copies that are not hashed yet
    hashes: list[NDArray[np.uint64]] = field(default_factory=list)
    thumbs: list[NDArray[np.uint8]] = field(default_factory=list)  # a quarter of their pixels is enough to compare
    exact: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    encodings: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # of the readable ones
    findings: list[Finding] = field(default_factory=list)


def check(
    dataset: Dataset, against: Dataset | None = None, *, sheet: str | Path | None = None, near: int = MAX_BITS
) -> CheckReport:
    """Look at every image of a dataset, and compare it with another split (`against`), which it must not share.

    Finds unreadable and truncated files; CMYK, 16-bit, palette, transparent, rotated (EXIF) and animated ones; tiny
    ones; empty classes; the same image twice, exactly or nearly (perceptual hashes that differ in at most `near` of
    64 bits), with one label or two, in one split or both; labels that an image's size or encoding gives away. `sheet`
    is where to draw a contact sheet.

    >>> d = sl.dataset("scenes/shape", num=60)
    >>> sl.data.check(d, d.subset(indices=[3])).counts()
    {'in both splits': 1}
    """
    scan = _scan(dataset)
    findings = [*scan.findings, *_empty_classes(dataset), *_tiny(dataset, scan), *_leaks(dataset, scan)]
    findings += _duplicates_within(dataset, scan, near)
    if against is not None:
        other = _scan(against)
        findings += [Finding(kind=f.kind, where=f.where, detail=f.detail) for f in other.findings]
        findings += _duplicates_between((dataset, scan), (against, other), near)
    drawn = None
    if sheet is not None:
        contact_sheet(dataset).save(sheet)
        drawn = str(sheet)
    total = len(dataset) + (len(against) if against is not None else 0)
    return CheckReport(
        name=dataset.name, images=total, classes=len(dataset.classes), findings=tuple(findings), sheet=drawn
    )


def _scan(dataset: Dataset) -> _Scan:
    scan = _Scan()
    skipped = getattr(dataset.origins()[0], "skipped", [])
    scan.findings += [
        Finding(kind="skipped", where=path, detail="it leads out of the folder, or cannot be read") for path in skipped
    ]
    for start in progress(range(0, len(dataset), BLOCK), f"checking {dataset.name}"):
        rows = np.arange(start, min(start + BLOCK, len(dataset)))
        for row, image in zip(rows, dataset.images(rows)):
            _scan_image(dataset, int(row), image, scan)
        copies = np.array(scan.fresh, dtype=np.uint8).reshape(-1, GRAY, GRAY)
        scan.hashes.append(perceptual_hashes(copies))
        scan.thumbs.append(halve(copies))
        scan.fresh.clear()
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
    except BadImage as error:
        scan.findings.append(Finding(kind=kind, where=dataset.where(row), detail=str(error)))
        return
    scan.rows.append(row)
    scan.sizes.append(image.size)
    scan.encodings.append(encoding)
    body = hashlib.blake2b(repr(image.size).encode() + image.tobytes(), digest_size=8).digest()
    scan.exact.append(int.from_bytes(body, "little", signed=True))
    scan.fresh.append(np.asarray(image.convert("L").resize((GRAY, GRAY), Image.Resampling.BOX)))


def _oddities(image: Image.Image, orientation: int) -> Iterator[tuple[str, str]]:
    """What is unusual about a file, from its header."""
    if image.mode.startswith("I") or image.mode == "F":
        yield "16-bit", f"mode {image.mode}"
    elif image.mode in MODES:
        yield MODES[image.mode], f"mode {image.mode}"
    if (frames := _frames(image)) > 1:
        yield "animated", f"{frames} frames, the first is used"
    if orientation != 1:
        yield "rotated", f"EXIF orientation {orientation}, turned upright when read"


def _frames(image: Image.Image) -> int:
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception:  # counting them reads on into the file, and that may be broken
        return 1
    finally:
        with contextlib.suppress(Exception):
            image.seek(0)


def _encoding(image: Image.Image) -> str:
    """How the file was made: format, mode and JPEG quantization; a class from another source often differs in it."""
    tables = getattr(image, "quantization", None) or {}
    quality = sum(sum(t) for t in tables.values())
    return f"{image.format} {image.mode} {quality}"


def _empty_classes(dataset: Dataset) -> list[Finding]:
    return [Finding(kind="empty class", where=c) for c, n in zip(dataset.classes, dataset.counts()) if n == 0]


def _tiny(dataset: Dataset, scan: _Scan) -> Iterator[Finding]:
    """Under 16 px, or under 32 px and less than half as large as is usual here."""
    short = np.array([min(s) for s in scan.sizes])
    usual = float(np.median(short)) if len(short) else 0.0
    for row, side, size in zip(scan.rows, short, scan.sizes):
        if side < TINY or (side < SMALL and side < usual / 2):
            yield Finding(kind="tiny", where=dataset.where(row), detail=f"{size[0]} x {size[1]} px")


def _leaks(dataset: Dataset, scan: _Scan) -> Iterator[Finding]:
    """Cues that should say nothing about the label. A table of the commonest label per cue, made from one half of the
    images, is tried on the other half; guessing the commonest label is what it has to beat."""
    if dataset.labels.ndim != 1 or len(scan.rows) < 20:
        return
    labels = dataset.labels[scan.rows]
    for cue, values in (("the size in pixels", scan.sizes), ("the encoding (format, mode, quality)", scan.encodings)):
        _, codes = np.unique(np.array([str(v) for v in values]), return_inverse=True)
        matched, guessed = _cue_accuracy(codes, labels.astype(np.int64))
        if matched > guessed + LEAK:
            detail = f"{cue} alone tells {matched:.0%} of the labels, guessing {guessed:.0%}"
            yield Finding(kind="label leak", where=dataset.name, detail=detail)


def _cue_accuracy(codes: NDArray[np.int64], labels: NDArray[np.int64]) -> tuple[float, float]:
    order = np.random.default_rng(0).permutation(len(labels))
    learn, test = order[::2], order[1::2]
    common = np.bincount(labels[learn]).argmax()
    votes = np.zeros((codes.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(votes, (codes[learn], labels[learn]), 1)
    answers = np.where(votes.sum(1) > 0, votes.argmax(1), common)
    return float((answers[codes[test]] == labels[test]).mean()), float((common == labels[test]).mean())


def _duplicates_within(dataset: Dataset, scan: _Scan, near: int) -> Iterator[Finding]:
    for pair in find_duplicates(_hashes(scan), _hashes(scan), near=near, same=True):
        first, second = scan.rows[pair.first], scan.rows[pair.second]
        agree = bool(np.all(dataset.labels[first] == dataset.labels[second]))
        kind = ("twice" if pair.exact else "nearly twice") if agree else "two labels"
        yield Finding(kind=kind, where=dataset.where(second), detail=_describe_pair(pair, dataset.where(first)))


def _duplicates_between(one: tuple[Dataset, _Scan], two: tuple[Dataset, _Scan], near: int) -> Iterator[Finding]:
    for pair in find_duplicates(_hashes(one[1]), _hashes(two[1]), near=near, same=False):
        first, second = one[1].rows[pair.first], two[1].rows[pair.second]
        kind = "in both splits" if pair.exact else "nearly in both splits"
        yield Finding(kind=kind, where=two[0].where(second), detail=_describe_pair(pair, one[0].where(first)))


def _hashes(scan: _Scan) -> tuple[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.int64]]:
    return np.concatenate(scan.hashes), np.concatenate(scan.thumbs), np.array(scan.exact, dtype=np.int64)


def _describe_pair(pair: DuplicatePair, other: str) -> str:
    return f"the same as {other}" if pair.exact else f"{pair.bits} of 64 bits from {other}"
