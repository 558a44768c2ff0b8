"""`sl.analysis.register_switch`: the neurons that make outlier tokens, as the switch of a register at test time."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from sightline.analysis.tokens.outliers import TIMES, check_request, outliers
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.registers import hidden_layer
from sightline.observe.stream import residual_stream, watching


def register_switch(
    model: Model, data: Data, *, count: int = 10, n: int = 64, batch: int = 16, times: float = TIMES, seed: int = 0
) -> str:
    """The switch of a test-time register: the neurons that make the outliers, for `what_if` and `outlier_tokens`.

    Of the blocks up to the one after which outliers stand, the `count` neurons with the largest mean absolute
    activation at the outliers (Jiang et al. 2025). A model without outliers has none, and is refused.

    >>> import torch
    >>> model = sl.build("vit-nano4", classes=10, depth=2)
    >>> sl.analysis.register_switch(model, torch.rand(4, 3, 32, 32))
    Traceback (most recent call last):
    ValueError: No patch of ViT 2x64 is an outlier in these 4 images, so there is nothing to move to a register.
    """
    s = observe(model)
    check_request(s, times, "")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count is a number of neurons from 1 up; got {count!r}.")
    images = [made.images[0] for made in ImageSource(data=data, batch=batch, n=n, seed=seed).batches([s])]
    with evaluation_mode(s):
        masks = [outlier_masks(s, x, times) for x in images]  # each (places, b, patches)
        share = torch.cat([m.double().mean(2) for m in masks], 1).mean(1)
        if not share.any():
            total = sum(map(len, images))
            raise ValueError(
                f"No patch of {s.name} is an outlier in these {total} images, "
                "so there is nothing to move to a register."
            )
        onset = int((share >= share.max() / 2).nonzero()[0])
        peak = int(share.argmax())
        score = sum(activity(s, x, m[peak]) for x, m in zip(images, masks))
    assert isinstance(score, Tensor)
    score = score[: max(onset, 1)]  # place i is the output of block i - 1
    best = score.flatten().topk(min(count, score.numel())).indices.tolist()
    return "register " + "+".join(f"{i // score.shape[1]}.{i % score.shape[1]}" for i in best)


def outlier_masks(s: ObservedModel, images: Tensor, times: float) -> Tensor:
    """Which patches are outliers at every place."""
    found: dict[int, Tensor] = {}

    def keep(place: int, x: Tensor) -> None:
        found[place] = outliers(torch.linalg.vector_norm(x[:, s.prefix :].float(), dim=-1), times)

    with watching(residual_stream(s), keep):
        s.model(images)
    return torch.stack([found[i] for i in sorted(found)])


def activity(s: ObservedModel, images: Tensor, mask: Tensor) -> Tensor:
    """Absolute activation of each block's neurons (blocks, neurons), summed over images and averaged over outliers."""
    found: list[Tensor] = []
    weight = mask.double() / mask.double().sum(1, keepdim=True).clamp(min=1)

    def keep(module: Any, args: Any, out: Tensor) -> None:
        found.append(torch.einsum("bn,bnd->d", weight.to(out), out[:, s.prefix :].abs()).double().cpu())

    with ExitStack() as stack:
        for block in s.attention_blocks:
            layer = hidden_layer(block)
            if layer is None:
                raise ValueError(f"{s.name} has MLPs whose neurons cannot be seen: a register cannot be added.")
            stack.callback(layer.register_forward_hook(keep).remove)
        s.model(images)
    return torch.stack(found)
