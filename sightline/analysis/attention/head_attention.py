"""A few images with everything that was attended to in them: every patch, head and block, to be looked through."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.evals.interval import Ends, known_ends, of_mean, over_groups, without_each
from sightline.evals.prediction import noting_predictions
from sightline.observe.attention import attention_probs
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.spec import Result

LIMIT = 6 << 20  # bytes of attention that are kept: a page must hold them


@dataclass(frozen=True, kw_only=True)
class HeadAttention(Result):
    """Where every token of a few images looks, in every head of every block. 255 is the largest share of a row.

    >>> import numpy as np
    >>> r = sl.analysis.HeadAttention(title="", caption="", images=np.zeros((1, 8, 8, 3), np.uint8), grid=(1,
    ...     2), prefix=0,
    ...             attention=np.array([[[[[255, 0], [0, 255]]]]], np.uint8), peaks=np.ones((1, 1, 1, 2), np.float32))
    >>> r.row(0, 0, 0, 1).tolist(), r.summary()["heads that attend most to their own patch"]
    ([0.0, 1.0], 1.0)
    """

    images: NDArray[np.uint8]  # (n, height, width, 3)
    attention: NDArray[np.uint8]  # (n, blocks, heads, queries, cells); queries: the class token if any, then the cells
    peaks: NDArray[np.float32]  # (n, blocks, heads, queries): the share of attention that 255 stands for
    grid: tuple[int, int]
    prefix: int  # 1 if the first query is the class token

    def row(self, image: int, block: int, head: int, query: int) -> NDArray[np.float64]:
        """Shares of attention on each cell."""
        share = self.attention[image, block, head, query] / 255.0
        return np.asarray(share * self.peaks[image, block, head, query], dtype=np.float64)

    def summary(self) -> dict[str, float]:
        return {OWN: _most_own(self._own().mean(0)), PEAK: float(self.peaks.mean())}

    def intervals(self) -> dict[str, Ends]:
        own = self._own()
        part, one = (own.mean(0), without_each(own)), 1 / own[0].size
        peaks = of_mean(self.peaks.mean((1, 2, 3)), least=0.0, most=1.0)
        return known_ends({OWN: over_groups(_most_own, part, step=one, least=0.0, most=1.0), PEAK: peaks})

    def _own(self) -> NDArray[np.float64]:
        """(images, blocks, heads): the share of the patches that attend most to themselves."""
        own = self.attention[:, :, :, self.prefix :].argmax(-1) == np.arange(self.grid[0] * self.grid[1])
        return np.asarray(own.mean(3))


OWN, PEAK = "heads that attend most to their own patch", "largest share of one patch, mean"


def _most_own(shares: NDArray) -> float:
    """The share of heads in which more than half of the patches attend most to themselves."""
    return float((shares > 0.5).mean())


def head_attention(model: Model, data: Data, *, n: int = 4, seed: int = 0) -> HeadAttention:
    """The attention of every token, head and block on `n` images, as bytes, with the images beside it.

    What would be larger than 6 MiB is halved: first fewer images, down to two, then neighboring cells are joined
    (keys added up, queries averaged). `how["joined"]` says how many cells along each axis make one.

    >>> found = sl.head_attention(sl.build("vit-nano4", classes=10), sl.dataset("scenes/shape", num=3, size=32), n=2)
    >>> found.attention.shape
    (2, 6, 4, 65, 64)
    """
    s = observe(model)
    if not s.attention_blocks:
        raise ValueError(f"{s.name} has no attention to look at.")
    found: dict[int, list[Tensor]] = {}
    seen: list[NDArray[np.uint8]] = []
    images = ImageSource(data=data, batch=1, n=n, seed=seed)
    keep = attention_probs(s, lambda b, p: found.setdefault(b, []).append(p.float().cpu()))
    with evaluation_mode(s), keep as taps, noting_predictions(s) as said:
        for made in images.batches([s], what="attention of the heads"):
            s.model(made.images[0])
            seen.append(images.shown(made, s, 224))
    probs = torch.stack([torch.cat(found[b]) for b in sorted(found)], 1)  # (n, blocks, heads, tokens, tokens)
    made_of = _result(
        s, _rows(s, probs), np.concatenate(seen), {"seed": seed, "proof": taps.proof, "predictions": said}
    )
    return replace(made_of, about=images.about(s))


def _rows(s: ObservedModel, probs: Tensor) -> Tensor:
    """From the class token, if there is one, and from every cell; to the cells."""
    rows = probs[..., s.prefix :, s.prefix :]
    return torch.cat([probs[..., :1, s.prefix :], rows], dim=-2) if s.class_token else rows


def join(
    rows: Float[Tensor, "*b q k"], grid: tuple[int, int], first: int
) -> tuple[Float[Tensor, "*b q2 k2"], tuple[int, int]]:
    """Cells two by two: what they receive is added up, what they look at averaged; the first query stays."""
    lead = rows.shape[:-2]
    flat = rows.flatten(0, -3) if lead else rows[None]
    even = F.pad(
        flat.unflatten(-1, grid), (0, grid[1] % 2, 0, grid[0] % 2)
    )  # the last of an odd number has none beside
    small = (F.avg_pool2d(even, 2) * 4).flatten(2)
    new = (-(-grid[0] // 2), -(-grid[1] // 2))
    cells = small[:, first:].mT.unflatten(-1, grid)
    cells = F.avg_pool2d(cells, 2, ceil_mode=True).flatten(2).mT
    return torch.cat([small[:, :first], cells], 1).unflatten(0, lead or (1,)), new


def _result(s: ObservedModel, rows: Tensor, images: NDArray[np.uint8], how: dict[str, Any]) -> HeadAttention:
    first, grid, joined = int(s.class_token), s.grid, 1
    while rows.numel() > LIMIT and len(rows) > 2:
        rows = rows[: max(2, len(rows) // 2)]
    while rows.numel() > LIMIT and min(grid) > 1:
        rows, grid = join(rows, grid, first)
        joined *= 2
    peaks = rows.amax(-1)
    bytes_ = (rows / peaks.clamp(min=1e-12)[..., None] * 255).round().to(torch.uint8).numpy()
    small = "" if joined == 1 else f" {joined} x {joined} cells are joined to one."
    return HeadAttention(
        title=f"Where the heads of {s.name} look",
        caption=f"Attention of every token in {rows.shape[1]} blocks of {rows.shape[2]} heads, "
        f"{len(rows)} images, as bytes.{small} {how['proof']}.",
        how={**how, "n": len(rows), "joined": joined, "tokens": "all but registers"},
        images=images[: len(rows)],
        attention=bytes_,
        peaks=peaks.numpy().astype(np.float32),
        grid=grid,
        prefix=first,
    )
