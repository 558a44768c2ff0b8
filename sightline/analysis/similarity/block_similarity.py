"""What data, size or fine-tuning change: CKA by block against one reference model (Raghu et al., figures 12, G)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.similarity.cka import cka
from sightline.data.datasets import Dataset
from sightline.evals.interval import Ends, intervals_of
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, observe
from sightline.observe.provenance import parameter_count, training_of, what_varies
from sightline.observe.selection import Tokens
from sightline.spec import Result


@dataclass(frozen=True, kw_only=True)
class BlockSimilarity(Result):
    """CKA of each block of several models with the same block of a reference: all the data, or before tuning.

    >>> import numpy as np
    >>> r = sl.analysis.BlockSimilarity(title="", caption="", models=("3 %",), similarity=np.array([[0.9, 0.4]]),
    ...                        band=np.zeros((1, 2)), depth=np.array([[0.0, 1.0]]))
    >>> r.summary()["3 %: lower half minus upper half"]
    0.5
    """

    models: tuple[str, ...]
    similarity: NDArray[np.float64]  # (models, blocks of the deepest); NaN after the last block of a shallower one
    band: NDArray[np.float64]
    depth: NDArray[np.float64]  # (models, blocks), relative: 0 the first block, 1 the last
    parameters: tuple[int, ...] = ()  # of each model
    training_images: tuple[int, ...] = ()  # that each model was trained on; 0 where unknown
    varied: str = ""  # what differs between the models: "data", "size", "tuning" ...; empty where it is not said
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0)))  # (groups of images, models,
    # blocks): the same without each group

    def summary(self) -> dict[str, float]:
        rows = zip(self.models, self.similarity)
        return {f"{name}: {what}": statistic(row) for name, row in rows for what, statistic in STATISTICS.items()}

    def intervals(self) -> dict[str, Ends]:
        found: dict[str, Ends] = {}
        for i, (name, row) in enumerate(zip(self.models, self.similarity)):
            left = self.replicates[:, i] if len(self.replicates) else np.zeros((0, *row.shape))
            found |= intervals_of({f"{name}: {what}": f for what, f in STATISTICS.items()}, (row, left))
        return found


def _fall(row: NDArray) -> float:
    row = row[np.isfinite(row)]
    half = max(1, len(row) // 2)
    return float(row[:half].mean() - row[half:].mean()) if len(row) > 1 else 0.0


STATISTICS: dict[str, Callable[[NDArray], float]] = {
    "mean": lambda row: float(row[np.isfinite(row)].mean()),
    "lower half minus upper half": _fall,
}


def block_similarity(
    models: Mapping[str, Model],
    reference: Model,
    data: Data,
    *,
    tokens: Tokens = "all",
    n: int | None = None,
    batch: int = 256,
    repeats: int = 1,
    seed: int = 0,
    varied: str | None = None,
) -> BlockSimilarity:
    """CKA by block between each of the models and the reference, on the same images.

    Serves three questions: fractions of the data against all of it, other sizes of model, before and after fine-tuning.
    Models of another depth are compared at the nearest relative depth; for every pair of layers see `sl.cka`.
    `varied` says which of them: "data", "size" or "tuning"; by default it is what the run folders say that the models
    were loaded from (`what_varies`), and nothing where these are not known.

    >>> full, half = sl.build("vit-nano4", classes=0, seed=1), sl.build("vit-nano4", classes=0, depth=3)
    >>> found = sl.analysis.block_similarity({"half": half, "itself": full}, full, sl.dataset("scenes/shape",
    ...     num=16, size=32))
    >>> found.similarity.shape, found.similarity[1].round(6).tolist()
    ((2, 6), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    """
    if not models:
        raise ValueError("There is no model to compare with the reference.")
    rows, bands, depths, left = [], [], [], []
    observed = {name: observe(model) for name, model in models.items()}
    one = observe(reference)
    for s in observed.values():
        found = cka(s, one, data, layers="blocks", tokens=tokens, batch=batch, n=n, repeats=repeats, seed=seed)
        mine, theirs = len(found.rows), len(found.columns)
        depth = np.arange(mine) / max(mine - 1, 1)
        match = np.rint(depth * (theirs - 1)).astype(int)
        rows.append(found.similarity[np.arange(mine), match])
        bands.append(found.band[np.arange(mine), match])
        left.append(found.replicates_of()[:, np.arange(mine), match])
        depths.append(depth)
    return BlockSimilarity(
        title="Similarity to the reference, by block",
        caption=f"CKA of each block with the reference's at the same depth: {found.how['n']:,} images.",
        how={"n": found.how["n"], "batch": batch, "repeats": repeats, "seed": seed, "tokens": tokens},
        about=replace(found.about, models=(*(s.with_name(k).id if k else s.id for k, s in observed.items()), one.id)),
        models=tuple(models),
        similarity=pad_rows(rows),
        band=pad_rows(bands),
        depth=pad_rows(depths),
        replicates=np.stack([pad_rows(list(group)) for group in zip(*left)]),
        varied=_varied(list(observed.values()), one) if varied is None else varied,
        parameters=tuple(parameter_count(s) for s in observed.values()),
        training_images=tuple(t.images if (t := training_of(s.model)) else 0 for s in observed.values()),
    )


def _varied(models: list[ObservedModel], reference: ObservedModel) -> str:
    """What all models differ in from the reference; nothing where it is not one thing."""
    found = {what_varies(s, reference) for s in models}
    return found.pop() if len(found) == 1 else ""


def frequency_similarity(
    model: Model,
    reference: Model,
    data: Dataset,
    counts: Sequence[int],
    *,
    groups: int = 3,
    tokens: Tokens = "all",
    n: int | None = None,
    batch: int = 256,
) -> BlockSimilarity:
    """CKA by block with the reference, on the images of frequent and of rare classes apart.

    `counts`: how many images of each class the model was trained on, `train.counts()` of an imbalanced dataset. The
    classes are sorted by it and parted into `groups` of equal number. `n` images of each group are taken.

    >>> data = sl.dataset("scenes/shape", num=120, size=32)
    >>> a, b = (sl.build("vit-nano4", depth=2, seed=seed) for seed in (0, 1))
    >>> found = sl.analysis.frequency_similarity(a, b, data, data.imbalanced(10).counts(), groups=2)
    >>> found.models
    ('most frequent classes', 'rarest classes')
    """
    if data.labels.ndim != 1 or len(counts) != len(data.classes):
        raise ValueError(f"One count for each of the {len(data.classes)} classes is needed; got {len(counts)}.")
    if not 1 < groups <= len(counts):
        raise ValueError(f"{len(counts)} classes are parted into 2 to {len(counts)} groups; got {groups}.")
    order = np.argsort(-np.asarray(counts), kind="stable")
    rows = []
    one, other = observe(model), observe(reference)
    for part in np.array_split(order, groups):
        images = data.subset(indices=np.flatnonzero(np.isin(data.labels, part)))
        rows.append(block_similarity({"": one}, other, images, tokens=tokens, n=n, batch=batch))
    between = [f"classes, group {i + 1} of {groups}" for i in range(1, groups - 1)]
    return replace(
        rows[0],
        title="Similarity to the reference, by frequency of the class",
        caption=f"CKA of each block with the reference's, on images of {groups} groups of classes by frequency.",
        how={**rows[0].how, "n": tuple(r.how["n"] for r in rows), "groups": groups},
        about=replace(rows[0].about, images=ImageSource(data=data, batch=batch).fingerprint()),
        models=("most frequent classes", *between, "rarest classes"),
        similarity=np.concatenate([r.similarity for r in rows]),
        band=np.concatenate([r.band for r in rows]),
        depth=np.concatenate([r.depth for r in rows]),
        replicates=np.zeros((0, 0, 0)),  # the groups of classes have different images
    )


def pad_rows(rows: list[NDArray]) -> NDArray[np.float64]:
    out = np.full((len(rows), max(map(len, rows))), np.nan)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
