"""`sl.analysis.position_content`: how much of attention follows from positions alone, and how much from the image.

The analysis of variance that Song and Zhong 2023 and Doshi et al. 2026 apply to tokens, applied to what the softmax
sees; the probabilities alone say that, up to a constant of each row, so it works where queries and keys are hidden.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.analysis.attention.head_attention import join
from sightline.evals.interval import Ends, ends, intervals_of, jackknife, known_ends
from sightline.observe.attention import attention_probs
from sightline.observe.groups import ImageGroups
from sightline.observe.images import Data, ImageSource, thumbnails
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.spec import About, Result

PARTS = ("position", "key content", "pair content")
SHOWN = ("attention", "position alone", "content alone")
LIMIT = 6 << 20  # bytes of maps that are kept
GROUPS = 5  # of images: each is another sum of all pairs of patches, so there are few
CHUNK = 1 << 18  # probabilities that are reduced at a time: they stay in the cache


@dataclass(frozen=True, kw_only=True)
class PositionContent(Result):
    """Logits of attention between patches, each row centered, as a sum of three parts that are orthogonal over images:

    position: the mean over images of each pair of patches; key content: what an image adds to a key whatever the query
    is; pair content: the rest. `energy` is the mean square of each part, and `share` its share of the whole.

    >>> import numpy as np
    >>> e = np.array([[[6.0]], [[1.0]], [[1.0]]])
    >>> r = sl.analysis.PositionContent(title="", caption="", energy=e, total=e.sum(0), maps=np.zeros((3, 1, 1, 4, 4),
    ...     np.uint8), peaks=np.ones((3, 1, 1, 4), np.float32), image=np.zeros((8, 8, 3), np.uint8), grid=(2, 2))
    >>> r.share[:, 0, 0].tolist(), r.most_positional()
    ([0.75, 0.125, 0.125], (0, 0))
    """

    energy: NDArray[np.float64]  # (3 parts, blocks, heads), unbiased; with few images a part may be slightly negative
    total: NDArray[np.float64]  # (blocks, heads), mean square of the centered logits: the sum of the parts
    maps: NDArray[np.uint8]  # (3 shown, blocks, heads, queries, keys) of one image; 255 is the largest share of a row
    peaks: NDArray[np.float32]  # (3 shown, blocks, heads, queries), what 255 stands for
    image: NDArray[np.uint8]  # (height, width, 3), the image of the maps
    grid: tuple[int, int]
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 3, 0, 0)))  # (groups of images,
    # 3 parts, blocks, heads): the energies without each group

    @property
    def share(self) -> NDArray[np.float64]:
        """(3 parts, blocks, heads); NaN where attention is uniform."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.total > 0, self.energy / self.total, np.nan)

    def by_block(self) -> NDArray[np.float64]:
        """(3 parts, blocks): shares of the energy of all heads together."""
        return _by_block(self.energy)

    def band(self) -> NDArray[np.float64]:
        """(3 parts, blocks): half widths of the 95 % intervals of `by_block` over images; NaN for few images."""
        return jackknife(np.array([_by_block(e) for e in self.replicates]).reshape(-1, *self.energy.shape[:2]))

    def head_band(self) -> NDArray[np.float64]:
        """(3 parts, blocks, heads): half widths of the 95 % intervals of `share` over images; NaN for few images."""
        left = np.asarray(self.replicates).reshape(-1, *self.energy.shape)
        return jackknife(left / np.maximum(left.sum(1, keepdims=True), 1e-300))

    def most_positional(self) -> tuple[int, int]:
        """Block and head with the largest share of position."""
        row = np.where(np.isnan(self.share[0]), -np.inf, self.share[0])
        block, head = np.unravel_index(int(row.argmax()), row.shape)
        return int(block), int(head)

    def summary(self) -> dict[str, float]:
        numbers = {name: statistic(self.by_block()) for name, statistic in STATISTICS.items()}
        return numbers | {MOST: float(self.share[0][self.most_positional()])}

    def intervals(self) -> dict[str, Ends]:
        left = np.array([_by_block(e) for e in self.replicates]).reshape(-1, *self.energy.shape[:2])
        most = ends(float(self.share[0][self.most_positional()]), float(self.head_band()[0][self.most_positional()]))
        return intervals_of(STATISTICS, (self.by_block(), left), least=0.0, most=1.0) | known_ends({MOST: most})


