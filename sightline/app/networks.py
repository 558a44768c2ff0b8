"""The models of the app: opened once, shared by every tab, at any image size and checkpoint that they have."""

import copy
import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sightline.adoption.recognition import adopt
from sightline.adoption.wrapper import AdoptedModel
from sightline.app.maps import Head
from sightline.models.construct import resize
from sightline.models.vit import ViT
from sightline.observe.model import ObservedModel, observe
from sightline.observe.source import model_names, open_model
from sightline.observe.twin import untrained
from sightline.training.run.folder import BEST, LAST, MODEL

KEPT = 6  # models in memory beside those that were given
SHARES = (0.5, 0.625, 0.75, 0.875, 1.0, 1.25, 1.5, 2.0)  # of the model's own image size
UNTRAINED = "untrained"


@dataclass(frozen=True)
class Ready:
    """A model at one checkpoint and size."""

    observed: ObservedModel
    head: Head


class Network:
    """One model that was asked for."""

    def __init__(self, source: Any, name: str):
        self.source, self.name = source, name
        self.own = observe(open_model(source)).with_name(name)
        self.checkpoints = checkpoints(source)
        self.kept: OrderedDict[tuple[int, int], Ready] = OrderedDict()
        self.whole = Ready(self.own, Head(self.own))

    @property
    def first(self) -> int:
        """The checkpoint that is shown first: the one that the run's folder stands for."""
        return len(self.checkpoints) - 1

    def sizes(self) -> list[int]:
        """Sides of square images that are offered, the model's own among them."""
        own, cell = self.own.image.size, self.step()
        if own[0] != own[1] or not resizable(self.own):
            return [own[0]]
        return sorted(
            {own[0], *(round(own[0] * share / cell) * cell for share in SHARES if own[0] * share >= 2 * cell)}
        )

    def step(self) -> int:
        """Pixels by which an image can grow."""
        patch = round(self.own.patch[0])
        return max(patch, 1) if self.own.encoder_blocks else max(8, patch)

    def at(self, checkpoint: int | None = None, size: int | None = None) -> Ready:
        """The model at one checkpoint and one size; a few are kept."""
        key = (self.first if checkpoint is None else checkpoint, size or self.own.image.size[0])
        if key == (self.first, self.own.image.size[0]):
            return self.whole
        if key not in self.kept:
            made = resized(self.trained(key[0]), key[1])
            self.kept[key] = Ready(made, Head(made))
            while len(self.kept) > KEPT:
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        return self.kept[key]

    def trained(self, checkpoint: int) -> ObservedModel:
        """The model at one checkpoint."""
        name = self.checkpoints[checkpoint] if self.checkpoints else ""
        if checkpoint == self.first or not name:
            return self.own
        if name == UNTRAINED:
            return untrained(self.own)
        return observe(open_model(Path(self.source) / name)).with_name(f"{self.name}, {Path(name).stem}")

    def about(self) -> dict[str, Any]:
        """What the page shows of it."""
        s = self.own
        return {
            "name": self.name,
            "kind": "vit" if s.attention_blocks else "mixer" if s.encoder_blocks else "cnn",
            "heads": int(getattr(getattr(s.model, "encoder_config", s.model.config), "heads", 0) or 0),
            "blocks": len(s.encoder_blocks) or len(s.block_outputs),
            "prefix": token_names(s) if s.attention_blocks else [],
            "classToken": s.class_token,
            "classes": s.classes,
            "size": s.image.size[0],
            "sizes": self.sizes(),
            "checkpoints": [Path(c).stem for c in self.checkpoints],
            "checkpoint": self.first if self.checkpoints else 0,
        }


def token_names(s: ObservedModel) -> list[str]:
    """What the tokens before the grid are called."""
    inner = getattr(s.model, "inner", s.model)
    distilled = getattr(getattr(s.model, "encoder_config", None), "distill_token", hasattr(inner, "dist_token"))
    known = ["class token"] * s.class_token + ["distillation token"] * bool(distilled)
    return [*known, *(f"register {i}" for i in range(1, s.prefix - len(known) + 1))][: s.prefix]


def checkpoints(source: Any) -> list[str]:
    """The weights that a run folder has, from before training to the model that the folder stands for."""
    try:
        folder = Path(source)
    except TypeError:
        return []
    if not (folder / "run.json").is_file():
        return []
    known = (BEST, LAST, MODEL)
    others = sorted((p.name for p in folder.glob("*.safetensors") if p.name not in known), key=_by_step)
    return [UNTRAINED, *others, *(name for name in known if (folder / name).is_file())]


def _by_step(name: str) -> list[int | str]:
    """Step 20 stands before step 100."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def resizable(s: ObservedModel) -> bool:
    """Whether its position embeddings, if it has any, can be resampled; a Mixer has one size."""
    inner = s.model.inner if isinstance(s.model, AdoptedModel) else s.model
    return not s.encoder_blocks or isinstance(s.model, ViT) or callable(getattr(inner, "set_input_size", None))


def resized(s: ObservedModel, size: int) -> ObservedModel:
    """The model for images of another size, its position embeddings resampled."""
    if s.image.size == (size, size):
        return s
    spec = replace(s.image, size=(size, size))
    if not s.encoder_blocks:
        return observe(s.model, image=spec).with_name(s.given_name)
    if isinstance(s.model, ViT):
        made = resize(s.model, size)
        for name in ("class_names", "probability"):
            if hasattr(s.model, name):
                setattr(made, name, getattr(s.model, name))
        return observe(made).with_name(s.given_name)
    if not resizable(s):
        raise ValueError(f"{s.name} takes images of {s.image.size[0]} pixels only.")
    inner: Any = copy.deepcopy(s.model.inner)  # timm's own resampling
    inner.set_input_size(img_size=(size, size))
    return observe(adopt(inner, image=spec)).with_name(s.given_name)


def open_networks(sources: Sequence[Any], names: Sequence[str] = ()) -> list[Network]:
    """The models, with names that tell them apart."""
    if not 1 <= len(sources) <= 2:
        raise ValueError(f"The app shows one model or two side by side; got {len(sources)}.")
    if names and len(names) != len(sources):
        raise ValueError(f"Give one name per model, {len(sources)} in all; got {', '.join(names)}.")
    named = [str(s) if isinstance(s, str | os.PathLike) else f"model {i}" for i, s in enumerate(sources, 1)]
    return [Network(source, name) for source, name in zip(sources, names or model_names(named))]
