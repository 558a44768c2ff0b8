"""Maps that need more than one forward pass: gradients, receptive fields, the logit lens, features as colors."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sightline.analysis.attention.rollout import from_head, rollout_of
from sightline.analysis.pca import SIDE, principal
from sightline.analysis.receptive_fields import ReceptiveField, receptive_field
from sightline.analysis.saliency.attribution import check_method
from sightline.analysis.saliency.cam import cam_cells
from sightline.analysis.tokens.logit_lens import readable, scores
from sightline.app.passes import (
    Grid,
    Pass,
    Spot,
    cell_at,
    kept_tokens,
    places,
    spread,
    spread_attention,
    tokens_of,
)
from sightline.observe.model import ObservedModel, evaluation_mode
from sightline.observe.readout import Readout, readout
from sightline.observe.stream import Place
from sightline.observe.switches import switch_off


@dataclass(frozen=True)
class Lens:
    """The logit lens of one image at every depth that the head can read."""

    places: tuple[str, ...]
    target: int
    probability: NDArray[np.float32]  # (places, cells), of the target; NaN where a patch is switched off
    rank: NDArray[np.float32]  # share of classes below the target
    top: NDArray[np.int64]  # (places, cells)
    answer: NDArray[np.float32]  # (places,), of the target as the model pools its tokens
    grid: Grid


class Head:
    """How a model's own head reads single tokens, found once."""

    def __init__(self, observed: ObservedModel):
        self.observed = observed

    @cached_property
    def readout(self) -> Readout:
        return readout(self.observed)

    @cached_property
    def places(self) -> list[Place]:
        return readable(self.observed)


def attribution(p: Pass, method: str, target: int) -> NDArray[np.float32]:
    """Grad-CAM or gradient rollout for a class, (y, x), as `sl.attribution` computes the maps."""
    s, wanted = p.observed, torch.tensor([target])
    check_method(s, method)
    kept = kept_tokens(s, p.gone)
    with evaluation_mode(s, gradients=True), switch_off(s, *p.off):
        if method == "grad_cam":
            cells, grid = cam_cells(s, p.pixels.clone(), wanted)
            found = cells[0] if kept is None else spread(cells[0], kept[s.prefix :] - s.prefix, grid[0] * grid[1])
            return found.unflatten(0, grid).float().cpu().numpy()
        joint, _ = rollout_of(s, p.pixels.clone(), wanted.to(p.pixels.device), identity=False, gradient=True)
    joint = joint.detach().float().cpu()
    joint = joint if kept is None else spread_attention(joint, kept, tokens_of(s))
    return from_head(joint, s)[0].numpy()


def field(p: Pass, depth: int, spot: Spot) -> ReceptiveField:
    """The effective receptive field of the cell at a spot, by `sl.receptive_field`."""
    s = p.observed
    if p.gone:
        raise ValueError("A receptive field is one of the whole image: put the patches back first.")
    # the first place of a ViT is its input, whose field is the patch itself: the first block's is shown
    layer = s.block_outputs[max(0, depth - 1)].path if s.encoder_blocks else places(s)[depth].name
    grid = p.grid(depth)
    row, column = divmod(cell_at(grid, spot), grid[1])
    with switch_off(s, *p.off):
        return receptive_field(s, p.pixels.detach().clone(), layers=layer, at=(row, column), n=1)


def lens(p: Pass, head: Head, target: int | None) -> Lens:
    """Class scores of every cell at every depth, as `sl.analysis.logit_lens` computes them."""
    s, reads, places = p.observed, head.readout, head.places
    wanted = None if target is None else torch.tensor([target])
    with evaluation_mode(s), switch_off(s, *p.off):
        found = {k: v[0] for k, v in scores(s, reads, places, images=p.pixels, targets=wanted).items()}
    kept = kept_tokens(s, p.gone)

    def cells(name: str, fill: float) -> NDArray:
        rows = found[name].float()
        rows = rows if kept is None else spread(rows.mT, kept, tokens_of(s), fill=fill).mT
        return rows[:, p.prefix :].numpy()

    return Lens(
        places=tuple(place.name for place in places),
        target=int(found["targets"]),
        probability=cells("probability", float("nan")),
        rank=(1 - cells("rank", float("nan")) / max(s.classes - 1, 1)).astype(np.float32),
        top=cells("top", -1).astype(np.int64),
        answer=found["answer"].numpy(),
        grid=s.grid,
    )


def colors(p: Pass) -> list[tuple[Grid, NDArray[np.uint8]]]:
    """Features as colors, by depth: the first three principal components of every cell, as in `sl.feature_pca`."""
    return [_colors(p, depth) for depth in range(len(p.stream))]


def _colors(p: Pass, depth: int) -> tuple[Grid, NDArray[np.uint8]]:
    y, x = p.grid(depth)
    grid = (min(SIDE, y), min(SIDE, x))
    cells: Tensor = p.cells(depth).float()
    if grid != (y, x):
        cells = F.adaptive_avg_pool2d(cells.mT.unflatten(1, (y, x)), grid).flatten(1).mT
    there = torch.ones(len(cells), dtype=torch.bool)
    there[list(p.gone)] = False
    parts, _ = principal(cells[there], 3)
    low, high = (parts.quantile(q, dim=0) for q in (0.02, 0.98))
    share = ((parts - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    out = torch.zeros(len(cells), 3, dtype=torch.float64)
    out[there] = share
    return grid, (out * 255).round().to(torch.uint8).numpy()
