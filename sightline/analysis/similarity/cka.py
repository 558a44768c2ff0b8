"""`sl.cka`: how alike every layer of one model is to every layer of another, in one pass over the images."""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.analysis.similarity.grams import NEIGHBORS, SMALLEST, Watch
from sightline.analysis.similarity.measures import Metric, check_metric
from sightline.analysis.similarity.sums import CALIBRATED, LEAN, PRINTED, UNTRAINED, WAYS, WITHIN, Sums
from sightline.analysis.similarity.ways import OUTLIERS, PERMUTATIONS
from sightline.evals.interval import Ends, jackknife, known_ends, over_groups
from sightline.models.taps import paths
from sightline.observe.groups import ImageGroups
from sightline.observe.images import Batch, Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.selection import Layers, Tokens, check_tokens, select_layers
from sightline.observe.twin import untrained
from sightline.spec import About, Result

ESTIMATOR = "<K^, L^> of U-centered Gram matrices, summed over batches before the ratio: a batch of m weighs m(m-3)"
GROUPS = 64  # of images: the interval is 2.00 standard errors wide on either side; of 20 groups it would be 2.09
# A Gram matrix costs as much per image as a batch has images. CKA as printed is a tenth less exact in batches of 64;
# classes and neighbors need company (docs/cka.md).
BATCH, BATCH_OF_WAYS = 64, 128
log = logging.getLogger("sightline.analysis")


class CKAOptions(TypedDict, total=False):
    """What else `sl.cka` takes: other ways to look at the same Gram matrices, and how neighbors are found."""

    ways: Literal["all"] | Sequence[str]
    neighbors: Metric


@dataclass(frozen=True, kw_only=True)
class CKA(Result):
    """Similarity of every pair of layers (Raghu et al., figures 1 and 2), and mutual neighbors as a second opinion.

    `way` gives the same similarity in other ways: "calibrated" against permuted images, "within class", "without
    outliers", and of the "untrained" twins of both models. Where a file does not hold a way, `has` says so.

    >>> import numpy as np
    >>> one = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> CKA = sl.analysis.CKA(title="", caption="", similarity=one, band=0 * one, knn=one, rows=("a", "b"),
    ...     columns=("a", "b"))
    >>> CKA.summary()["mean"], CKA.has("within class")
    (0.75, False)
    """

    similarity: NDArray[np.float64]  # (rows, columns), unbiased CKA; NaN where undefined, nothing clamped
    band: NDArray[np.float64]  # half width of the 95 % interval over images; see `how`
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
    # (printed and ways, groups of images, rows, columns): the same without each group
    replicates: NDArray[np.floating] = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    knn_replicates: NDArray[np.floating] = field(default_factory=lambda: np.zeros((0, 0, 0)))  # of `knn`
    # (rows, columns): one-sided, of the printed value among permuted ones; mean and spread of CKA under permuted images
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
        plane = 0 if way == CALIBRATED else (PRINTED, *self.ways).index(way)
        if plane >= len(self.replicates):
            return np.zeros((0, *self.similarity.shape))
        left = self.replicates[plane].astype(np.float64)
        return self._calibrate(left) if way == CALIBRATED else left

    def summary(self) -> dict[str, float]:
        """The mean, and within one model how alike the lower and the upper half of its layers are (C1)."""
        s = self.similarity
        numbers = {"mean": _mean(s), "mean mutual kNN": _mean(self.knn), "largest band": _most(self.band)}
        numbers |= {f"mean, {way}": _mean(self.way(way)) for way in WAYS[1:] if self.has(way)}
        if self.p.size:
            numbers["share of pairs with p of at most 0.05"] = float(np.mean(self.p[np.isfinite(self.p)] <= 0.05))
        return numbers | {name: statistic(s) for name, statistic in self._more().items()}

    def _more(self) -> dict[str, Callable[[NDArray], float]]:
        """Statistics that only a comparison within one model, or only one of two models, has."""
        if self.rows == self.columns:
            return {"lower half to upper half": corner}
        return {"best match, mean over rows": lambda s: _mean(_best(s)), "best match, top row": best_of_last}

    def interval(self, statistic: Callable[[NDArray], float], way: str = PRINTED) -> Ends:
        """95 % interval over images of a statistic of the heat map in one of the ways."""
        return over_groups(statistic, (self.way(way), self.replicates_of(way)), least=-1.0, most=1.0)

    def intervals(self) -> dict[str, Ends]:
        statistics: dict[str, Callable[[NDArray], float]] = {"mean": _mean, **self._more()}
        found = {name: self.interval(statistic) for name, statistic in statistics.items()}
        found |= {f"mean, {way}": self.interval(_mean, way) for way in WAYS[1:] if self.has(way)}
        found["mean mutual kNN"] = over_groups(_mean, (self.knn, self.knn_replicates), least=0.0, most=1.0)
        return known_ends(found)


