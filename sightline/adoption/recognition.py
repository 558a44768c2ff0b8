"""`sl.adopt`: a live model of another library, used unchanged."""

import torch
from torch import nn

from sightline.adoption.cnn import AdoptedCNN
from sightline.adoption.errors import AdoptionError
from sightline.adoption.transformer import AdoptedViT, find_blocks
from sightline.adoption.wrapper import AdoptedModel
from sightline.models.bit import BiT
from sightline.models.vit import ViT
from sightline.spec import ImageSpec


def adopt(module: nn.Module, image: ImageSpec | None = None) -> AdoptedModel:
    """Take in a live timm, transformers or torchvision ViT or CNN, unchanged.

    One image is sent through it to find out its anatomy and grid and to check them; a model that is not understood is
    refused with what is missing. `image` says how its images are prepared, where the model does not.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    >>> model = sl.adopt(net, image=sl.ImageSpec(size=(32, 32)))
    >>> model.config.kind, model.config.classes, model.config.grid
    ('cnn', 5, (15, 15))
    """
    if isinstance(module, AdoptedModel):
        return module
    if isinstance(module, ViT | BiT):
        raise AdoptionError(f"A {type(module).__name__} of Sightline needs no adoption: use it as it is.")
    refuse_windows(module)
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            kind = AdoptedViT if find_blocks(module) is not None else AdoptedCNN
            return kind.take(module, image)
    finally:
        module.train(training)


def refuse_windows(module: nn.Module) -> None:
    """Attention within windows (Swin, MaxViT, ViTDet): its probabilities are no map over the image's patches."""
    if "beit" in type(module).__name__.lower():  # it calls its whole grid a window
        return
    for path, part in module.named_modules():
        window = getattr(part, "window_size", None)
        if window and any(hasattr(part, name) for name in ("qkv", "query", "q_proj", "relative_position_bias_table")):
            raise AdoptionError(
                f"A {type(module).__name__} cannot be adopted: {path or 'it'} attends within windows of {window}, and "
                "what is measured here (distance, rollout, tokens by place) needs attention over all patches. "
                "Take a ViT or a CNN; of a Swin, sl.record gives any module's output as it is."
            )
