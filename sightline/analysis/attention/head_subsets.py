"""Local heads see like a CNN's lower layers: CKA of head subsets, from local to global (Raghu et al., figure 5)."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.analysis.attention.distance import attention_distance
from sightline.analysis.embeddings import spearman
from sightline.analysis.similarity.grams import SMALLEST, Grams, Watch
from sightline.analysis.similarity.measures import gram
from sightline.analysis.similarity.sums import PRINTED, Sums
from sightline.evals.interval import Ends, jackknife, known_ends, over_groups
from sightline.models.taps import record
from sightline.observe.groups import ImageGroups
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.selection import Layers, select_layers
from sightline.spec import Result

LOWEST = 2  # blocks whose single heads are compared: those of the paper's figure 3


@dataclass(frozen=True, kw_only=True)
class HeadSubsets(Result):
    """CKA of subsets of the heads of one block, from the most local to the most global, with layers of a CNN.

    >>> import numpy as np
    >>> r = sl.analysis.HeadSubsets(title="", caption="", similarity=np.array([[0.6], [0.3]]),
    ...     distance=np.array([20.0, 90.0]),
    ...                    subsets=((0,), (1,)), columns=("stages.0.units.0.sum",), block=0)
    >>> round(r.summary()["rank correlation of CKA and distance, mean"], 6)
    -1.0
    """

    similarity: NDArray[np.float64]  # (subsets, layers of the CNN)
    distance: NDArray[np.float64]  # (subsets,), mean attention distance of the subset in pixels
    subsets: tuple[tuple[int, ...], ...]  # numbers of the heads
    columns: tuple[str, ...]
    block: int
    replicates: NDArray[np.floating] = field(default_factory=lambda: np.zeros((0, 0, 0)))  # (groups of images, subsets,
    # layers): the same without each group
    heads: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))  # (single heads, layers of the CNN)
    head_distance: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    head_replicates: NDArray[np.floating] = field(default_factory=lambda: np.zeros((0, 0, 0)))
    places: tuple[tuple[int, int], ...] = ()  # block and number of each single head: all of the two lowest blocks

    def ranks(self) -> NDArray[np.float64]:
        """Spearman's rank correlation of CKA and distance, for each layer of the CNN; C7: clearly below 0."""
        return self._ranks(self.similarity)

    def _ranks(self, similarity: NDArray) -> NDArray[np.float64]:
        # heads whose attention is all on prefix tokens have no distance, those that always say the same no CKA
        known = np.isfinite(self.distance) & np.isfinite(self.similarity).all(1)
        far = torch.from_numpy(self.distance[known])
        return np.array([spearman(torch.from_numpy(c), far) for c in similarity[known].T.astype(np.float64)])

    def interval(self) -> tuple[float, float]:
        """95 % interval over images of the mean of `ranks`; NaN where a file holds no replicates."""
        value = float(np.mean(self.ranks()))
        half = float(jackknife(np.array([np.mean(self._ranks(left)) for left in self.replicates])))
        return max(value - half, -1.0), min(value + half, 1.0)

    def mean_interval(self, row: int) -> Ends:
        """95 % interval over images of the mean CKA of one subset with the layers of the CNN."""
        return over_groups(lambda s: float(s[row].mean()), (self.similarity, self.replicates), most=1.0)

    def intervals(self) -> dict[str, Ends]:
        return known_ends(
            {
                "rank correlation of CKA and distance, mean": self.interval(),
                "most local subset, mean CKA": self.mean_interval(0),
                "most global subset, mean CKA": self.mean_interval(-1),
            }
        )

    def summary(self) -> dict[str, float]:
        low, high = self.interval()
        return {
            "rank correlation of CKA and distance, mean": float(np.mean(self.ranks())),
            "rank correlation, lower end of its 95 % interval": low,
            "rank correlation, upper end of its 95 % interval": high,
            "most local subset, mean CKA": float(self.similarity[0].mean()),
            "most global subset, mean CKA": float(self.similarity[-1].mean()),
        }


