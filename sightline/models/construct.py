"""Build a model from its configuration, and resize it for other images or patches."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from sightline.models import checks
from sightline.models.bit import BiT, BiTConfig
from sightline.models.hybrid import Hybrid, HybridConfig
from sightline.models.mixer import Mixer, MixerConfig, refuse_other_grid
from sightline.models.positions import Positions, RelativePositions, resize_state
from sightline.models.variants import Config, config
from sightline.models.vit import ViT, ViTConfig

Model = ViT | BiT | Mixer


def build(
    what: str | Config,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    checkpointing: bool = False,
    **changes: Any,
) -> Model:
    """A model from a name or a configuration, initialized as in the paper's code; the same seed gives the same model.

    Other keyword arguments change fields of the configuration: `classes`, `size`, `pool`, ... With `device="meta"` a
    model of any size is built without allocating memory. `checkpointing` recomputes activations in the backward pass
    instead of keeping them.

    >>> sl.build("vit-b16", classes=10, size=(224, 160), device="meta").config.grid
    (14, 10)
    """
    settings = config(what, **changes) if isinstance(what, str) else change(what, **changes)
    with torch.device("meta"):  # no time and no random numbers for values that are overwritten below
        model = from_config(settings)
    model.checkpointing = checkpointing
    target = torch.device(device) if device is not None else torch.get_default_device()
    if target.type == "meta":
        return model
    model = model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device starts from the same values
    model.initialize(generator)
    return model.to(target)


def from_config(config: Config) -> Model:
    """The module, with uninitialized values."""
    match config:
        case ViTConfig():
            return ViT(config)
        case BiTConfig():
            return BiT(config)
        case HybridConfig():
            return Hybrid(config)
        case MixerConfig():
            return Mixer(config)
    kinds = "ViTConfig, BiTConfig, HybridConfig or MixerConfig"
    raise ValueError(f"build takes a name or a {kinds}; got {type(config).__name__}.")


def change(config: Config, **changes: Any) -> Config:
    """A configuration with fields changed; a hybrid passes fields of the encoder on to it."""
    own = {k: v for k, v in changes.items() if k in type(config).__dataclass_fields__}
    rest = {k: v for k, v in changes.items() if k not in own}
    if rest and isinstance(config, HybridConfig):
        own["vit"], rest = change(own.get("vit", config.vit), **rest), {}
    if rest:
        known = ", ".join(type(config).__dataclass_fields__)
        raise ValueError(f"{type(config).__name__} has no field {next(iter(rest))!r}; it has {known}.")
    if isinstance(config, ViTConfig):  # derived fields follow, so that pool="gap" drops the class token
        own = {**_reset_derived(config, own), **own}
    return replace(config, **own)


def _reset_derived(c: ViTConfig, changes: dict[str, Any]) -> dict[str, Any]:
    """Fields to derive again because the fields that they were derived from change."""
    fresh: dict[str, Any] = {}
    if "pool" in changes and c.class_token == (c.pool == "cls"):
        fresh["class_token"] = None
    default_rows = bool(c.class_token) + c.distill_token if c.position in ("1d", "2d") else 0
    if {"pool", "class_token", "distill_token", "position"} & set(changes) and c.position_rows == default_rows:
        fresh["position_rows"] = None
    return fresh


def resize(
    model: Model, size: checks.Pair | None = None, *, patch: checks.Pair | None = None, method: str = "paper"
) -> Model:
    """A copy of the model for another image size, another patch size, or both.

    Position embeddings are resampled on their grid by the rule of `method` (paper, timm, timm-npz, hf, torchvision);
    rows of class and distillation tokens do not change. Patch kernels are multiplied by the pseudo-inverse of
    resizing, so that a resized patch has the same embedding (FlexiViT, Beyer et al. 2022). A Mixer keeps its number of
    patches: its size and its patch size change together.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> sl.models.resize(model, size=(32, 64)).config.grid
    (8, 16)
    """
    wanted = {k: v for k, v in {"size": size, "patch": patch}.items() if v is not None}
    if patch is not None and not isinstance(model.config, ViTConfig | MixerConfig):
        raise ValueError(
            "Only a plain ViT or a Mixer has patch kernels to resize; for BiT and hybrids give size instead."
        )
    new = change(model.config, **wanted)
    refuse_other_grid(model.config, new)
    state = {k: v.detach() for k, v in model.state_dict().items()}
    if isinstance(model, ViT):
        grid = new.grid  # type: ignore[union-attr]
        for path, module in model.named_modules():
            if isinstance(module, Positions | RelativePositions):
                resize_state(module, state, f"{path}.", grid, method)
    if patch is not None:
        state["embed.proj.weight"] = resize_kernel(state["embed.proj.weight"], checks.pair(patch))
    with torch.device("meta"):
        resized = from_config(new)
    resized = resized.to_empty(device=next(model.parameters()).device)
    resized = resized.to(next(model.parameters()).dtype)
    for module in resized.modules():
        if isinstance(module, Positions):
            module.refill()
    resized.load_state_dict(state)
    resized.image = replace(model.image, size=checks.pair(new.size))
    resized.checkpointing = model.checkpointing
    return resized.train(model.training)


def resize_kernel(kernel: Float[Tensor, "o i p q"], patch: tuple[int, int]) -> Float[Tensor, "o i r s"]:
    """Patch kernels for another patch size: w' = pinv(B') w, where B resizes a patch (bicubic, antialiased)."""
    old = (kernel.shape[2], kernel.shape[3])
    if old == patch:
        return kernel
    unit = torch.eye(old[0] * old[1], dtype=torch.float64, device=kernel.device).unflatten(1, (1, *old))
    resizing = F.interpolate(unit, size=patch, mode="bicubic", antialias=True, align_corners=False).flatten(1).mT
    carry = torch.linalg.pinv(resizing.mT)  # (new, old)
    return (kernel.double().flatten(2) @ carry.mT).unflatten(2, patch).to(kernel.dtype)
