"""`sl.cka`: how alike every layer of one model is to every layer of another, in one pass over the images."""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.analysis.similarity.grams import NEIGHBORS, SMALLEST, Sums, flat_grams
from sightline.evals.interval import t95
from sightline.models.taps import paths
from sightline.observe.images import Batch, Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.selection import Layers, Tokens, check_tokens, select_layers
from sightline.spec import About, Result

PRINTED, CALIBRATED = "printed", "calibrated"
ESTIMATOR = "<K^, L^> of U-centered Gram matrices, summed over batches before the ratio: a batch of m weighs m(m-3)"
log = logging.getLogger("sightline.analysis")


@dataclass(frozen=True, kw_only=True)
class CKA(Result):
    """Similarity of every pair of layers (Raghu et al., figures 1 and 2), and mutual neighbors as a second opinion.

    >>> import numpy as np
    >>> one = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> CKA = sl.analysis.CKA(title="", caption="", similarity=one, band=0 * one, knn=one, rows=("a", "b"),
    ...     columns=("a", "b"))
    >>> CKA.summary()["mean"]
    0.75
    """

    similarity: NDArray[np.float64]  # (rows, columns), unbiased CKA; NaN where undefined, nothing clamped
    band: NDArray[np.float64]  # half width of the 95 % interval: over repeats, with one repeat over batches; see `how`
    knn: NDArray[np.float64]  # (rows, columns), share of the k nearest neighbors in common
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_blocks: tuple[int, ...] = ()  # the block each layer belongs to, -1 outside of blocks
    column_blocks: tuple[int, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)  # layer: why it has no value
    row_stages: tuple[int, ...] = ()  # of a CNN's layers, -1 for layers without one
    column_stages: tuple[int, ...] = ()
    ways: tuple[str, ...] = ()  # of `values`: "within class", "without outliers", "untrained"
    values: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0)))  # (ways, rows, columns)
    replicates: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    p: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    null_mean: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    null_std: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    def has(self, way: str) -> bool:
        """Whether this result holds a way."""
        return way == PRINTED or way in self.ways or (way == CALIBRATED and self.null_mean.size > 0)

    def way(self, way: str) -> NDArray[np.float64]:
        """CKA in one of the ways, (rows, columns)."""
        if not self.has(way):
            raise ValueError(f"This result has no CKA {way!r}; compute it again with sl.cka(..., ways='all').")
        return self._calibrate(self.similarity) if way == CALIBRATED else self._plane(way)

    def _plane(self, way: str) -> NDArray[np.float64]:
        return self.similarity if way == PRINTED else self.values[self.ways.index(way)]

    def _calibrate(self, cka: NDArray) -> NDArray[np.float64]:
        return np.asarray((cka - self.null_mean) / (1 - self.null_mean))

    def replicates_of(self, way: str = PRINTED) -> NDArray[np.float64]:
        """CKA in one of the ways without each group of images, (groups, rows, columns); for `evals.interval.jackknife`.

        Results on the same images have the same groups. Empty where a file holds none.
        """
        self.way(way)
        if not self.replicates.size:
            return np.zeros((0, *self.similarity.shape))
        if way == CALIBRATED:
            return self._calibrate(self.replicates[0].astype(np.float64))
        return self.replicates[(PRINTED, *self.ways).index(way)].astype(np.float64)

    def summary(self) -> dict[str, float]:
        """The mean, and within one model how alike the lower and the upper half of its layers are (C1)."""
        s = self.similarity
        numbers = {"mean": _mean(s), "mean mutual kNN": _mean(self.knn), "largest band": _most(self.band)}
        if self.rows == self.columns:
            half = len(s) // 2
            numbers["lower half to upper half"] = _mean(s[:half, half:])
        else:
            numbers |= {"best match, mean over rows": _mean(_best(s)), "best match, top row": float(_best(s)[-1])}
        return numbers


def _mean(x: NDArray) -> float:
    return float(np.nanmean(x)) if np.isfinite(x).any() else math.nan


def _most(x: NDArray) -> float:
    return float(np.nanmax(x)) if np.isfinite(x).any() else math.nan


def _best(x: NDArray) -> NDArray:
    return np.where(np.isnan(x).all(1), np.nan, np.nan_to_num(x, nan=-np.inf).max(1))


def cka(
    a: Model,
    b: Model | None,
    data: Data,
    *,
    layers: Layers | tuple[Layers, Layers] = "all",
    tokens: Tokens | tuple[Tokens, Tokens] = "all",
    batch: int = 256,
    n: int | None = None,
    repeats: int = 1,
    seed: int = 0,
) -> CKA:
    """CKA of all pairs of layers of two models, or of one with itself (`b=None`), in one pass per repeat.

    Each model prepares the images as it wants them. `layers`: "all" in the sense of the paper, "blocks", or globs;
    `tokens`: "all", "cls", "patches", "gap", or the number of one patch; for either a pair speaks of a and b apart.
    `n` images are drawn without replacement and mixed anew in each of the `repeats`; the paper takes 10,240 in
    batches of 1024, 20 times, and finds 2,560 in batches of 128, 10 times, just as good. A last batch of fewer than 4
    is dropped, and said. The second opinion counts 10 neighbors within a batch. The band is that of the mean over
    repeats; of a single repeat it comes from how far its batches are apart; with a single batch there is none (NaN).

    >>> model = sl.build("vit-nano4", classes=10)
    >>> found = sl.cka(model, None, sl.dataset("scenes/shape", num=32, size=32), layers="blocks", batch=16)
    >>> found.similarity.shape, bool(abs(found.similarity.diagonal() - 1).max() < 1e-9)
    ((6, 6), True)
    """
    whats = watches(a, b, layers, tokens)
    observed = [what.target for what in whats]
    check_repeats(repeats)
    images = ImageSource(data=data, batch=batch, n=n, seed=seed, shuffle=n is not None or repeats > 1)
    runs, dropped = [], 0
    with evaluation_mode(*observed):
        for r in range(repeats):
            sums = Sums(whats[0].names, whats[1].names if len(whats) > 1 else None)
            dropped += run(sums, whats, images.batches(observed, repeat=r, what="CKA"))
            runs.append(sums)
    how = {"n": runs[0].images, "batch": batch, "repeats": repeats, "seed": seed, "dropped": dropped}
    both = list({id(s.model): s for s in observed}.values())
    return _result(whats, runs, how, images.about(*both, repeats=repeats))


