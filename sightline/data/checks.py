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
from sightline.data.duplicates import GRAY, NEAR, DuplicatePair, find_duplicates, fingerprints, smaller
from sightline.data.errors import BadImage
from sightline.data.images import Encoded, RawImage, begin, finish, orientation, upright
from sightline.data.sheet import contact_sheet
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
class _Seen:
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
    dataset: Dataset, against: Dataset | None = None, *, sheet: str | Path | None = None, near: int = NEAR
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
    seen = _look(dataset)
    findings = [*seen.findings, *_empty_classes(dataset), *_tiny(dataset, seen), *_leaks(dataset, seen)]
    findings += _twins_within(dataset, seen, near)
    if against is not None:
        other = _look(against)
        findings += [Finding(kind=f.kind, where=f.where, detail=f.detail) for f in other.findings]
        findings += _twins_between((dataset, seen), (against, other), near)
    drawn = None
    if sheet is not None:
        contact_sheet(dataset).save(sheet)
        drawn = str(sheet)
    total = len(dataset) + (len(against) if against is not None else 0)
    return CheckReport(
        name=dataset.name, images=total, classes=len(dataset.classes), findings=tuple(findings), sheet=drawn
    )


def _look(dataset: Dataset) -> _Seen:
    seen = _Seen()
    refused = getattr(dataset.origins()[0], "refused", [])
    seen.findings += [
        Finding(kind="refused", where=path, detail="it leads out of the folder, or cannot be read") for path in refused
    ]
    for start in progress(range(0, len(dataset), BLOCK), f"checking {dataset.name}"):
        rows = np.arange(start, min(start + BLOCK, len(dataset)))
        for row, image in zip(rows, dataset.images(rows)):
            _look_at(dataset, int(row), image, seen)
        copies = np.array(seen.fresh, dtype=np.uint8).reshape(-1, GRAY, GRAY)
        seen.hashes.append(fingerprints(copies))
        seen.thumbs.append(smaller(copies))
        seen.fresh.clear()
    return seen


def _look_at(dataset: Dataset, row: int, raw: RawImage | BadImage, seen: _Seen) -> None:
    kind = "unreadable"
    encoding = "array"
    try:
        if isinstance(raw, BadImage):
            raise raw
        if isinstance(raw, Encoded):
            header = begin(raw)
            kind = "truncated"
            turn = orientation(header)
            odd, encoding = list(_oddities(header, turn)), _encoding(header)
            seen.findings += [Finding(kind=k, where=dataset.where(row), detail=d) for k, d in odd]
            image = upright(finish(header, raw.name), turn)
        else:
            image = Image.fromarray(raw)
    except BadImage as error:
        seen.findings.append(Finding(kind=kind, where=dataset.where(row), detail=str(error)))
        return
    seen.rows.append(row)
    seen.sizes.append(image.size)
    seen.encodings.append(encoding)
    body = hashlib.blake2b(repr(image.size).encode() + image.tobytes(), digest_size=8).digest()
    seen.exact.append(int.from_bytes(body, "little", signed=True))
    seen.fresh.append(np.asarray(image.convert("L").resize((GRAY, GRAY), Image.Resampling.BOX)))


def _oddities(image: Image.Image, turn: int) -> Iterator[tuple[str, str]]:
    """What is unusual about a file, from its header."""
    if image.mode.startswith("I") or image.mode == "F":
        yield "16-bit", f"mode {image.mode}"
    elif image.mode in MODES:
        yield MODES[image.mode], f"mode {image.mode}"
    if (frames := _frames(image)) > 1:
        yield "animated", f"{frames} frames, the first is used"
    if turn != 1:
        yield "rotated", f"EXIF orientation {turn}, turned upright when read"


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


def _tiny(dataset: Dataset, seen: _Seen) -> Iterator[Finding]:
    """Under 16 px, or under 32 px and less than half as large as is usual here."""
    short = np.array([min(s) for s in seen.sizes])
    usual = float(np.median(short)) if len(short) else 0.0
    for row, side, size in zip(seen.rows, short, seen.sizes):
        if side < TINY or (side < SMALL and side < usual / 2):
            yield Finding(kind="tiny", where=dataset.where(row), detail=f"{size[0]} x {size[1]} px")


def _leaks(dataset: Dataset, seen: _Seen) -> Iterator[Finding]:
    """Cues that should say nothing about the label. A table of the commonest label per cue, made from one half of the
    images, is tried on the other half; guessing the commonest label is what it has to beat."""
    if dataset.labels.ndim != 1 or len(seen.rows) < 20:
        return
    labels = dataset.labels[seen.rows]
    for cue, values in (("the size in pixels", seen.sizes), ("the encoding (format, mode, quality)", seen.encodings)):
        _, codes = np.unique(np.array([str(v) for v in values]), return_inverse=True)
        told, guessed = _told(codes, labels.astype(np.int64))
        if told > guessed + LEAK:
            detail = f"{cue} alone tells {told:.0%} of the labels, guessing {guessed:.0%}"
            yield Finding(kind="label leak", where=dataset.name, detail=detail)


def _told(codes: NDArray[np.int64], labels: NDArray[np.int64]) -> tuple[float, float]:
    order = np.random.default_rng(0).permutation(len(labels))
    learn, test = order[::2], order[1::2]
    common = np.bincount(labels[learn]).argmax()
    votes = np.zeros((codes.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(votes, (codes[learn], labels[learn]), 1)
    answers = np.where(votes.sum(1) > 0, votes.argmax(1), common)
    return float((answers[codes[test]] == labels[test]).mean()), float((common == labels[test]).mean())


def _twins_within(dataset: Dataset, seen: _Seen, near: int) -> Iterator[Finding]:
    for twin in find_duplicates(_prints(seen), _prints(seen), near=near, same=True):
        first, second = seen.rows[twin.first], seen.rows[twin.second]
        agree = bool(np.all(dataset.labels[first] == dataset.labels[second]))
        kind = ("twice" if twin.exact else "nearly twice") if agree else "two labels"
        yield Finding(kind=kind, where=dataset.where(second), detail=_alike(twin, dataset.where(first)))


def _twins_between(one: tuple[Dataset, _Seen], two: tuple[Dataset, _Seen], near: int) -> Iterator[Finding]:
    for twin in find_duplicates(_prints(one[1]), _prints(two[1]), near=near, same=False):
        first, second = one[1].rows[twin.first], two[1].rows[twin.second]
        kind = "in both splits" if twin.exact else "nearly in both splits"
        yield Finding(kind=kind, where=two[0].where(second), detail=_alike(twin, one[0].where(first)))


def _prints(seen: _Seen) -> tuple[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.int64]]:
    return np.concatenate(seen.hashes), np.concatenate(seen.thumbs), np.array(seen.exact, dtype=np.int64)


def _alike(twin: DuplicatePair, other: str) -> str:
    return f"the same as {other}" if twin.exact else f"{twin.bits} of 64 bits from {other}"


@dataclass(frozen=True, kw_only=True)
class DatasetDescription:
    """What a dataset holds.

    >>> sl.data.describe_dataset(sl.dataset("scenes/shape", num=100, size=32)).fewest
    10
    """

    name: str
    images: int
    classes: tuple[str, ...]
    per_class: tuple[int, ...]  # images of each class
    height: int  # median of a sample, in pixels; 0 where no image of it can be read
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
    """Counts, classes, and the median size of up to `sample` images; bad images are passed over.

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
