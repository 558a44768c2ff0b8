"""What the stem has learned: patch filters and position embeddings (ViT, figure 7)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.analysis.attention.statistics import cell_distances
from sightline.data.draws import hash_key
from sightline.evals.probing.ridge import threads
from sightline.models.taps import record
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.spec import About, Result

NULLS = 20  # random tables and filters that a model's are compared with: 19 degrees of freedom, an interval of 2.1 sd


@dataclass(frozen=True, kw_only=True)
class PatchFilters(Result):
    """Principal components of the filters that embed the patches, as small RGB images.

    >>> import numpy as np
    >>> r = sl.analysis.PatchFilters(title="", caption="", components=np.zeros((1, 2, 2, 3)), explained=np.array([0.5]),
    ...                     low_frequency=np.array([0.9]), low_frequency_of_noise=0.2)
    >>> r.summary()["variance explained"]
    0.5
    """

    components: NDArray[np.float64]  # (k, rows, columns, channels), unit length, the largest value positive
    explained: NDArray[np.float64]  # (k,), share of the variance
    low_frequency: NDArray[np.float64]  # (k,), share of the energy in the lowest quarter of frequencies
    low_frequency_of_noise: float  # the same for random filters
    noise: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))  # (draws, 2): see `of_random_filters`

    @property
    def smoothness(self) -> float:
        """Energy at low frequencies, each component weighted by what it explains."""
        return float((self.low_frequency * self.explained).sum() / self.explained.sum())

    def summary(self) -> dict[str, float]:
        return {
            "variance explained": float(self.explained.sum()),
            "energy at low frequencies": self.smoothness,
            "energy at low frequencies, noise": self.low_frequency_of_noise,
        }


def patch_filters(model: Model, *, count: int = 28) -> PatchFilters:
    """The first principal components of the patch embedding, or of a CNN's first convolution (ViT, figure 7 left).

    >>> sl.patch_filters(sl.build("vit-ti16")).components.shape
    (28, 16, 16, 3)
    """
    s = observe(model)
    weight = first_kernel(s.model).detach().double().cpu()  # (d, c, y, x)
    parts, explained = principal_filters(weight, count)
    count = len(parts)
    noise = torch.randn(64, *weight.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return PatchFilters(
        title=f"Patch filters of {s.name}",
        caption=f"First {count} principal components of {len(weight)} filters of {tuple(weight.shape[2:])} pixels.",
        how={
            "filters": len(weight),
            "count": count,
            "low frequencies": "below half of the Nyquist frequency on both axes",
        },
        about=About(models=(s.id,)),
        components=parts.permute(0, 2, 3, 1).numpy(),
        explained=explained.numpy(),
        low_frequency=low_frequency(parts).numpy(),
        low_frequency_of_noise=low_frequency(noise).mean().item(),
        noise=of_random_filters(weight.shape, count),
    )


def principal_filters(
    weight: Float[Tensor, "d c y x"], count: int
) -> tuple[Float[Tensor, "k c y x"], Float[Tensor, " k"]]:
    """Up to `count` principal components, the largest value of each positive, and the share of the variance of each."""
    rows = weight.flatten(1)
    rows = rows - rows.mean(0)
    with threads(1):  # more of them wait for each other, by far the longest where others use the machine
        _, values, basis = torch.linalg.svd(rows, full_matrices=False)
    count = min(count, int((values > 1e-12 * values[0]).sum()))
    sign = basis.gather(1, basis.abs().argmax(1, keepdim=True)).sign()  # a component has no sign of its own
    parts = (basis * sign)[:count].unflatten(1, weight.shape[1:])
    return parts, (values.square() / values.square().sum())[:count]


def of_random_filters(shape: Sequence[int], count: int) -> NDArray[np.float64]:
    """What so many components of random filters of this shape explain, and their energy at low frequencies, by draw.

    Every initialization draws the weights of a kernel alike and independently, so this is the untrained twin's, too.
    """
    rows = []
    for draw in range(NULLS):
        random = torch.Generator().manual_seed(hash_key(draw, "random filters") >> 1)
        parts, explained = principal_filters(torch.randn(*shape, generator=random, dtype=torch.float64), count)
        rows.append([explained.sum().item(), ((low_frequency(parts) * explained).sum() / explained.sum()).item()])
    return np.array(rows)


def first_kernel(model: nn.Module) -> Tensor:
    """Of the convolution that sees the pixels: the first whose input channels are the image's."""
    first = next(
        (m for m in model.modules() if isinstance(m, nn.Conv2d) and m.groups == 1 and m.in_channels <= 4), None
    )
    if first is None:
        raise ValueError(f"A {type(model).__name__} has no convolution that sees the pixels.")
    return first.weight


