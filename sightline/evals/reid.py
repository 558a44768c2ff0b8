"""Retrieval for re-identification: by whole images, or by pairwise matches of foreground patches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sightline.evals.feature_table import FeatureTable
from sightline.evals.inputs import Given, align_classes, as_features, check_finite, combine, single_labels
from sightline.evals.interval import Ends, known_ends, of_mean, wilson
from sightline.spec import Result

Matching = Literal["whole", "patches"]
Select = Literal["border", "pooled", "norm", "all"]
RANKS = 20
BLOCK = 1 << 25  # patch similarities held in memory at a time


@dataclass(frozen=True, kw_only=True)
class Retrieval(Result):
    """How well an image retrieves other images of the same individual.

    >>> import numpy as np
    >>> r = sl.evals.Retrieval(title="", caption="", matching="whole", cmc=np.array([.5, 1.]),
    ...     precision=np.array([.5, 1.]))
    >>> r.summary()
    {'rank-1': 0.5, 'mAP': 0.75}
    """

    matching: str
    cmc: NDArray[np.float64]  # share of queries with a correct image among the first 1, 2, 3 ...
    precision: NDArray[np.float64]  # average precision of each query; NaN if the gallery has no match
    selected: NDArray[np.bool_] | None = None  # (n, patches) of the queries: selected as foreground
    overlap: float | None = None  # intersection over union of the selection and the true patches, mean over queries
    overlap_by_chance: float | None = None  # the approximate expectation for as many random patches

    def summary(self) -> dict[str, float]:
        out = {f"rank-{k}": float(self.cmc[k - 1]) for k in (1, 5, 10) if k <= len(self.cmc)}
        out["mAP"] = float(np.nanmean(self.precision))
        if self.overlap is not None:
            out["overlap with the object"] = self.overlap
            out["overlap by chance"] = float(self.overlap_by_chance or 0)
        return out

    def intervals(self) -> dict[str, Ends]:
        """Over queries, those that have a match in the gallery."""
        n = int(np.isfinite(self.precision).sum())
        ranks = {f"rank-{k}": wilson(round(self.cmc[k - 1] * n), n) for k in (1, 5, 10) if k <= len(self.cmc)}
        return known_ends({**ranks, "mAP": of_mean(self.precision, least=0.0, most=1.0)})


def retrieval(
    query: Given,
    gallery: Given | None = None,
    *,
    matching: Matching = "whole",
    select: Select | ArrayLike = "border",
    share: float = 0.25,
    truth: ArrayLike | None = None,
    ranks: int = RANKS,
) -> Retrieval:
    """Cumulative matching characteristic and mean average precision of cosine similarity.

    Without `gallery`, every image is a query against all others. "whole" compares one vector per image. "patches" takes
    features with all tokens, selects the `share` of each image's patches most likely to show the object, and compares
    images by their patches: each patch's best match in the other image, averaged over both directions.
    `select`: "border" takes the patches least similar to the mean of the image's border, "pooled" those most similar to
    the mean of all, "norm" those with the largest norm, "all" every patch; or a boolean table (n, patches), used for
    queries and gallery. `truth`, a boolean table (n, patches), says where the object really is, see
    `sl.evals.foreground`; the result then has the overlap.

    >>> import torch
    >>> y = torch.arange(12) // 3
    >>> sl.evals.retrieval((torch.nn.functional.one_hot(y, 4) + 0.01 * torch.randn(12, 4), y)).summary()
    {'rank-1': 1.0, 'rank-5': 1.0, 'rank-10': 1.0, 'mAP': 1.0}
    """
    q = as_features(query, "query features")
    g = q if gallery is None else as_features(gallery, "gallery features")
    if gallery is not None:
        q, g = _same_individuals(q, g)
    y, w = single_labels(q, "query features"), single_labels(g, "gallery features")
    selected = overlap = chance = None
    if matching == "whole":
        similarity = image_similarity(q, g)
    elif matching == "patches":
        tables = [selection(e, select, share) for e in ((q,) if gallery is None else (q, g))]
        selected = tables[0]
        similarity = patch_similarity(_patches(q), _patches(g), tables[0], tables[-1])
        if truth is not None:
            overlap, chance = overlap_with(selected, np.asarray(truth, dtype=np.bool_))
    else:
        raise ValueError(f"matching is 'whole' or 'patches'; got {matching!r}.")
    cmc, precision = rank(similarity, y, w, itself=gallery is None, ranks=ranks)
    return Retrieval(
        title="Retrieval",
        caption=f"{len(y)} queries in {len(w)} images, cosine similarity, {matching}.",
        how={**q.how, "matching": matching, "select": select if isinstance(select, str) else "given", "share": share},
        about=combine(q.about, g.about),
        matching=matching,
        cmc=cmc,
        precision=precision,
        selected=selected,
        overlap=overlap,
        overlap_by_chance=chance,
    )


def _same_individuals(q: FeatureTable, g: FeatureTable) -> tuple[FeatureTable, FeatureTable]:
    if q.features.shape[1:] != g.features.shape[1:]:
        raise ValueError(
            f"Queries have features of shape {tuple(q.features.shape[1:])}, the gallery {tuple(g.features.shape[1:])}."
        )
    if set(q.classes) <= set(g.classes) and q.classes != g.classes:  # a gallery may have more individuals
        number = {name: i for i, name in enumerate(g.classes)}
        labels = np.array([number[c] for c in q.classes])[single_labels(q, "query features")]
        return replace(q, labels=labels, classes=g.classes), g
    return align_classes(q, g)


def image_similarity(q: FeatureTable, g: FeatureTable) -> Tensor:
    """Cosine similarity of one vector per image."""
    for e, what in ((q, "query features"), (g, "gallery features")):
        if e.features.ndim != 2:
            raise ValueError(f"The {what} have all tokens: use matching='patches', or reduce them with .reduce('gap').")
        check_finite(e.features, what)
    return F.normalize(q.features.double(), dim=1) @ F.normalize(g.features.double(), dim=1).mT


def _patches(e: FeatureTable) -> Tensor:
    """The tokens of the grid."""
    x = e.features
    if x.ndim != 3:
        raise ValueError("Matching patches needs features with all tokens: extract with tokens='all'.")
    check_finite(x, "features")
    return x[:, e.prefix.get(list(e.layers)[-1], 0) :]


def selection(e: FeatureTable, select: Select | ArrayLike, share: float) -> NDArray[np.bool_]:
    """Patches selected as foreground, (n, patches): the same number in every image, unless a table is given."""
    x = _patches(e)
    if not isinstance(select, str):
        table = np.asarray(select, dtype=np.bool_)
        if table.shape != tuple(x.shape[:2]):
            raise ValueError(f"The selection must be a boolean table {tuple(x.shape[:2])}; got {table.shape}.")
        return table
    if not 0 < share <= 1:
        raise ValueError(f"share must lie between 0 and 1; got {share}.")
    if select == "all":
        return np.ones(tuple(x.shape[:2]), dtype=np.bool_)
    score = foreground_score(x, e.grids.get(list(e.layers)[-1]), select)
    count = max(1, round(share * x.shape[1]))
    table = np.zeros(tuple(x.shape[:2]), dtype=np.bool_)
    best = score.argsort(dim=1, descending=True, stable=True)[:, :count].numpy()
    np.put_along_axis(table, best, True, axis=1)
    return table


def foreground_score(x: Tensor, grid: tuple[int, int] | None, select: str) -> Tensor:
    """A score per patch: the larger, the more likely the patch shows the object."""
    unit = F.normalize(x.double(), dim=2)
    match select:
        case "border":
            if grid is None or min(grid) < 3:
                raise ValueError(f"select='border' needs a grid of at least 3 x 3 with a border; this one is {grid}.")
            edge = torch.ones(grid, dtype=torch.bool)
            edge[1:-1, 1:-1] = False
            around = F.normalize(unit[:, edge.flatten()].mean(1), dim=1)
            return -(unit @ around[..., None])[..., 0]
        case "pooled":
            return (unit @ F.normalize(x.double().mean(1), dim=1)[..., None])[..., 0]
        case "norm":
            return x.double().norm(dim=2)
    raise ValueError(f"select is 'border', 'pooled', 'norm', 'all' or a table; got {select!r}.")


def patch_similarity(q: Tensor, g: Tensor, chosen_q: NDArray[np.bool_], chosen_g: NDArray[np.bool_]) -> Tensor:
    """Similarity of images by their patches: the mean over patches of the best match, averaged over both directions."""
    for table, what in ((chosen_q, "queries"), (chosen_g, "gallery")):
        if not table.any(1).all():
            raise ValueError(f"An image of the {what} has no selected patch.")
    a, in_a = _gather(q, chosen_q)
    b, in_b = _gather(g, chosen_g)
    out = torch.empty(len(a), len(b), dtype=torch.float64)
    for rows in _blocks(len(a), len(b) * a.shape[1] * b.shape[1]):
        pairs = torch.einsum("apd,bqd->abpq", a[rows], b)
        pairs = pairs.masked_fill(~in_a[rows][:, None, :, None] | ~in_b[None, :, None, :], -2.0)
        there = (pairs.amax(3) * in_a[rows][:, None]).sum(2) / in_a[rows].sum(1)[:, None]
        back = (pairs.amax(2) * in_b[None]).sum(2) / in_b.sum(1)[None]
        out[rows] = ((there + back) / 2).double()
    return out


def _gather(x: Tensor, chosen: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Selected patches padded to (n, most, d), normalized, and which entries are filled."""
    most = int(chosen.sum(1).max())
    order = np.argsort(~chosen, axis=1, kind="stable")[:, :most]
    filled = torch.from_numpy(np.take_along_axis(chosen, order, axis=1))
    index = torch.from_numpy(order)[..., None].expand(-1, -1, x.shape[2])
    return F.normalize(x.float().gather(1, index), dim=2), filled


