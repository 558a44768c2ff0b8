"""Grad-CAM: where the evidence for a class is, in a CNN's maps and in a ViT's tokens alike."""

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.models.taps import record
from sightline.observe.model import ObservedModel
from sightline.observe.selection import as_tokens


def cam(activations: Float[Tensor, "b n d"], gradients: Float[Tensor, "b n d"]) -> Float[Tensor, "b n"]:
    """relu(sum over channels of mean gradient x activation) at each place (Selvaraju et al. 2017).

    >>> import torch
    >>> sl.analysis.cam(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), torch.tensor([[[2.0, -1.0], [2.0, -1.0]]])).tolist()
    [[2.0, 0.0]]
    """
    return (activations * gradients.mean(1, keepdim=True)).sum(-1).clamp(min=0)


def cam_layer(s: ObservedModel) -> str:
    """The last layer whose patches the head still depends on.

    After the last attention a class token sees no patch any more, so there it is the norm before that attention; with
    mean pooling, and for a CNN, it is the output of the last block.
    """
    if s.attention_blocks and s.pool == "cls" and s.prefix:
        return [p.path for p in s.parts if p.kind == "norm" and p.sublayer == "attention"][-1]
    return s.block_outputs[-1].path


def grad_cam(
    s: ObservedModel, images: Float[Tensor, "b c y x"], targets: Tensor | None, layer: str | None = None
) -> Float[Tensor, "b i j"]:
    """Grad-CAM maps of one batch on the layer's own grid, for the predicted or the given classes."""
    cells, grid = cam_cells(s, images, targets, layer)
    return cells.unflatten(1, grid)


def cam_cells(
    s: ObservedModel, images: Float[Tensor, "b c y x"], targets: Tensor | None, layer: str | None = None
) -> tuple[Float[Tensor, "b n"], tuple[int, int]]:
    """Grad-CAM of every cell that is there, and the layer's grid: fewer cells where patches are switched off."""
    name = cam_layer(s) if layer is None else layer
    with torch.enable_grad(), record(s.model, name) as tape:
        logits = s.model(images.detach().clone().requires_grad_())
    if logits.ndim != 2:
        raise ValueError(f"{s.name} has no classes to attribute.")
    wanted = logits.argmax(1) if targets is None else targets.to(logits.device)
    value = tape[name]
    (gradient,) = torch.autograd.grad(logits.gather(1, wanted[:, None]).sum(), value)
    found, slopes = as_tokens(value, s, name), as_tokens(gradient, s, name)
    p = found.prefix
    return cam(found.tokens[:, p:], slopes.tokens[:, p:]).detach(), found.grid or s.grid
