"""A model made ready to be looked at: adopted if it is someone else's, in evaluation mode, its grid known."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sightline.adoption.recognition import adopt
from sightline.adoption.wrapper import AdoptedModel
from sightline.models.bit import BiT
from sightline.models.parts import Part, anatomy, block_outputs
from sightline.models.vit import ViT
from sightline.spec import ImageSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedModel:
    """One model under observation. `grid` and `prefix` are those of its last tokens, as a blank image shows them."""

    model: nn.Module
    image: ImageSpec
    parts: tuple[Part, ...]
    grid: tuple[int, int]
    prefix: int
    pool: str  # "cls", "gap" or "map": what the head sees

    @property
    def name(self) -> str:
        """What to call the model in a caption."""
        inner = self.model.inner if isinstance(self.model, AdoptedModel) else self.model
        c: Any = getattr(self.model, "encoder_config", getattr(self.model, "config", None))
        size = "x".join(str(getattr(c, key)) for key in ("depth", "width") if getattr(c, key, None))
        return f"{type(inner).__name__} {size}".strip()

    @property
    def patch(self) -> tuple[float, float]:
        """Height and width of one cell of the last grid, in pixels."""
        return self.image.size[0] / self.grid[0], self.image.size[1] / self.grid[1]

    @cached_property
    def part(self) -> dict[str, Part]:
        """Parts by path."""
        return {part.path: part for part in self.parts}

    @property
    def attention_blocks(self) -> list[nn.Module]:
        """The modules within which each encoder block's attention happens; empty for a CNN."""
        if isinstance(self.model, ViT):
            return list(self.model.blocks)
        found = getattr(self.model, "found", None)
        return list(found.blocks) if found is not None else []

    @property
    def block_outputs(self) -> list[Part]:
        """What each encoder block or residual unit puts out."""
        return block_outputs(self.parts)

    @property
    def place(self) -> tuple[torch.device, torch.dtype]:
        """Device and precision of the weights."""
        first = next(iter(self.model.parameters()), None)
        return (torch.device("cpu"), torch.float32) if first is None else (first.device, first.dtype)

    def blank(self) -> Tensor:
        """One gray image, as the model takes them."""
        device, dtype = self.place
        return torch.zeros(1, len(self.image.mean), *self.image.size, device=device, dtype=dtype)


def observe(model: nn.Module | ObservedModel) -> ObservedModel:
    """Any model of ours, adopted or to be adopted, as a subject."""
    if isinstance(model, ObservedModel):
        return model
    if not isinstance(model, nn.Module):
        raise ValueError(f"A model is expected, from sl.build, sl.load or sl.adopt; got a {type(model).__name__}.")
    if not isinstance(model, ViT | BiT | AdoptedModel) and not callable(getattr(model, "anatomy", None)):
        model = adopt(model)
    image: ImageSpec = model.image  # type: ignore[assignment]
    parts = anatomy(model)
    made = ObservedModel(model=model, image=image, parts=parts, grid=(1, 1), prefix=0, pool="gap")
    with evaluation_mode(made):
        out = model.features(made.blank())  # type: ignore[operator]
    plan = getattr(model, "encoder_config", getattr(model, "config", None))
    pool = getattr(plan, "pool", "cls" if out.prefix.shape[1] else "gap")
    return ObservedModel(model=model, image=image, parts=parts, grid=out.grid, prefix=out.prefix.shape[1], pool=pool)


@contextmanager
def evaluation_mode(*observed: ObservedModel, gradients: bool = False) -> Iterator[None]:
    """Evaluation mode for a while; inference mode too, unless gradients are wanted: then no weight collects any."""
    models = list({id(s.model): s.model for s in observed}.values())
    training = [[(m, m.training) for m in model.modules()] for model in models]
    wanted = [(p, p.requires_grad) for model in models for p in model.parameters()] if gradients else []
    try:
        for model in models:
            model.eval()
        for p, _ in wanted:
            p.requires_grad_(False)
        with torch.enable_grad() if gradients else torch.inference_mode():
            yield
    finally:
        for rows in training:
            for module, mode in rows:
                module.training = mode
        for p, before in wanted:
            p.requires_grad_(before)