def low_frequency(filters: Float[Tensor, "k c y x"]) -> Float[Tensor, " k"]:
    """Share of the energy at frequencies below half the Nyquist frequency along both axes; 1 for a constant."""
    energy = torch.fft.fft2(filters).abs().square().sum(1)
    y, x = (torch.fft.fftfreq(size).abs() < 0.25 for size in filters.shape[2:])
    return (energy * (y[:, None] & x[None, :])).sum((1, 2)) / energy.sum((1, 2))


@dataclass(frozen=True, kw_only=True)
class PositionSimilarity(Result):
    """Cosine of the position embedding of each patch with those of all others, one tile per patch, and scores.

    >>> import numpy as np
    >>> r = sl.analysis.PositionSimilarity(title="", caption="", tiles=np.ones((1, 1, 1)), by_distance=np.ones((1, 2)),
    ...                           decay=-1.0, row_column=0.2, sinusoid=0.9, sinusoid_of_noise=0.1)
    >>> r.summary()["rank correlation with distance"]
    -1.0
    """

    tiles: NDArray[np.float64]  # (patches, rows, columns)
    by_distance: NDArray[np.float64]  # (distances, 2): distance in cells, mean cosine
    decay: float  # Spearman's rank correlation of cosine and distance: -1 where nearer is always more alike
    row_column: float  # mean cosine in the same row or column minus that of other pairs at equal distance
    sinusoid: float  # share of the variance of the embedding that one wave per dimension explains
    sinusoid_of_noise: float  # the same for random embeddings
    isotropic: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # `row_column` of tables without rows

    def summary(self) -> dict[str, float]:
        return {
            "rank correlation with distance": self.decay,
            "same row or column, minus others as far": self.row_column,
            "explained by one wave per dimension": self.sinusoid,
            "explained by one wave, noise": self.sinusoid_of_noise,
        }


def position_embedding(s: ObservedModel) -> Float[Tensor, "y x d"]:
    """What is added to the patches before the first block: the first block's input without the patch embeddings.

    Nothing in it may depend on the image; a model whose first block sees more than a sum is refused.
    """
    enters = next((p.skip for p in s.parts if p.kind == "sum" and p.sublayer == "attention"), None)
    embed = next((p.path for p in s.parts if p.kind == "embed" and p.layout == "tokens"), None)
    if enters is None or embed is None:
        raise ValueError(f"{s.name} has no position embedding.")
    found = []
    with evaluation_mode(s):
        for image in (s.blank(), s.blank() + torch.linspace(-1, 1, s.blank().numel()).view_as(s.blank())):
            with record(s.model, embed, enters) as tape:
                s.model(image)
            found.append((tape[enters][0, s.prefix :] - tape[embed][0]).double().cpu())
    if (found[0] - found[1]).abs().max() > 1e-3 * tape[enters].abs().max():
        raise ValueError(f"What {s.name} adds to its patches depends on the image: it is no position embedding.")
    if not found[0].abs().max() > 1e-6:
        raise ValueError(f"{s.name} adds no position embedding to its patches.")
    return found[0].unflatten(0, s.grid)