def _mean(x: NDArray) -> float:
    return float(np.nanmean(x)) if np.isfinite(x).any() else math.nan


def _most(x: NDArray) -> float:
    return float(np.nanmax(x)) if np.isfinite(x).any() else math.nan


def _best(x: NDArray) -> NDArray:
    return np.where(np.isnan(x).all(1), np.nan, np.nan_to_num(x, nan=-np.inf).max(1))


def corner(s: NDArray) -> float:
    """Mean CKA of the layers of the lower half with those of the upper half."""
    half = len(s) // 2
    return _mean(s[:half, half:])


def best_of_last(s: NDArray) -> float:
    """CKA of the last row's best match."""
    return float(_best(s)[-1])


def cka(
    a: Model,
    b: Model | None,
    data: Data,
    *,
    layers: Layers | tuple[Layers, Layers] = "all",
    tokens: Tokens | tuple[Tokens, Tokens] = "all",
    batch: int | None = None,
    n: int | None = None,
    repeats: int = 1,
    seed: int = 0,
    **options: Unpack[CKAOptions],
) -> CKA:
    """CKA of all pairs of layers of two models, or of one with itself (`b=None`), in one pass per repeat.

    Each model prepares the images as it wants them. `layers`: "all" in the sense of the paper, "blocks", or globs;
    `tokens`: "all", "cls", "patches", "gap", or the number of one patch; for either a pair speaks of a and b apart.
    `n` images are drawn without replacement and mixed anew in each of the `repeats`; the paper takes 10,240 in
    batches of 1024, 20 times, and finds 2,560 in batches of 128, 10 times, just as good. Here a `batch` has 64 images,
    or 128 where other `ways` are asked for. A last batch of fewer than 4 is dropped, and said; so are images that are
    the same as others. The band is the 95 % interval over images.

    `ways`: "all", or some of "calibrated" (against permuted image order, with p), "within class" (features centered per
    class), "without outliers" (without the 1 % of images and of channels that carry most of the variance) and
    "untrained" (the untrained twins of both models). `neighbors`: the second opinion counts 10 nearest neighbors within
    a batch, by "cosine" or "euclidean" distance. Options are given by keyword.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> found = sl.cka(model, None, sl.dataset("scenes/shape", num=32, size=32), layers="blocks", ways=["calibrated"])
    >>> found.similarity.shape, bool(abs(found.similarity.diagonal() - 1).max() < 1e-9), float(found.p[0, 1])
    ((6, 6), True, 0.01)
    """
    ways, metric = check_ways(options.get("ways", ())), options.get("neighbors", "cosine")
    check_metric(metric)
    check_repeats(repeats)
    batch = batch if batch is not None else BATCH_OF_WAYS if ways else BATCH
    whats = watches(a, b, layers, tokens)
    for what in whats:
        what.metric, what.lean = metric, LEAN in ways
    observed = [what.target for what in whats]
    images = ImageSource(data=data, batch=batch, n=n, seed=seed, shuffle=n is not None or repeats > 1, distinct=True)
    groups = ImageGroups(images.total, seed, most=GROUPS)
    twins = untrained_twins(whats, seed) if UNTRAINED in ways else []
    runs, dropped = [], 0
    with evaluation_mode(*observed, *(twin.target for twin in twins)):
        for r in range(repeats):
            asked = [way for way in ways if way != CALIBRATED or r == 0]  # repeats share images: no second null
            names = whats[0].names, whats[1].names if len(whats) > 1 else None
            sums = Sums(*names, ways=asked, groups=groups.count, seed=seed)
            dropped += run(sums, whats, images.batches(observed, repeat=r, what="CKA"), groups=groups, twins=twins)
            runs.append(sums)
    how: dict[str, Any] = {"n": runs[0].images, "batch": batch, "repeats": repeats, "seed": seed, "dropped": dropped}
    how |= {"duplicates": images.duplicates[0], "neighbors by": metric, "groups": groups.count}
    both = list({id(s.model): s for s in observed}.values())
    return _result(whats, runs, how, images.about(*both, repeats=repeats))


