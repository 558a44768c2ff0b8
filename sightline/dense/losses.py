"""Losses of dense tasks: cross-entropy of pixels, and of segments that were matched to queries."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from sightline.data.targets.target import IGNORE
from sightline.dense.config import DenseConfig
from sightline.dense.heads import Segments
from sightline.dense.matching import assign

CLASS, BCE, DICE = 2.0, 5.0, 5.0  # weights of the parts of the loss and of the matching (Mask2Former, section 4.1)
NOTHING = 0.1  # weight of queries that match no segment


@dataclass(frozen=True)
class TrueSegments:
    """The segments of one image at the resolution of predicted masks."""

    classes: Int[Tensor, " n"]
    masks: Float[Tensor, "n c"]  # share of each cell that belongs to the segment, of its pixels that count
    weights: Float[Tensor, " c"]  # share of each cell's pixels that count


def pixel_loss(logits: Float[Tensor, "b k y x"], maps: Int[Tensor, "b 2 h w"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of the pixels that have a class, with logits upsampled to the pixels."""
    scores = F.interpolate(logits.float(), size=maps.shape[2:], mode="bilinear")
    truth = maps[:, 0].long()
    sums = F.cross_entropy(scores, truth, ignore_index=IGNORE, reduction="sum")
    return sums / (truth != IGNORE).sum().clamp(min=1)


@torch.no_grad()
def true_segments(maps: Int[Tensor, "2 h w"], grid: tuple[int, int], config: DenseConfig) -> TrueSegments:
    """Segments of one label map: its objects, or, for segmentation, its classes. Shares of cells are exact."""
    kinds, objects = maps.long()
    height, width = kinds.shape
    rows = torch.arange(height, device=maps.device) * grid[0] // height
    columns = torch.arange(width, device=maps.device) * grid[1] // width
    # 0 is what is ignored; in detection 1 is what belongs to no object, in segmentation the background
    marks = torch.where(kinds == IGNORE, 0, (objects if config.task == "detect" else kinds) + 1)
    count = int(marks.max()) + 1
    cells = (rows[:, None] * grid[1] + columns) * count
    table = torch.bincount((cells + marks).flatten(), minlength=grid[0] * grid[1] * count).view(-1, count).mT.float()
    total, inside = table.sum(0), table[1:].sum(0)
    first = 2 if config.task == "detect" else 1
    there = first + table[first:].any(1).nonzero()[:, 0]
    numbers = kinds.new_zeros(count).scatter_(0, marks.flatten(), kinds.flatten())[there]
    return TrueSegments(
        classes=numbers - 1 if config.task == "detect" else numbers,
        masks=table[there] / inside.clamp(min=1),
        weights=inside / total.clamp(min=1),
    )


def segment_loss(stages: list[Segments], maps: Int[Tensor, "b 2 h w"], config: DenseConfig) -> Float[Tensor, ""]:
    """Mean over blocks and images of the loss of matched queries: class, and mask by cross-entropy and overlap."""
    grid = (stages[-1].masks.shape[2], stages[-1].masks.shape[3])
    truth = [true_segments(m, grid, config) for m in maps]
    losses = [_stage_loss(found, truth) for found in stages]
    return torch.stack(losses).mean()


def _stage_loss(found: Segments, truth: list[TrueSegments]) -> Tensor:
    """All images of a batch at once, after each was matched."""
    logits, masks = found.classes.float(), found.masks.float().flatten(2)
    nothing = logits.shape[-1] - 1
    wanted = torch.full(logits.shape[:2], nothing, device=logits.device)
    pairs = match(logits, masks, truth)
    for i, (query, segment) in enumerate(pairs):
        wanted[i, query] = truth[i].classes[segment]
    weights = torch.where(wanted == nothing, NOTHING, 1.0)
    each = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view_as(weights)
    loss = CLASS * (each * weights).sum() / weights.sum().clamp(min=1)
    rows = torch.cat([torch.full_like(query, i) for i, (query, _) in enumerate(pairs)])
    if not len(rows):
        return loss + 0 * masks.sum()  # every parameter takes part in every step
    chosen = masks[rows, torch.cat([query for query, _ in pairs])]
    targets = torch.cat([truth[i].masks[segment] for i, (_, segment) in enumerate(pairs)])
    counted = torch.stack([t.weights for t in truth])[rows]
    return loss + BCE * mask_bce(chosen, targets, counted).mean() + DICE * dice(chosen, targets, counted).mean()


def mask_bce(
    logits: Float[Tensor, "n c"], targets: Float[Tensor, "n c"], weights: Float[Tensor, "n c"]
) -> Float[Tensor, " n"]:
    """Binary cross-entropy of each mask, over the cells that count."""
    each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return (each * weights).sum(1) / weights.sum(1).clamp(min=1)


def dice(
    logits: Float[Tensor, "n c"], targets: Float[Tensor, "n c"], weights: Float[Tensor, "n c"]
) -> Float[Tensor, " n"]:
    """One minus the overlap of each mask with its target, 2 |A B| / (|A| + |B|), with 1 added to both."""
    p = logits.sigmoid() * weights
    both, sizes = (p * targets).sum(1), p.sum(1) + (targets * weights).sum(1)
    return 1 - (2 * both + 1) / (sizes + 1)


@torch.no_grad()
def match(
    logits: Float[Tensor, "b q k"], masks: Float[Tensor, "b q c"], truth: list[TrueSegments]
) -> list[tuple[Int[Tensor, " m"], Int[Tensor, " m"]]]:
    """Queries and their segments, image by image, at the least cost; with more segments than queries, the largest are
    matched."""
    kept = [t.masks.sum(1).argsort(descending=True, stable=True)[: logits.shape[1]] for t in truth]
    most = max(len(k) for k in kept)
    targets = torch.stack([F.pad(t.masks[k], (0, 0, 0, most - len(k))) for t, k in zip(truth, kept)])
    classes = torch.stack([F.pad(t.classes[k], (0, most - len(k))) for t, k in zip(truth, kept)])
    weights = torch.stack([t.weights for t in truth])[:, None]
    cost = -CLASS * logits.softmax(2).gather(2, classes[:, None].expand(-1, logits.shape[1], -1))
    # cross-entropy of every query with every segment: softplus(x) - x t, summed over the cells
    all_out, inside = (F.softplus(masks) * weights).sum(2, keepdim=True), (masks * weights) @ targets.mT
    cost = cost + BCE * (all_out - inside) / weights.sum(2, keepdim=True).clamp(min=1)
    p = masks.sigmoid() * weights
    sizes = p.sum(2, keepdim=True) + (targets * weights).sum(2)[:, None]
    cost = cost + DICE * (1 - (2 * (p @ targets.mT) + 1) / (sizes + 1))
    tables = cost.mT.double().cpu().numpy()
    return [(torch.from_numpy(assign(table[: len(k)])).to(k.device), k) for table, k in zip(tables, kept)]
