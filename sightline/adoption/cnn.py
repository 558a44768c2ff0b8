"""Adopting a CNN: its anatomy is found by tracing one image through it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sightline.adoption.preprocessing import library, size_of, spec_of
from sightline.adoption.shortcuts import Shortcut, Shortcuts, find
from sightline.adoption.wrapper import AdoptedConfig, AdoptedModel, AdoptionError, Hook, first_logits, temporary_hooks
from sightline.models.parts import Part
from sightline.spec import Features, ImageSpec

UNIT = re.compile(r"Bottleneck|Block|Unit|Layer|Residual|Inception")  # names of units outside a sequence of modules
NOT_A_UNIT = re.compile(r"Squeeze|^SE|SELayer|ECA|Pool|Norm(Act\w*|2d)?$|Activation$")  # gates have convolutions too
NORMS = (nn.BatchNorm2d, nn.GroupNorm, nn.InstanceNorm2d, nn.LayerNorm)


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module during the traced pass."""

    path: str
    module: nn.Module
    shape: tuple[int, ...]  # of the output


def trace(module: nn.Module, x: Tensor) -> tuple[list[ModuleCall], Tensor]:
    """Every module that ran, in the order in which the calls finished, and the output."""
    seen: list[ModuleCall] = []
    hooks: list[Hook] = []
    for path, child in module.named_modules():
        if path:
            hooks.append((child, "out", lambda t, p=path, m=child: seen.append(ModuleCall(p, m, tuple(t.shape)))))  # type: ignore[misc]
    with temporary_hooks(hooks):
        return seen, first_logits(module(x))


class AdoptedCNN(AdoptedModel):
    """A CNN of another library."""

    def __init__(
        self, inner: nn.Module, last: nn.Module, classifier: nn.Module | None, added: list[Shortcut], **about: Any
    ):
        super().__init__(inner, **about)
        self.units = nn.ModuleList(Shortcuts(a) for a in added)
        object.__setattr__(self, "last", last)  # references: `inner` owns the modules
        object.__setattr__(self, "classifier", classifier)

    @classmethod
    def from_module(cls, module: nn.Module, image: ImageSpec | None) -> "AdoptedCNN":
        """Adopt a module after tracing one image through it."""
        convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
        name = type(module).__name__
        if not convolutions:
            raise AdoptionError(f"A {name} cannot be adopted: it has neither attention blocks nor convolutions.")
        size = image.size if image else size_of(module)
        channels = convolutions[0].in_channels
        first = next(module.parameters())
        x = torch.zeros(1, channels, *size, dtype=first.dtype, device=first.device)
        try:
            seen, out = trace(module, x)
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise AdoptionError(
                f"A {name} does not take images of {size[0]} x {size[1]} ({reason}): give image=ImageSpec(size=...)."
            ) from error
        maps = [s for s in seen if len(s.shape) == 4]
        wide = [s for s in maps if s.shape[2] * s.shape[3] > 1] or maps
        if not wide or wide[-1].shape[2] > wide[-1].shape[1] * 64:
            raise AdoptionError(f"A {name} cannot be adopted: it has no feature map (batch, channels, rows, columns).")
        if out.flatten(1).ndim != 2 or out.numel() != out.shape[0] * out.shape[1]:
            raise AdoptionError(
                f"A {name} cannot be adopted: its output is {tuple(out.shape)}, not one vector per image."
            )
        last = wide[-1]
        if any(len(s.shape) == 3 and s.shape[1] > 1 for s in seen[seen.index(last) + 1 :]):
            raise AdoptionError(f"A {name} cannot be adopted: it processes tokens after its last feature map.")
        units = [s for s in maps if _is_unit(module, s)]
        classifier = _classifier(seen, seen.index(last), out)
        config = AdoptedConfig(
            library=library(module),
            kind="cnn",
            size=size,
            width=last.shape[1],
            depth=len(units) or len(convolutions),
            classes=out.shape[1] if classifier is not None else 0,
            channels=channels,
            grid=(last.shape[2], last.shape[3]),
        )
        random = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
        added = find(module, [u.module for u in units], random)
        parts = tuple(_parts(maps, units, config.classes, list(added)))
        spec = image or spec_of(module, size, channels)
        return cls(module, last.module, classifier, list(added.values()), config=config, image=spec, parts=parts)

    def tap_hooks(self) -> list[Hook]:
        return [hook for unit in self.units for hook in unit.tap_hooks()]  # type: ignore[operator]

    def last_layer(self) -> tuple[nn.Module, Literal["in", "out"]]:
        return self.last, "out"  # type: ignore[return-value]

    def classifier_layer(self) -> nn.Module | None:
        return self.classifier  # type: ignore[return-value]

    def to_features(self, last: Tensor, pooled: Tensor, size: tuple[int, int]) -> Features:
        tokens = last.flatten(2).mT
        return Features(tokens=tokens, grid=(last.shape[2], last.shape[3]), prefix=tokens[:, :0], pooled=pooled)


