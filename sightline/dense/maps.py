"""Feature maps of any backbone: its last one, several layers, and its last blocks with queries among the tokens."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sightline.models import checks
from sightline.models.parts import Part, anatomy
from sightline.models.taps import record
from sightline.models.vit import ViT

LAYERS = 4  # that a multi-layer head reads, spread evenly over the depth


def normalized_map(tokens: Float[Tensor, "b n d"], grid: tuple[int, int]) -> Float[Tensor, "b d y x"]:
    """Tokens as a map, each normalized to mean 0 and variance 1, so that no layer outweighs another."""
    return F.layer_norm(tokens, tokens.shape[-1:]).mT.unflatten(2, grid)


def last_map(model: nn.Module, images: Tensor) -> Float[Tensor, "b d y x"]:
    """The last feature map of a model."""
    features = model.features(images)  # type: ignore[operator]
    return normalized_map(features.tokens, features.grid)


def layer_parts(model: nn.Module) -> list[Part]:
    """Up to four sums spread over the blocks of a transformer, or the last of each stage of a CNN; the last one ends
    the model."""
    sums = [p for p in anatomy(model) if p.kind == "sum" and p.sublayer != "attention"]
    maps = [p for p in sums if p.layout == "map"]
    if isinstance(model, ViT) or not maps:
        sums = [p for p in sums if p.layout == "tokens"]
        return [sums[(len(sums) * (i + 1)) // LAYERS - 1] for i in range(LAYERS) if (len(sums) * (i + 1)) // LAYERS]
    last = {p.stage: p for p in maps}
    return list(last.values())[-LAYERS:]


def layer_maps(model: nn.Module, images: Tensor) -> Float[Tensor, "b d y x"]:
    """Several layers of a model in one map: normalized, resized to the finest, concatenated."""
    parts = layer_parts(model)
    with record(model, *(p.path for p in parts)) as tape:
        features = model.features(images)  # type: ignore[operator]
    maps = [_as_map(tape[p.path], features.grid) for p in parts]
    size = max(m.shape[2:] for m in maps)
    return torch.cat([F.interpolate(m, size=size, mode="bilinear") if m.shape[2:] != size else m for m in maps], dim=1)


def _as_map(values: Tensor, grid: tuple[int, int]) -> Float[Tensor, "b d y x"]:
    if values.ndim == 4:
        tokens, grid = values.flatten(2).mT, (values.shape[2], values.shape[3])
    else:
        tokens = values[:, values.shape[1] - grid[0] * grid[1] :]  # without prefix tokens
    return normalized_map(tokens, grid)


def check_queries(model: ViT, blocks: int) -> None:
    """Refuse a ViT whose last blocks cannot take queries."""
    c = model.encoder_config
    if c.position == "relative":
        raise ValueError("Relative positions leave no place for queries in the sequence: use another position=.")
    if c.attention == "axial":
        raise ValueError(
            "Axial attention goes along the rows and columns of patches, where queries have no place: --set "
            "head=linear or --set head=layers segments with it; detection needs full attention."
        )
    if blocks > c.depth:
        raise ValueError(f"The queries run through the last {blocks} blocks; this model has {c.depth}: --set decoder.")


def first_tokens(model: ViT, images: Tensor, blocks: int) -> Float[Tensor, "b t d"]:
    """All tokens before the last `blocks` blocks."""
    x = model.sequence(model.stem(images))
    for i in range(model.encoder_config.depth - blocks):
        x = run_block(model, x, i, tokens=x.shape[1])
    return x


def run_block(model: ViT, x: Float[Tensor, "b t d"], index: int, *, tokens: int) -> Float[Tensor, "b t d"]:
    """One block of a ViT; what follows its own `tokens` in the sequence has no position."""
    c = model.encoder_config
    if c.position_at != "stem":
        own = model.add_positions(x[:, :tokens], index if c.position_at == "every" else 0, None)
        x = torch.cat([own, x[:, tokens:]], dim=1)
    block = model.blocks[index]
    if model.checkpointing and model.training:
        return checkpoint(block, x, use_reentrant=False)
    return block(x)


def map_stride(model: nn.Module, grid: tuple[int, int]) -> int:
    """Pixels per cell of a map, along its shorter stride."""
    y, x = checks.pair(model.config.size)  # type: ignore[arg-type]
    return max(1, min(y // grid[0], x // grid[1]))