def position_similarity(model: Model) -> PositionSimilarity:
    """Cosine similarity of position embeddings (ViT, figure 7 middle), whatever kind they are, with numbers.

    >>> found = sl.position_similarity(sl.build("vit-nano4", position="sincos"))
    >>> found.tiles.shape, found.decay < -0.5, found.row_column > 0
    ((64, 8, 8), True, True)
    """
    s = observe(model)
    table = position_embedding(s)
    flat = table.flatten(0, 1)
    unit = flat / flat.norm(dim=1, keepdim=True)
    cosine = unit @ unit.mT
    far = cell_distances(s.grid, (1.0, 1.0))
    pairs = ~torch.eye(len(far), dtype=torch.bool)
    levels = far[pairs].unique()
    near = [cosine[pairs & (far - level).abs().lt(1e-9)].mean() for level in levels]
    noise = torch.randn(table.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return PositionSimilarity(
        title=f"Position embeddings of {s.name}",
        caption=f"Cosine of the position embedding of each of {len(flat)} patches with all others.",
        how={"grid": s.grid, "table": "first block's input minus patch embeddings, on a blank image"},
        about=About(models=(s.id,)),
        tiles=cosine.unflatten(1, s.grid).numpy(),
        by_distance=torch.stack([levels, torch.stack(near)], dim=1).numpy(),
        decay=spearman(cosine[pairs], far[pairs]),
        row_column=row_column(cosine, s.grid),
        sinusoid=one_wave(table),
        sinusoid_of_noise=one_wave(noise),
        isotropic=of_isotropic_tables(cosine, s.grid, table.shape[2]),
    )


def of_isotropic_tables(cosine: Float[Tensor, "n n"], grid: tuple[int, int], width: int) -> NDArray[np.float64]:
    """`row_column` of random tables whose similarity falls with distance as this one's does, whatever the direction.

    The decay is smoothed over distance: as it is, integer distances are those of rows and columns alone, and the
    null would have the very effect that it is to lack.
    """
    far = cell_distances(grid, (1.0, 1.0))
    kernel = smooth_decay(cosine, far)
    values, basis = torch.linalg.eigh(kernel)
    root = basis * values.clamp(min=0).sqrt()
    found = []
    for draw in range(NULLS):
        random = torch.Generator().manual_seed(hash_key(draw, "isotropic table") >> 1)
        table = root @ torch.randn(len(far), width, generator=random, dtype=torch.float64)
        unit = table / table.norm(dim=1, keepdim=True)
        found.append(row_column(unit @ unit.mT, grid))
    return np.array(found)


def smooth_decay(cosine: Float[Tensor, "n n"], far: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """The cosine as a function of distance alone: local lines, by a Gaussian window one cell wide; 1 with itself."""
    levels, where = far.unique(return_inverse=True)
    sums = torch.zeros(2, len(levels), dtype=torch.float64)
    for row, value in zip(sums, (torch.ones_like(cosine), cosine)):
        row.index_add_(0, where.flatten(), value.flatten())
    count, mean = sums[0].clone(), sums[1] / sums[0]
    count[0] = 0  # a patch with itself is 1, however steep the decay is
    gap = levels[None, :] - levels[:, None]
    weight = torch.exp(-(gap**2) / 2) * count
    w0, w1, w2 = weight.sum(1), (weight * gap).sum(1), (weight * gap**2).sum(1)
    line = (w2 * (weight @ mean) - w1 * ((weight * gap) @ mean)) / (w0 * w2 - w1**2).clamp(min=1e-12)
    line[0] = 1.0
    return line[where]


def spearman(x: Tensor, y: Tensor) -> float:
    """Rank correlation; equal values share their mean rank. NaN has no rank, and all of it is NaN then."""
    if len(x) < 2 or x.isnan().any() or y.isnan().any():
        return float("nan")
    ranks = [_ranks(v) - (len(v) - 1) / 2 for v in (x.double(), y.double())]
    scale = ranks[0].norm() * ranks[1].norm()
    return (ranks[0] @ ranks[1] / scale).item() if scale > 0 else float("nan")


def _ranks(x: Tensor) -> Tensor:
    _, group, count = x.unique(return_inverse=True, return_counts=True)
    return ((count.cumsum(0) - count) + (count - 1) / 2)[group].double()


def row_column(cosine: Float[Tensor, "n n"], grid: tuple[int, int]) -> float:
    """Mean cosine of pairs in one row or column, minus that of other pairs at the nearest distance, by distance."""
    far = cell_distances(grid, (1.0, 1.0))
    row, column = (t.flatten() for t in torch.meshgrid(*(torch.arange(g) for g in grid), indexing="ij"))
    aligned = ((row[:, None] == row) | (column[:, None] == column)) & (far > 0)
    other = ~aligned & (far > 0)
    gaps = []
    for length in range(2, max(grid)):
        same, else_ = aligned & (far == length), other & ((far - length).abs() <= 0.25)
        if same.any() and else_.any():
            gaps.append(cosine[same].mean() - cosine[else_].mean())
    return torch.stack(gaps).mean().item() if gaps else float("nan")


def one_wave(table: Float[Tensor, "y x d"]) -> float:
    """Share of the variance over the grid that the best plane wave per dimension explains, frequencies to ¼ step."""
    x = table - table.mean((0, 1))
    padded = torch.fft.fft2(x, s=(4 * x.shape[0], 4 * x.shape[1]), dim=(0, 1)).abs().square()
    padded[0, 0] = 0
    best = 2 * padded.flatten(0, 1).amax(0) / (x.shape[0] * x.shape[1])
    energy = x.square().sum((0, 1))
    return (torch.minimum(best, energy).sum() / energy.sum()).item()