def untrained_twins(whats: list[Watch], seed: int) -> list[Watch]:
    """The same watches in untrained twins: one of each model, and of two models never the same."""
    models = list(dict.fromkeys(w.target.model for w in whats))
    twins = {
        m: untrained(next(w.target for w in whats if w.target.model is m), seed=seed, number=i)
        for i, m in enumerate(models)
    }
    return [Watch(twins[w.target.model], w.names, w.tokens) for w in whats]


def check_ways(ways: Any) -> tuple[str, ...]:
    """The ways that are asked for, in their order; printed is always there."""
    if ways == "all":
        return WAYS[1:]
    given = (ways,) if isinstance(ways, str) else tuple(ways)
    if unknown := [way for way in given if way not in WAYS]:
        known = ", ".join(map(repr, WAYS[1:]))
        raise ValueError(f"ways is 'all' or some of {known}; got {unknown[0]!r}.")
    return tuple(way for way in WAYS[1:] if way in given)


def run(
    sums: Sums,
    whats: list[Watch],
    batches: Iterable[Batch],
    *,
    groups: ImageGroups,
    twins: Sequence[Watch] = (),
) -> int:
    """One pass: add up what every batch says; returns how many images of a last, too small batch were left out."""
    left = 0
    for batch in batches:
        if len(batch) < SMALLEST:
            left += len(batch)
            log.warning("The last batch has fewer than %d images (%d): left out of CKA.", SMALLEST, len(batch))
            continue
        member = torch.from_numpy(groups(batch.index))
        labels = batch.labels if batch.labels is not None and batch.labels.ndim == 1 else None
        found = [watch(images) for watch, images in zip(whats, batch.images)]
        sums.add(len(batch), found[0], found[1] if len(whats) > 1 else None, groups=member, labels=labels)
        if twins:
            found = [watch(images) for watch, images in zip(twins, batch.images)]
            sums.add_untrained(len(batch), found[0], found[1] if len(whats) > 1 else None, groups=member)
    if sums.images == 0 and not whats[0].why:
        raise ValueError(f"CKA needs batches of at least {SMALLEST} different images; got only {left}.")
    return left


def check_repeats(repeats: Any) -> None:
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"repeats is a whole number from 1 up; got {repeats!r}.")


def watches(a: Model, b: Model | None, layers: Any, tokens: Any) -> list[Watch]:
    """One watch for a model with itself, two for two models or for two choices within one."""
    one = observe(a)
    two = one if b is None or b is a else observe(b)
    some = tokens if isinstance(tokens, tuple) and len(tokens) == 2 else (tokens, tokens)
    for choice in some:
        check_tokens(choice)
    which = layers if _is_pair(layers, one, two) else (layers, layers)
    made = [Watch(s, select_layers(s, l), t) for s, l, t in zip((one, two), which, some)]
    same = one is two and which[0] == which[1] and some[0] == some[1]
    return made[:1] if same else made


