"""A class-token model compared with a mean-pooled one: localization, probes, CKA by block."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.probes import layer_probes, token_probes
from sightline.analysis.similarity.block_similarity import block_similarity, pad_rows
from sightline.analysis.similarity.localization import Localization, localization, share_of_all_hits
from sightline.data.datasets import Dataset
from sightline.evals.interval import Ends, ends, error_over_groups, intervals_of, known_ends, over_groups, t95
from sightline.observe.model import Model, ObservedModel, observe
from sightline.spec import Result


@dataclass(frozen=True, kw_only=True)
class PoolingComparison(Result):
    """Two models that differ in what their head reads, the class-token one first (Raghu et al., figures 10, 11, D.4).

    >>> import numpy as np
    >>> r = sl.analysis.PoolingComparison(title="", caption="", own=np.array([0.9, 0.2]), own_cka=np.array([0.5, 0.1]),
    ...     by_block=np.array([0.9, 0.3]), curves=(), accuracy=np.zeros((0, 2)), per_token=np.array([[0.1], [0.5]]),
    ...     layers=("blocks.1.mlp_sum",))
    >>> round(r.summary()["tokens most like their own patch, CLS minus GAP"], 6)
    0.7
    """

    own: NDArray[np.float64]  # (2,), share of tokens of the last block whose most similar patch is their own (C16)
    own_cka: NDArray[np.float64]  # (2,), mean CKA of these tokens with their own patch
    by_block: NDArray[np.float64]  # (blocks,), CKA of the two, block by block (C19)
    curves: tuple[str, ...]  # the five of figure 11b (C18)
    accuracy: NDArray[np.float64]  # (curves, blocks)
    per_token: NDArray[np.float64]  # (2, layers), mean accuracy of probes of single patches (C17)
    layers: tuple[str, ...]  # of the deeper one
    # half widths of the 95 % intervals over images of both of `own`, and of their difference
    own_half: NDArray[np.float64] = field(default_factory=lambda: np.full(3, np.nan))
    # without each group of images: (groups, blocks) of `by_block`, (groups of test images, 2) of the last `per_token`
    block_replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    token_replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))

    def summary(self) -> dict[str, float]:
        return {
            OWN: float(self.own[0] - self.own[1]),
            **{name: statistic(self.by_block) for name, statistic in BY_BLOCK.items()},
            **{name: float(self._last_tokens()[i]) for i, name in enumerate(TOKENS)},
        }

    def _last_tokens(self) -> NDArray[np.float64]:
        """Of either model, at its own last block."""
        return np.array([row[np.isfinite(row)][-1] if np.isfinite(row).any() else np.nan for row in self.per_token])

    def intervals(self) -> dict[str, Ends]:
        found = intervals_of(BY_BLOCK, (self.by_block, self.block_replicates), most=1.0)
        more = ends(float(self.own[0] - self.own[1]), float(self.own_half[2]), least=-1.0, most=1.0)
        tokens = self._last_tokens(), self.token_replicates
        each = {name: over_groups(lambda x, i=i: float(x[i]), tokens, least=0, most=1) for i, name in enumerate(TOKENS)}
        return found | known_ends({OWN: more, **each})


OWN = "tokens most like their own patch, CLS minus GAP"
TOKENS = "probe of single tokens, last block, CLS", "probe of single tokens, last block, GAP"
BY_BLOCK: dict[str, Callable[[NDArray], float]] = {
    "CKA of the two, lower half": lambda x: float(np.nanmean(x[: max(1, len(x) // 2)])),
    "CKA of the two, last block": lambda x: float(x[-1]),
}


def pooling_comparison(
    cls: Model,
    gap: Model,
    train: Dataset,
    test: Dataset,
    *,
    shots: int | None = 10,
    batch: int = 64,
    n: int | None = None,
    seed: int = 0,
) -> PoolingComparison:
    """Localization, CKA by block, the five probe curves and probes of single tokens of a CLS and a GAP model.

    Localization and CKA look at `n` images of `test`. Token probes are of the first, second, middle and last two
    blocks (the paper: 1, 2, 6, 11, 12).

    >>> train, test = (sl.dataset("scenes/shape", split, num=40, size=32) for split in ("train", "test"))
    >>> twins = [sl.build("vit-nano4", patch=16, depth=2, pool=pool) for pool in ("cls", "gap")]
    >>> found = sl.analysis.pooling_comparison(*twins, train, test, shots=2)
    >>> len(found.curves), found.per_token.shape
    (5, (2, 2))
    """
    one, two = observe(cls), observe(gap)
    _check(one, two)
    look = {"batch": batch, "n": n, "seed": seed}
    where = [localization(s, test, **look) for s in (one, two)]  # type: ignore[arg-type]
    scores = [found.summary() for found in where]
    alike = block_similarity({"CLS": one}, two, test, **look)  # type: ignore[arg-type]
    curves = layer_probes({"CLS": one, "GAP": two}, train, test, shots=shots, batch=batch)
    depths = [len(s.block_outputs) for s in (one, two)]
    chosen = [sorted({0, min(1, d - 1), d // 2 - 1 if d > 1 else 0, max(d - 2, 0), d - 1}) for d in depths]
    tokens = [token_probes(s, train, test, layers=c, shots=shots, batch=batch) for s, c in zip((one, two), chosen)]
    return PoolingComparison(
        title=f"{one.name} with a class token, {two.name} without",
        caption=(
            f"Localization and CKA over {where[0].how['n']:,} images; ridge probes of {shots or 'all'} images per "
            f"class, {len(test):,} to test."
        ),
        how={"n": where[0].how["n"], "batch": batch, "seed": seed, "shots": shots or "all", "test": len(test)},
        about=replace(curves.about, models=(one.id, two.id)),
        own=np.array([s["tokens most like their own patch"] for s in scores]),
        own_cka=np.array([s.get("CKA with the own patch, mean", np.nan) for s in scores]),
        by_block=alike.similarity[0],
        curves=curves.curves,
        accuracy=curves.accuracy,
        per_token=pad_rows([t.mean for t in tokens]),
        layers=max((t.layers for t in tokens), key=len),
        own_half=own_halves(*where),
        block_replicates=alike.replicates[:, 0],
        token_replicates=np.stack([t.replicates[:, -1] for t in tokens], axis=1),
    )


def own_halves(one: Localization, two: Localization) -> NDArray[np.float64]:
    """Half widths of the intervals over images of both shares of tokens most like their own patch, and of their
    difference: both models see the same images, in the same groups."""
    parts = [(found.maps, np.asarray(found.replicates, dtype=np.float64)) for found in (one, two)]
    step = 1 / min(len(one.maps), len(two.maps))
    errors = [error_over_groups(share_of_all_hits, part, step=step) for part in parts]
    errors.append(error_over_groups(lambda x, y: share_of_all_hits(x) - share_of_all_hits(y), *parts, step=step))
    return np.array([t95(freedom) * error for error, freedom in errors])


def _check(one: ObservedModel, two: ObservedModel) -> None:
    if not one.attention_blocks or one.pool != "cls" or not one.prefix:
        raise ValueError(f"The first model reads a class token; {one.name} pools by {one.pool!r}.")
    if not two.attention_blocks or two.pool != "gap":
        raise ValueError(f"The second model averages its patches; {two.name} pools by {two.pool!r}.")