class Watch:
    """What is looked at in one model, and why some of it cannot be."""

    def __init__(self, s: ObservedModel, layers: Layers, tokens: Tokens):
        check_tokens(tokens)
        self.target, self.tokens, self.names = s, tokens, select_layers(s, layers)
        self.why: dict[str, str] = {}

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        names = [name for name in self.names if name not in self.why]
        if not names:
            return {}
        grams, why = flat_grams(self.target, images, names, self.tokens)
        self.why |= why
        return grams


def run(sums: Sums, whats: list[Watch], batches: Iterable[Batch]) -> int:
    """One pass: add up what every batch says; returns how many images of a last, too small batch were left out."""
    left = 0
    for batch in batches:
        if len(batch) < SMALLEST:
            left += len(batch)
            log.warning("The last batch has %d images, fewer than %d: left out of CKA.", len(batch), SMALLEST)
            continue
        found = [watch(images) for watch, images in zip(whats, batch.images)]
        sums.add(len(batch), found[0], found[1] if len(whats) > 1 else None)
    if sums.images == 0 and not whats[0].why:
        raise ValueError(f"CKA needs batches of at least {SMALLEST} images; got {left} images in all.")
    return left


def check_repeats(repeats: Any) -> None:
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"repeats is a whole number from 1 up; got {repeats!r}.")


def watches(a: Model, b: Model | None, layers: Any, tokens: Any) -> list[Watch]:
    """One watch for a model with itself, two for two models or for two choices within one."""
    one = observe(a)
    two = one if b is None or b is a else observe(b)
    some = tokens if isinstance(tokens, tuple) and len(tokens) == 2 else (tokens, tokens)
    which = layers if _is_pair(layers, one, two) else (layers, layers)
    made = [Watch(s, l, t) for s, l, t in zip((one, two), which, some)]
    same = one is two and which[0] == which[1] and some[0] == some[1]
    return made[:1] if same else made


def _is_pair(layers: Any, one: ObservedModel, two: ObservedModel) -> bool:
    """Whether two entries speak of two models: a tuple whose entries do not both mean something in both of them."""
    if not isinstance(layers, tuple) or len(layers) != 2:
        return False
    words = any(not isinstance(l, str) or l in ("all", "blocks") for l in layers)
    return words or not (paths(one.model, layers[1]) and paths(two.model, layers[0]))


def band(runs: list[Sums], values: Tensor) -> tuple[Tensor, str]:
    """Half width of the 95 % interval and what it is over: the repeats, or the batches of the only one."""
    count, batches = len(runs), runs[0].batches
    if count > 1:
        return t95(count - 1) * values.std(0) / count**0.5, f"95 %, Student's t over {count} repeats"
    if batches < 2:
        return torch.full_like(values[0], torch.nan), "none: one batch"
    return t95(batches - 1) * runs[0].error(), f"95 %, Student's t over {batches} batches of one repeat, delta method"


def _result(whats: list[Watch], runs: list[Sums], how: dict[str, Any], about: About) -> CKA:
    a, b = whats[0], whats[-1]
    each = torch.stack([sums.cka() for sums in runs])
    knn = torch.stack([sums.knn() for sums in runs]).mean(0)
    width, over = band(runs, each)
    for row in torch.isnan(each).any(0).all(1).nonzero().flatten().tolist() if len(whats) < 2 else ():
        a.why.setdefault(a.names[row], f"{a.names[row]} is undefined on these images")
    names = (a.target.name, b.target.name)
    title = f"CKA within {names[0]}" if len(whats) < 2 else f"CKA of {names[0]} and {names[1]}"
    caption = (
        f"Unbiased minibatch CKA of {len(a.names)} x {len(b.names)} layers: {how['n']:,} images, "
        f"batches of {how['batch']}, {how['repeats']} repeats, tokens {a.tokens} and {b.tokens}."
    )
    how = {
        **how,
        "tokens": (a.tokens, b.tokens),
        "neighbors": NEIGHBORS,
        "estimator": ESTIMATOR,
        "band": over,
    }
    return CKA(
        title=title,
        caption=caption,
        how=how,
        about=about,
        similarity=each.mean(0).numpy(),
        band=width.numpy(),
        knn=knn.numpy(),
        rows=tuple(a.names),
        columns=tuple(b.names),
        row_blocks=blocks(a),
        column_blocks=blocks(b),
        reasons=a.why | b.why,
        row_stages=stages(a),
        column_stages=stages(b),
    )


def blocks(what: Watch) -> tuple[int, ...]:
    """The block of each layer, for whoever draws or averages."""
    found = (what.target.part.get(name) for name in what.names)
    return tuple(-1 if p is None or p.block is None else p.block for p in found)


def stages(what: Watch) -> tuple[int, ...]:
    """The stage of each layer of a CNN."""
    found = (what.target.part.get(name) for name in what.names)
    return tuple(-1 if p is None or p.stage is None else p.stage for p in found)