def _blocks(count: int, each: int) -> Iterator[slice]:
    step = max(1, BLOCK // max(1, each))
    return (slice(i, min(i + step, count)) for i in range(0, count, step))


def rank(
    similarity: Tensor, query: NDArray[Any], gallery: NDArray[Any], *, itself: bool, ranks: int = RANKS
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """CMC and average precision from similarities (q, g); `itself`: both are the same images, so self-matches are
    excluded."""
    s = similarity.clone()
    if itself:
        s.fill_diagonal_(-torch.inf)
    right = torch.from_numpy(np.asarray(query)[:, None] == np.asarray(gallery)[None])
    order = s.argsort(dim=1, descending=True, stable=True)
    if itself:
        order = order[:, :-1]
    hits = right.gather(1, order)
    some = hits.any(1)
    if not some.any():
        raise ValueError("No query has another image of its individual in the gallery.")
    first = hits.int().argmax(1)[some]
    depth = min(ranks, hits.shape[1])
    cmc = np.array([(first < k).double().mean().item() for k in range(1, depth + 1)])
    precision = hits.double().cumsum(1) / torch.arange(1, hits.shape[1] + 1)
    average = (precision * hits).sum(1) / hits.sum(1)  # 0 / 0 = NaN if there is no match
    return cmc, average.numpy()


def overlap_with(selected: NDArray[np.bool_], truth: NDArray[np.bool_]) -> tuple[float, float]:
    """Mean intersection over union with the true patches, and the expectation for as many random patches."""
    if selected.shape != truth.shape:
        raise ValueError(f"truth must be a boolean table {selected.shape}; got {truth.shape}.")
    some = truth.any(1)
    both, either = (selected & truth).sum(1)[some], (selected | truth).sum(1)[some]
    n, chosen, real = truth.shape[1], selected.sum(1)[some], truth.sum(1)[some]
    expected = chosen * real / n
    return float((both / either).mean()), float((expected / (chosen + real - expected)).mean())
