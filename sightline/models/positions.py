"""Position embeddings, and how they are resampled to another grid."""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

Grid = tuple[int, int]
Kind = Literal["none", "1d", "2d", "relative", "sincos"]

# How each library resamples. They differ by 10 to 20 % of the norm at 14x14 -> 24x24, so the method is an option.
METHODS: dict[str, dict] = {
    "paper": {"mode": "bilinear", "align_corners": True},  # scipy zoom, order 1, corner to corner
    "timm": {"mode": "bicubic", "align_corners": False, "antialias": True},
    "timm-npz": {"mode": "bilinear", "align_corners": False},
    "hf": {"mode": "bicubic", "align_corners": False},
    "torchvision": {"mode": "bicubic", "align_corners": True},
}


def resample(grid: Float[Tensor, "y x d"], size: Grid, method: str = "paper") -> Float[Tensor, "{size[0]} {size[1]} d"]:
    """A grid of vectors resampled to another size by a library's rule; unchanged if the size is the same."""
    if method not in METHODS:
        raise ValueError(f"Position embeddings are resized by one of {', '.join(METHODS)}; got {method!r}.")
    if tuple(grid.shape[:2]) == tuple(size):
        return grid
    exact = grid if grid.dtype in (torch.float32, torch.float64) else grid.float()
    image = rearrange(exact, "y x d -> 1 d y x")
    return rearrange(F.interpolate(image, size=size, **METHODS[method]), "1 d y x -> y x d").to(grid.dtype)


def sincos_2d(grid: Grid, width: int, temperature: float = 10_000.0) -> Float[Tensor, "n d"]:
    """Fixed sine and cosine waves along x, then y (big_vision's `sincos2d`; Beyer et al. 2022)."""
    omega = temperature ** -torch.linspace(0, 1, width // 4, dtype=torch.float64)
    y = torch.arange(grid[0], dtype=torch.float64).repeat_interleave(grid[1])[:, None] * omega
    x = torch.arange(grid[1], dtype=torch.float64).repeat(grid[0])[:, None] * omega
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).float()


