"""A model prepared for observation: adopted if it comes from another library, with its parts and grid known."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from sightline.adoption.recognition import adopt
from sightline.models.parts import Part, block_outputs
from sightline.observe import identity
from sightline.spec import ImageSpec, ModelId


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedModel:
    """A model prepared for observation. `grid` and `prefix` are those of its last tokens for a blank image."""

    model: nn.Module
    image: ImageSpec
    parts: tuple[Part, ...]
    grid: tuple[int, int]
    prefix: int
    pool: str  # "cls" or "gap": what the head reads
    class_token: bool = (
        False  # whether the first of the prefix tokens is one; registers and distillation tokens are not
    )
    width: int = 0  # of the last tokens, or channels of the last map
    given_name: str = ""

    @property
    def name(self) -> str:
        """The model's name in captions."""
        return self.given_name or identity.type_and_size(self.model)

    @property
    def id(self) -> ModelId:
        """The identity of the model; its weights are hashed only once."""
        return replace(self._id, name=self.name)

    @cached_property
    def _id(self) -> ModelId:
        return identity.identify(self.model, self.parts)

    def with_name(self, name: str) -> "ObservedModel":
        """The same model under another display name."""
        made = replace(self, given_name=name)
        made.__dict__.update({k: v for k, v in self.__dict__.items() if k == "_id"})
        return made

    @property
    def patch(self) -> tuple[float, float]:
        """Height and width of one cell of the last grid, in pixels."""
        return self.image.size[0] / self.grid[0], self.image.size[1] / self.grid[1]

    @cached_property
    def part(self) -> dict[str, Part]:
        """Parts by path."""
        return {part.path: part for part in self.parts}

    @property
    def encoder_blocks(self) -> list[nn.Module]:
        """The blocks that take and return all tokens, of a ViT or a Mixer; empty for a CNN."""
        return identity.encoder_blocks(self.model)

    @property
    def attention_blocks(self) -> list[nn.Module]:
        """The module in which each encoder block computes its attention; empty for a CNN and for a Mixer."""
        return identity.attention_blocks(self.model)

    @property
    def block_outputs(self) -> list[Part]:
        """The output of each encoder block or residual unit."""
        return block_outputs(self.parts)

    @property
    def own_pool(self) -> Literal["cls", "gap"]:
        """How the model pools its last tokens: by its class token, or by a mean."""
        return "cls" if self.pool == "cls" and self.class_token else "gap"

    @property
    def classes(self) -> int:
        """Number of classes of the head; 0 without a head, 1 if unknown."""
        return int(getattr(getattr(self.model, "config", None), "classes", 1) or 0)

    @property
    def place(self) -> tuple[torch.device, torch.dtype]:
        """Device and dtype of the weights."""
        return place(self.model)

    def blank(self) -> Tensor:
        """One gray image, as the model's input."""
        device, dtype = self.place
        return torch.zeros(1, len(self.image.mean), *self.image.size, device=device, dtype=dtype)


Model = nn.Module | ObservedModel  # what an analysis takes


def observe(model: Model, *, image: ImageSpec | None = None) -> ObservedModel:
    """Prepare any model for observation: other libraries' models are adopted, and a blank image determines the grid. An
    ObservedModel is returned unchanged.

    `image` overrides the model's own preprocessing: at another size it has another grid.
    """
    if isinstance(model, ObservedModel):
        if image is None or image == model.image:
            return model
        return observe(model.model, image=image).with_name(model.given_name)
    if not isinstance(model, nn.Module):
        raise ValueError(f"A model is expected, from sl.build, sl.load or sl.adopt; got a {type(model).__name__}.")
    ready = callable(getattr(model, "features", None)) and isinstance(getattr(model, "image", None), ImageSpec)
    model = model if ready else adopt(model)
    spec: ImageSpec = image or model.image  # type: ignore[assignment]
    made = ObservedModel(model=model, image=spec, parts=identity.parts(model), grid=(1, 1), prefix=0, pool="gap")
    with evaluation_mode(made):
        out = model.features(made.blank())  # type: ignore[operator]
    plan, prefix = identity.plan_of(model), out.prefix.shape[1]
    known = getattr(plan, "class_token", None)
    first = prefix > 0 if known is None else bool(known)
    pool = getattr(plan, "pool", "cls" if first else "gap")
    pool = "gap" if pool == "cls" and not first else pool
    return replace(made, grid=out.grid, prefix=prefix, pool=pool, class_token=first, width=out.tokens.shape[-1])


def place(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and dtype of a model's weights; the CPU and float32 for a model without any."""
    first = next(iter(model.parameters()), None)
    if first is None:
        return torch.device("cpu"), torch.float32
    return first.device, first.dtype if first.is_floating_point() else torch.float32


@contextmanager
def evaluation_mode(*observed: Model, gradients: bool = False) -> Iterator[None]:
    """Evaluation mode while this is open, and inference mode unless `gradients`; weights collect no gradients."""
    models = list(dict.fromkeys(s.model if isinstance(s, ObservedModel) else s for s in observed))
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