def head_subsets(
    model: Model,
    cnn: Model,
    data: Data,
    *,
    block: int = 0,
    size: int | None = None,
    layers: Layers | None = None,
    n: int | None = None,
    batch: int = 128,
) -> HeadSubsets:
    """Heads of one block, sorted by attention distance, `size` neighbors at a time, against lower layers of a CNN.

    The paper does not say how large its subsets are; here it is a quarter of the heads, at least one; `size=1` takes
    every head alone. All single heads of the two lowest blocks are compared as well. By default the CNN's layers are
    the outputs of its units in the first two stages. What a head found is taken before the heads are mixed, all tokens.

    >>> vit, cnn = sl.build("vit-nano4", classes=0), sl.build("bit-nano", classes=0)
    >>> found = sl.analysis.head_subsets(vit, cnn, sl.dataset("scenes/shape", num=16, size=32))
    >>> found.similarity.shape, bool(found.distance[0] <= found.distance[-1])
    ((4, 2), True)
    """
    s, other = observe(model), observe(cnn)
    far = attention_distance(s, data, n=n, batch=min(batch, 32)).pixels
    if not -len(far) <= block < len(far):
        raise ValueError(f"{s.name} has blocks 0 to {len(far) - 1}; there is no block {block}.")
    block %= len(far)
    order = np.argsort(far[block], kind="stable")
    size = max(1, len(order) // 4) if size is None else size
    if not 1 <= size <= len(order):
        raise ValueError(f"A subset has 1 to {len(order)} heads; got {size}.")
    subsets = [tuple(sorted(int(h) for h in order[i : i + size])) for i in range(len(order) - size + 1)]
    columns = _lower(other) if layers is None else select_layers(other, layers)
    places = [(b, h) for b in range(min(LOWEST, len(far))) for h in range(len(far[b]))]
    watch = HeadGrams(s, [*((block, subset) for subset in subsets), *((b, (h,)) for b, h in places)])
    images = ImageSource(data=data, batch=batch, n=n, distinct=True)
    groups = ImageGroups(images.total, 0)
    sums = Sums(watch.rows, columns, groups=groups.count)
    theirs = Watch(other, columns, "all")
    with evaluation_mode(s, other):
        for made in images.batches([s, other], what="head subsets"):
            if len(made) >= SMALLEST:
                member = torch.from_numpy(groups(made.index))
                sums.add(len(made), watch(made.images[0]), theirs(made.images[1]), groups=member)
    distance = np.array([far[b][list(h)].mean() for b, h in watch.subsets])
    how = {"n": sums.images, "batch": batch, "size": size, "tokens": "all", "block": block}
    found = _result(s, other, sums, (tuple(subsets), tuple(places), distance), how)
    return replace(found, about=images.about(s, other))


def _lower(s: ObservedModel) -> list[str]:
    """Outputs of the units of the first two stages, at most the five of the paper's figure."""
    names = [p.path for p in s.block_outputs if p.stage is not None and p.stage < 2]
    if not names:
        raise ValueError(f"{s.name} has no stages: name the layers to compare the heads with.")
    return names[:5]


class HeadGrams:
    """Gram matrices of subsets of heads: the sum of those of the heads, so each head is multiplied once."""

    def __init__(self, s: ObservedModel, subsets: list[tuple[int, tuple[int, ...]]]):
        self.target, self.subsets = s, subsets  # block and heads
        paths = [p.path for p in s.parts if p.kind == "heads"]
        self.paths = {b: paths[b] for b, _ in subsets}
        self.rows = [str(i) for i in range(len(subsets))]

    def __call__(self, images: Tensor) -> Grams:
        def keep(path: str, value: Tensor) -> list[Tensor]:
            return [gram(head.detach().flatten(1)) for head in value.unbind(1)]

        with record(self.target.model, *self.paths.values(), keep=keep) as tape:
            self.target.model(images)
        each = ((tape[self.paths[b]], heads) for b, heads in self.subsets)
        return Grams({row: torch.stack([all_[i] for i in heads]).sum(0) for row, (all_, heads) in zip(self.rows, each)})


def _result(s: ObservedModel, other: ObservedModel, sums: Sums, heads: Any, how: dict[str, Any]) -> HeadSubsets:
    subsets, places, distance = heads
    count, similarity = len(subsets), sums.cka().numpy()
    left = sums.ways[PRINTED].without_groups().numpy().astype(np.float32)
    return HeadSubsets(
        title=f"Heads of block {how['block']} of {s.name} against {other.name}",
        caption=(
            f"CKA of every {how['size']} neighboring heads, from local to global, with "
            f"{len(sums.columns or ())} lower layers of the CNN: {how['n']:,} images."
        ),
        how=how,
        similarity=similarity[:count],
        replicates=left[:, :count],
        distance=distance[:count],
        heads=similarity[count:],
        head_distance=distance[count:],
        head_replicates=left[:, count:],
        places=places,
        subsets=subsets,
        columns=tuple(sums.columns or ()),
        block=how["block"],
    )