def _is_pair(layers: Any, one: ObservedModel, two: ObservedModel) -> bool:
    """Whether two entries speak of two models: a tuple whose entries do not both mean something in both of them."""
    if not isinstance(layers, tuple) or len(layers) != 2:
        return False
    words = any(not isinstance(l, str) or l in ("all", "blocks") for l in layers)
    return words or not (paths(one.model, layers[1]) and paths(two.model, layers[0]))


def _result(whats: list[Watch], runs: list[Sums], how: dict[str, Any], about: About) -> CKA:
    a, b = whats[0], whats[-1]
    kept = [way for way, sums in runs[0].ways.items() if way == PRINTED or sums.total[1].nan_to_num().any()]
    values = np.stack([np.mean([r.ways[way].cka().numpy() for r in runs], axis=0) for way in kept])
    left = np.stack([np.mean([r.ways[way].without_groups().numpy() for r in runs], axis=0) for way in kept])
    for row in np.isnan(values[0]).all(1).nonzero()[0].tolist() if len(whats) < 2 else ():
        a.why.setdefault(a.names[row], f"{a.names[row]} is undefined on these images")
    names = (a.target.name, b.target.name)
    title = f"CKA within {names[0]}" if len(whats) < 2 else f"CKA of {names[0]} and {names[1]}"
    caption = (
        f"Unbiased minibatch CKA of {len(a.names)} x {len(b.names)} layers: {how['n']:,} images, "
        f"batches of {how['batch']}, {how['repeats']} repeats, tokens {a.tokens} and {b.tokens}."
    )
    if WITHIN in runs[0].ways and WITHIN not in kept:
        how = {**how, "left out": f"{WITHIN}: no batch has two images of one class, or the images have no labels"}
    more = {"tokens": (a.tokens, b.tokens), "neighbors": NEIGHBORS, "estimator": ESTIMATOR, "outliers": OUTLIERS}
    over = f"95 %, delete-a-group jackknife over images, {len(left[0])} groups"
    return CKA(
        title=title,
        caption=caption,
        how={**how, **more, "band": over},
        about=about,
        similarity=values[0],
        band=jackknife(left[0]),
        knn=np.mean([r.knn().numpy() for r in runs], axis=0),
        rows=tuple(a.names),
        columns=tuple(b.names),
        row_blocks=blocks(a),
        column_blocks=blocks(b),
        reasons=a.why | b.why,
        row_stages=stages(a),
        column_stages=stages(b),
        ways=tuple(kept[1:]),
        values=values[1:],
        replicates=left.astype(np.float32),
        knn_replicates=np.mean([r.knn_without_groups().numpy() for r in runs], axis=0).astype(np.float32),
        **calibration(runs[0]),
    )


def calibration(sums: Sums) -> dict[str, NDArray[np.float64]]:
    """p, and mean and spread of CKA under permuted image order; nothing where it was not asked for."""
    if sums.null is None:
        return {}
    null, found = sums.null_cka().numpy(), sums.cka().numpy()
    p = (1 + (null >= found - 1e-6).sum(0)) / (PERMUTATIONS + 1)  # the null is of float32
    return {
        "p": np.where(np.isfinite(found), p, np.nan),
        "null_mean": null.mean(0),
        "null_std": null.std(0, ddof=1),
    }


def blocks(what: Watch) -> tuple[int, ...]:
    """The block of each layer, for whoever draws or averages."""
    found = (what.target.part.get(name) for name in what.names)
    return tuple(-1 if p is None or p.block is None else p.block for p in found)


def stages(what: Watch) -> tuple[int, ...]:
    """The stage of each layer of a CNN."""
    found = (what.target.part.get(name) for name in what.names)
    return tuple(-1 if p is None or p.stage is None else p.stage for p in found)