class Positions(nn.Module):
    """Adds a position embedding to every token: `1d`, `2d` (column and row tables of half the width) or `sincos`.

    Each of the first `rows` prefix tokens has a learned vector of its own: the class token has no position on the grid
    (the paper leaves this open for 2-D). Further prefix tokens (registers) have none.
    """

    waves: Tensor

    def __init__(self, kind: Literal["1d", "2d", "sincos"], grid: Grid, width: int, *, rows: int, prefix: int):
        super().__init__()
        self.kind, self.grid, self.width, self.rows, self.prefix = kind, grid, width, rows, prefix
        y, x = grid
        match kind:
            case "1d":
                self.table = nn.Parameter(torch.empty(rows + y * x, width))
            case "2d":
                self.along_x = nn.Parameter(torch.empty(x, width // 2))
                self.along_y = nn.Parameter(torch.empty(y, width // 2))
                self.prefix_rows = nn.Parameter(torch.empty(rows, width))
            case "sincos":
                self.register_buffer("waves", torch.empty(y * x, width), persistent=False)

    def initialize(self, generator: torch.Generator) -> None:
        for table in self.parameters():
            nn.init.normal_(table, std=0.02, generator=generator)
        self.refill()

    def refill(self) -> None:
        """Compute the fixed sine waves: files do not store them, and a model from the meta device has no values."""
        if self.kind == "sincos":
            self.waves.copy_(sincos_2d(self.grid, self.width))

    def patches(self) -> Float[Tensor, "n d"]:
        """The embedding of each grid cell, in raster order."""
        match self.kind:
            case "1d":
                return self.table[self.rows :]
            case "2d":
                y, x = self.grid
                columns = self.along_x.expand(y, x, -1)
                lines = self.along_y[:, None].expand(y, x, -1)
                return torch.cat([columns, lines], dim=-1).flatten(0, 1)
            case _:
                return self.waves

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        if self.kind == "1d" and self.rows == self.prefix:
            return x + self.table
        patches = self.patches()
        blank = patches.new_zeros(self.prefix - self.rows, self.width)
        return x + torch.cat([self._prefix_vectors(), blank, patches])

    def _prefix_vectors(self) -> Float[Tensor, "rows d"]:
        """The position vectors of the prefix tokens that have one."""
        match self.kind:
            case "1d":
                return self.table[: self.rows]
            case "2d":
                return self.prefix_rows
            case _:
                return self.waves[:0]


class RelativePositions(nn.Module):
    """1-D relative attention (ViT, D.4): each raster offset between query and key has an embedding, which acts as an
    additional key; its product with the query is a bias on the attention logits.

    Only pairs of patches have offsets; pairs with a prefix token have no bias.
    """

    def __init__(self, grid: Grid, heads: int, width: int, *, prefix: int):
        super().__init__()
        self.grid, self.prefix = grid, prefix
        self.table = nn.Parameter(torch.empty(2 * grid[0] * grid[1] - 1, heads, width // heads))

    def initialize(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.table, std=0.02, generator=generator)

    def forward(self, q: Float[Tensor, "b h t d"]) -> Float[Tensor, "b h t t"]:
        n = self.grid[0] * self.grid[1]
        q = q[:, :, self.prefix :] * q.shape[-1] ** -0.5
        by_offset = torch.einsum("b h n d, o h d -> b h n o", q, self.table)
        place = torch.arange(n, device=q.device)
        offset = (place[:, None] - place[None, :] + n - 1).expand(*q.shape[:2], n, n)  # p_q - p_k, from 0
        return F.pad(by_offset.gather(-1, offset), (self.prefix, 0, self.prefix, 0))


def resize_state(module: nn.Module, state: dict[str, Tensor], prefix: str, grid: Grid, method: str) -> None:
    """Resample the tables of one Positions or RelativePositions inside a state dict to a new grid, in place."""

    def table(name: str) -> Tensor:
        return state[prefix + name]

    if isinstance(module, RelativePositions):
        state[prefix + "table"] = resample_offsets(table("table"), module.grid, grid)
    elif isinstance(module, Positions) and module.kind == "1d":
        head, body = table("table")[: module.rows], table("table")[module.rows :]
        new = resample(body.unflatten(0, module.grid), grid, method).flatten(0, 1)
        state[prefix + "table"] = torch.cat([head, new])
    elif isinstance(module, Positions) and module.kind == "2d":
        state[prefix + "along_y"] = resample(table("along_y")[:, None], (grid[0], 1), method)[:, 0]
        state[prefix + "along_x"] = resample(table("along_x")[:, None], (grid[1], 1), method)[:, 0]


def resample_offsets(table: Float[Tensor, "offsets h d"], old: Grid, new: Grid) -> Float[Tensor, "new_offsets h d"]:
    """Relative embeddings on another grid. A raster offset is read as the nearest (rows, columns) and interpolated
    bilinearly among the old offsets with corners aligned, so that one row down stays one row down."""
    if tuple(old) == tuple(new):
        return table
    y, x = new
    offset = torch.arange(-(y * x - 1), y * x, device=table.device)
    rows = torch.div(offset + x // 2, x, rounding_mode="floor").clamp(-(y - 1), y - 1)
    columns = offset - rows * x
    down = rows.double() * (old[0] - 1) / max(y - 1, 1)
    across = columns.double() * (old[1] - 1) / max(x - 1, 1)
    total = torch.zeros(len(offset), *table.shape[1:], dtype=torch.float64, device=table.device)
    for top in (0, 1):
        for left in (0, 1):
            r, c = down.floor() + top, across.floor() + left
            weight = (1 - (down - r).abs()) * (1 - (across - c).abs())
            index = (r * old[1] + c + old[0] * old[1] - 1).long().clamp(0, len(table) - 1)
            total += weight[:, None, None] * table[index].double()
    return total.to(table.dtype)