def _classifier(seen: list[ModuleCall], after: int, out: Tensor) -> nn.Module | None:
    """The last layer with weights after the feature map whose width is that of the model's output."""
    for s in reversed(seen[after + 1 :]):
        if isinstance(s.module, nn.Linear | nn.Conv2d) and s.shape[1] == out.shape[1]:
            return s.module
    return None


def _is_unit(model: nn.Module, s: ModuleCall) -> bool:
    """Whether it is a residual unit or similar: one of a sequence of modules, with several layers but no such sequence
    inside."""
    parent = model.get_submodule(s.path.rpartition(".")[0])
    in_row = isinstance(parent, nn.Sequential | nn.ModuleList) or _has_unit_name(s.module)
    return in_row and _has_several_layers(s.module) and not _contains_units(s.module)


def _has_unit_name(module: nn.Module) -> bool:
    """Whether its class name is that of a unit; an nn.Sequential so named is a branch (torchvision's RegNet)."""
    return bool(UNIT.search(type(module).__name__)) and not isinstance(module, nn.Sequential)


def _has_several_layers(module: nn.Module) -> bool:
    layers = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    return len(layers) > 1 and not NOT_A_UNIT.search(type(module).__name__)


def _contains_units(module: nn.Module) -> bool:
    inside = [m for m in module.modules() if isinstance(m, nn.Sequential | nn.ModuleList)]
    named = (m for m in module.modules() if m is not module and _has_unit_name(m))
    return any(_has_several_layers(child) for row in inside for child in row.children()) or any(
        _has_several_layers(m) for m in named
    )


def _parts(maps: list[ModuleCall], units: list[ModuleCall], classes: int, added: list[nn.Module]) -> Iterator[Part]:
    first = next(s for s in maps if isinstance(s.module, nn.Conv2d))
    yield Part(path=f"inner.{first.path}", kind="embed", layout="map")
    places = {s.path: i for i, s in enumerate(units)}
    heights = list(dict.fromkeys(s.shape[2] for s in units))
    for s in maps:
        owner = next((p for p in places if s.path.startswith(p + ".")), None)
        here = places.get(s.path if owner is None else owner)
        about: dict[str, Any] = {"path": f"inner.{s.path}", "layout": "map", "block": here}
        if here is not None:
            about |= {"stage": heights.index(units[here].shape[2]), "sublayer": "convolution"}
        if s.path in places:
            taps = f"units.{added.index(s.module)}." if s.module in added else None
            about |= {"skip": f"{taps}skip", "branch": f"{taps}branch"} if taps else {}
            yield Part(kind="sum", **about)
        elif s is not first and isinstance(s.module, nn.Conv2d) and s.shape[2] * s.shape[3] > 1:
            yield Part(kind="conv", **about)
        elif isinstance(s.module, NORMS):
            yield Part(kind="norm", **about)
    yield Part(path="pooled", kind="pooled", layout="vector")
    if classes:
        yield Part(path="head", kind="logits", layout="vector")
