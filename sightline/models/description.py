"""Summaries of models: configuration and cost."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from sightline.models.construct import build
from sightline.models.costs import Cost, cost
from sightline.models.hybrid import HybridConfig
from sightline.models.mixer import MixerConfig
from sightline.models.variants import Config, config, names
from sightline.models.vit import ViTConfig
from sightline.spec import ImageSpec

FAMILIES = {"ViTConfig": "ViT", "BiTConfig": "BiT", "HybridConfig": "hybrid", "MixerConfig": "Mixer"}


@dataclass(frozen=True, kw_only=True)
class ModelListing:
    """A line of `sightline models`.

    >>> sl.models.list_models("vit-b16")[0].parameters
    86567656
    """

    model: str
    size: Any  # image size: one side, or height and width
    tokens: int | None  # None for a CNN
    depth: str  # units of each stage of a CNN, blocks of an encoder
    width: int
    heads: int | None  # None for a CNN and a Mixer
    parameters: int


def list_models(glob: str = "*") -> list[ModelListing]:
    """The models whose names match a glob, without allocating any of them.

    >>> [m.model for m in sl.models.list_models("vit-l*")]
    ['vit-l32', 'vit-l16']
    """
    return [_listing(name, config(name)) for name in names(glob)]


def _listing(name: str, c: Config) -> ModelListing:
    encoder = c.vit if isinstance(c, HybridConfig) else c if isinstance(c, ViTConfig | MixerConfig) else None
    units = "-".join(map(str, getattr(c, "units", ())))
    return ModelListing(
        model=name,
        size=c.size,
        tokens=encoder.tokens if encoder else None,
        depth="+".join(filter(None, (units, str(encoder.depth) if encoder else ""))),
        width=encoder.width if encoder else c.width,  # type: ignore[union-attr]
        heads=getattr(encoder, "heads", None),
        parameters=sum(p.numel() for p in build(c, device="meta").parameters()),
    )


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """A model's configuration and cost.

    >>> sl.models.describe_model("bit-r50x1").family
    'BiT'
    """

    name: str
    config: Config
    cost: Cost
    image: ImageSpec  # how its images are prepared

    @property
    def family(self) -> str:
        """ViT, BiT, hybrid or Mixer; of a model of another library, its kind and the library."""
        c: Any = self.config
        return FAMILIES.get(type(c).__name__) or f"{c.kind} of {c.library}"

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the configuration that are set; for a hybrid, those of the encoder, then of the backbone."""
        c = self.config
        encoder = c.vit if isinstance(c, HybridConfig) else c
        fields = {k: v for k, v in vars(encoder).items() if v is not None}
        backbone = {} if encoder is c else {f"backbone {k}": v for k, v in vars(c).items() if k != "vit"}
        return fields | backbone


def describe_model(model: str | nn.Module, **changes: Any) -> ModelDescription:
    """A variant by its name, with fields of its configuration changed; or a model that was built, loaded or adopted.

    >>> sl.models.describe_model("vit-b16", size=384).cost.tokens
    577
    """
    if isinstance(model, nn.Module):
        settings: Any = model.config
        return ModelDescription(name=type(model).__name__, config=settings, cost=cost(model), image=model.image)  # type: ignore[arg-type]
    c = config(model, **changes)
    return ModelDescription(name=model, config=c, cost=cost(c), image=c.image)
