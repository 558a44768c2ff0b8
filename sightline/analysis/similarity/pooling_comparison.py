"""A class-token model beside its mean-pooled twin: where tokens stay, what they know, where the two part."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.probes import layer_probes, token_probes
from sightline.analysis.similarity.block_similarity import block_similarity, padded
from sightline.analysis.similarity.localization import localization
from sightline.data.datasets import Dataset
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

    def summary(self) -> dict[str, float]:
        half = max(1, len(self.by_block) // 2)
        return {
            "tokens most like their own patch, CLS minus GAP": float(self.own[0] - self.own[1]),
            "CKA of the twins, lower half": float(self.by_block[:half].mean()),
            "CKA of the twins, last block": float(self.by_block[-1]),
            "probe of single tokens, last block, CLS": float(self.per_token[0, -1]),
            "probe of single tokens, last block, GAP": float(self.per_token[1, -1]),
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
        per_token=padded([t.mean for t in tokens]),
        layers=max((t.layers for t in tokens), key=len),
    )


def _check(one: ObservedModel, two: ObservedModel) -> None:
    if not one.attention_blocks or one.pool != "cls" or not one.prefix:
        raise ValueError(f"The first of the twins reads a class token; {one.name} pools by {one.pool!r}.")
    if not two.attention_blocks or two.pool != "gap":
        raise ValueError(f"The second of the twins averages its patches; {two.name} pools by {two.pool!r}.")