MOST = "largest share of position in one head"
STATISTICS: dict[str, Callable[[NDArray], float]] = {  # of shares by block
    "position, first block": lambda each: float(each[0, 0]),
    "position, last block": lambda each: float(each[0, -1]),
    "position, lower half": lambda each: float(each[0, : max(each.shape[1] // 2, 1)].mean()),
    "position, upper half": lambda each: float(each[0, each.shape[1] // 2 :].mean()),
    "key content, mean": lambda each: float(each[1].mean()),
    "pair content, mean": lambda each: float(each[2].mean()),
}


def _by_block(energy: NDArray[np.float64]) -> NDArray[np.float64]:
    each = energy.sum(2)
    return np.asarray(each / np.maximum(each.sum(0), 1e-300), dtype=np.float64)


def position_content(
    model: Model, data: Data, *, n: int | None = None, batch: int = 16, seed: int = 0
) -> PositionContent:
    """Split the attention of every head into what positions say and what the image says; at least two images.

    Class and register tokens are left out. The mean of n images holds a little of their content: the energies are
    corrected for it, so a head that knows nothing of position has a share of 0 however few the images are.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> found = sl.analysis.position_content(model, sl.dataset("scenes/shape", num=8, size=32))
    >>> bool(abs(found.energy.sum(0) - found.total).max() < 1e-9), found.energy.shape
    (True, (3, 6, 4))
    """
    s = observe(model)
    if not s.attention_blocks:
        raise ValueError(f"{s.name} has no attention to split into position and content.")
    images = ImageSource(data=data, batch=batch, n=n, seed=seed)
    groups = ImageGroups(images.total, seed, most=GROUPS)
    sums = LogitSums(s, groups.count)
    with evaluation_mode(s), attention_probs(s, sums.keep) as taps:
        for made in images.batches([s], what="position and content"):
            sums.groups = groups(made.index)
            s.model(made.images[0])
            sums.finish_batch(made.images[0])
    if sums.images < 2:
        raise ValueError("One image does not tell position from content; give at least two, better 32.")
    how = {"n": sums.images, "batch": batch, "seed": seed, "tokens": "patches", "proof": taps.proof}
    return _result(s, sums, how, images.about(s))


def centered_logits(probs: Float[Tensor, "*b n n"]) -> Float[Tensor, "*b n n"]:
    """What the softmax saw, each row less its mean: log probabilities differ from logits by a constant per row.

    >>> import torch
    >>> logits = torch.tensor([[1.0, 2.0], [5.0, 3.0]])
    >>> sl.analysis.centered_logits(logits.softmax(-1)).round(decimals=4).tolist()
    [[-0.5, 0.5], [1.0, -1.0]]
    """
    logs = probs.log().clamp_(min=math.log(torch.finfo(probs.dtype).tiny))
    return logs.sub_(logs.mean(-1, keepdim=True))


class LogitSums:
    """Per block and group of images: sums of logits by pair of patches, of their squares, and of the squares of their
    column means."""

    def __init__(self, s: ObservedModel, count: int):
        self.target, self.images = s, 0
        self.groups = np.zeros(0, dtype=np.int64)  # of the images of this batch
        self.sizes = np.zeros(count)
        self.pairs: dict[int, Tensor] = {}  # (groups, heads, n, n)
        self.squares: dict[int, Tensor] = {}  # (groups, 2, heads): of logits, of their means over queries
        self.first: dict[int, Tensor] = {}  # logits of the first image
        self.known: dict[int, Tensor] = {}  # see `products`
        self.image: NDArray[np.uint8] | None = None

    def keep(self, block: int, probs: Tensor) -> None:
        p = self.target.prefix
        size = max(1, CHUNK // probs[0].numel())
        for start, part in zip(range(0, len(probs), size), probs[..., p:, p:].split(size)):
            logits = centered_logits(part.to(torch.promote_types(part.dtype, torch.float32)))
            if block not in self.pairs:
                shape = len(self.sizes), *logits[0].shape
                self.pairs[block] = torch.zeros(shape, dtype=logits.dtype, device=logits.device)
                self.squares[block] = torch.zeros(shape[0], 2, shape[1], dtype=torch.float64, device=logits.device)
                self.first[block] = logits[0].clone()
            whole = torch.linalg.vector_norm(logits.flatten(2), dim=2).double().square() / logits[0, 0].numel()
            squares = torch.stack([whole, logits.mean(-2).double().square().mean(2)], 1)
            for g, one, square in zip(self.groups[start:].tolist(), logits, squares):
                self.pairs[block][g] += one
                self.squares[block][g] += square

    def finish_batch(self, images: Tensor) -> None:
        """A batch is through."""
        if self.image is None:
            self.image = thumbnails(images[:1], self.target.image, 224)[0]
        self.images += len(images)
        self.sizes += np.bincount(self.groups, minlength=len(self.sizes))

    def energies(self, block: int, without: int | None = None) -> tuple[Tensor, Tensor]:
        """(3 parts, heads) and their sum, of all images or without a group of them. With S the variance over images,
        the square of a mean of n holds S / n."""
        squares, n = self.squares[block], self.images
        kept = torch.ones(len(squares), dtype=torch.float64, device=squares.device)
        if without is not None:
            kept[without], n = 0, int(self.images - self.sizes[without])
        whole, columns = torch.einsum("g,gkh->kh", kept, squares) / n
        fixed, fixed_columns = torch.einsum("a,khab,b->kh", kept, self.products(block), kept) / n**2
        content, key = ((a - b) * n / (n - 1) for a, b in ((whole, fixed), (columns, fixed_columns)))
        return torch.stack([fixed - content / n, key, content - key]), whole

    def products(self, block: int) -> Tensor:
        """(2, heads, groups, groups): mean products of the groups' sums of logits, and of their means over queries:
        the mean square without any group follows from them. Computed once, after the last batch."""
        if block not in self.known:
            pairs = self.pairs[block].double().permute(1, 0, 2, 3)  # (heads, groups, n, n)
            both = pairs.flatten(2), pairs.mean(2)
            self.known[block] = torch.stack([x @ x.mT / x.shape[2] for x in both])
        return self.known[block]

    def without_groups(self) -> NDArray[np.float64]:
        """(groups, 3 parts, blocks, heads); none where two images are not left."""
        if self.images - self.sizes.max() < 2:
            return np.zeros((0, 3, 0, 0))
        rows = [torch.stack([self.energies(b, g)[0] for b in sorted(self.pairs)], 1) for g in range(len(self.sizes))]
        return torch.stack(rows).cpu().numpy()


def _result(s: ObservedModel, sums: LogitSums, how: dict[str, Any], about: About) -> PositionContent:
    found = [sums.energies(b) for b in sorted(sums.pairs)]
    maps, peaks, grid, joined = _maps(s, sums)
    assert sums.image is not None
    small = "" if joined == 1 else f" In the maps {joined} x {joined} cells are joined to one."
    return PositionContent(
        title=f"Position and content in the attention of {s.name}",
        caption=f"Mean squares of the parts of the centered logits between patches, per block and head, over "
        f"{sums.images:,} images.{small} {how['proof']}.",
        how={**how, "joined": joined},
        about=about,
        energy=torch.stack([e for e, _ in found], 1).cpu().numpy(),
        total=torch.stack([t for _, t in found]).cpu().numpy(),
        maps=maps,
        peaks=peaks,
        image=sums.image,
        grid=grid,
        replicates=sums.without_groups(),
    )


def _maps(s: ObservedModel, sums: LogitSums) -> tuple[NDArray[np.uint8], NDArray[np.float32], tuple[int, int], int]:
    """Attention of the first image, and what it would be by either part of the logits alone, as bytes."""
    rows, peaks = [], []
    cells = s.grid[0] * s.grid[1]
    joined, size = 1, 3 * sum(len(x) for x in sums.first.values()) * cells**2
    while size > LIMIT and min(s.grid) > joined:
        joined, size = joined * 2, size // 16
    for block in sorted(sums.pairs):
        mean, whole = (sums.pairs[block].sum(0) / sums.images).float(), sums.first[block].float()
        probs, grid = torch.stack([whole, mean, whole - mean]).softmax(-1), s.grid
        for _ in range(joined.bit_length() - 1):
            probs, grid = join(probs, grid, 0)
        top = probs.amax(-1)
        rows.append((probs / top.clamp(min=1e-12)[..., None] * 255).round().to(torch.uint8).cpu())
        peaks.append(top.cpu())
    return torch.stack(rows, 1).numpy(), torch.stack(peaks, 1).numpy(), grid, joined
