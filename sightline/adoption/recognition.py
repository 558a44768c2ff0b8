"""`sl.adopt`: a live model of another library, used unchanged."""

import torch
from torch import nn

from sightline.adoption.cnn import AdoptedCNN
from sightline.adoption.mixer import AdoptedMixer, find_mixer_blocks, refuse_other_mlps
from sightline.adoption.transformer import AdoptedViT, find_blocks
from sightline.adoption.wrapper import AdoptedModel, AdoptionError
from sightline.models.construct import Model
from sightline.spec import ImageSpec


def adopt(module: nn.Module, image: ImageSpec | None = None) -> AdoptedModel:
    """Wrap a live timm, transformers or torchvision ViT or CNN, or timm's MLP-Mixer, unchanged.

    One image is passed through it to determine its anatomy and grid and to check them; a model that is not recognized
    raises AdoptionError, which says what is missing. `image` gives the preprocessing if the model does not state it.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    >>> model = sl.adopt(net, image=sl.ImageSpec(size=(32, 32)))
    >>> model.config.kind, model.config.classes, model.config.grid
    ('cnn', 5, (15, 15))
    """
    if isinstance(module, AdoptedModel):
        return module
    if isinstance(module, Model):
        raise AdoptionError(f"A {type(module).__name__} of Sightline needs no adoption: use it directly.")
    refuse_windows(module)
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            if find_blocks(module) is not None:
                return AdoptedViT.from_module(module, image)
            if find_mixer_blocks(module) is not None:
                return AdoptedMixer.from_module(module, image)
            refuse_other_mlps(module)
            return AdoptedCNN.from_module(module, image)
    finally:
        module.train(training)


def refuse_windows(module: nn.Module) -> None:
    """Refuse attention within windows (Swin, MaxViT, ViTDet): its probabilities are not a map over all patches."""
    if "beit" in type(module).__name__.lower():  # here the window is the whole grid
        return
    for path, part in module.named_modules():
        window = getattr(part, "window_size", None)
        if window and any(hasattr(part, name) for name in ("qkv", "query", "q_proj", "relative_position_bias_table")):
            raise AdoptionError(
                f"A {type(module).__name__} cannot be adopted: {path or 'it'} attends within windows of {window}, and "
                "the analyses (attention distance, rollout, tokens by position) need attention over all patches. "
                "Use a ViT or a CNN; sl.record still records the output of any module of a Swin."
            )
