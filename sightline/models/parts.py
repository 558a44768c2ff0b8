"""The anatomy of a model: its recordable tensors in the order of computation, so that no analysis parses names."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from sightline.models.bit import BiT
from sightline.models.convolutions import Stage
from sightline.models.hybrid import Hybrid
from sightline.models.mixer import Mixer
from sightline.models.vit import ViT

PartKind = Literal[
    "embed",
    "input",
    "norm",
    "query",
    "key",
    "value",
    "probs",
    "heads",
    "hidden",
    "conv",
    "branch",
    "sum",
    "pooled",
    "logits",
]
# (b n d), (b d h): the hidden units of each channel in a Mixer, (b c y x), (b h n d), (b h n n), (b d)
Layout = Literal["tokens", "channels", "map", "heads", "probs", "vector"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One recordable tensor of a model: its module path, its kind, and its place.

    Parts of kind "sum" name the paths of the two tensors that were added: `skip` and `branch`.

    >>> sl.anatomy(sl.build("vit-nano4"))[-1].kind
    'logits'
    """

    path: str
    kind: PartKind
    layout: Layout
    block: int | None = None  # encoder block or residual unit, numbered through the model
    stage: int | None = None  # for a CNN
    sublayer: Literal["attention", "mixing", "mlp", "convolution"] | None = None  # mixing: of tokens, by a Mixer
    skip: str | None = None
    branch: str | None = None


def anatomy(model: nn.Module) -> tuple[Part, ...]:
    """The parts of a model in the order of computation. Models of other types need an `anatomy()` method.

    >>> [p.path for p in sl.anatomy(sl.build("vit-nano4", classes=10)) if p.kind == "sum"][:2]
    ['blocks.0.attn_sum', 'blocks.0.mlp_sum']
    """
    match model:
        case Hybrid():
            return (*_backbone(model), *_vit(model, blocks_before=_units(model.backbone)))
        case ViT():
            return tuple(_vit(model))
        case BiT():
            return tuple(_bit(model))
        case Mixer():
            return tuple(_mixer(model))
    own = getattr(model, "anatomy", None)
    if not callable(own):
        raise ValueError(f"The anatomy of a {type(model).__name__} is not known. Wrap it first: sl.adopt(model).")
    return tuple(own())


def _vit(model: ViT, blocks_before: int = 0) -> Iterator[Part]:
    yield Part(path="embed", kind="embed", layout="tokens")
    yield Part(path="encoder_input", kind="input", layout="tokens")
    for i in range(model.encoder_config.layers):
        yield from block_parts(f"blocks.{i}.", i + blocks_before, pre=model.encoder_config.norm_at == "pre")
    if model.encoder_config.norm_at == "pre" and model.encoder_config.final_norm == "tokens":
        yield Part(path="norm", kind="norm", layout="tokens")
    yield from _end(model)


def block_parts(at: str, i: int, *, pre: bool) -> Iterator[Part]:
    """The parts of one encoder block under the path `at`."""

    def part(name: str, kind: PartKind, layout: Layout = "tokens", **more: str) -> Part:
        sublayer: Literal["attention", "mlp"] = "mlp" if name.startswith("mlp") or name == "norm2" else "attention"
        paths = {k: at + v for k, v in more.items()}
        return Part(path=at + name, kind=kind, layout=layout, block=i, sublayer=sublayer, **paths)  # type: ignore[arg-type]

    norm1, norm2 = part("norm1", "norm"), part("norm2", "norm")
    if pre:
        yield norm1
    yield part("attn.q", "query", "heads")
    yield part("attn.k", "key", "heads")
    yield part("attn.v", "value", "heads")
    yield part("attn.probs", "probs", "probs")
    yield part("attn.per_head", "heads", "heads")
    yield part("attn_branch", "branch")
    yield part("attn_sum", "sum", skip="attn_skip", branch="attn_branch")
    yield norm2 if pre else norm1
    yield part("mlp.hidden", "hidden")
    yield part("mlp_branch", "branch")
    yield part("mlp_sum", "sum", skip="attn_sum" if pre else "norm1", branch="mlp_branch")
    if not pre:
        yield norm2


def _mixer(model: Mixer) -> Iterator[Part]:
    yield Part(path="embed", kind="embed", layout="tokens")
    yield Part(path="encoder_input", kind="input", layout="tokens")
    for i in range(model.config.depth):
        yield from mixer_block_parts(f"blocks.{i}.", i)
    yield Part(path="norm", kind="norm", layout="tokens")
    yield from _end(model)


def mixer_block_parts(at: str, i: int) -> Iterator[Part]:
    """The parts of one Mixer block under the path `at`: token mixing, then channel mixing."""
    place: dict = {"layout": "tokens", "block": i, "sublayer": "mixing"}
    yield Part(path=at + "norm1", kind="norm", **place)
    yield Part(path=at + "mix.hidden", kind="hidden", **{**place, "layout": "channels"})
    yield Part(path=at + "mix_branch", kind="branch", **place)
    yield Part(path=at + "mix_sum", kind="sum", skip=at + "mix_skip", branch=at + "mix_branch", **place)
    place["sublayer"] = "mlp"
    yield Part(path=at + "norm2", kind="norm", **place)
    yield Part(path=at + "mlp.hidden", kind="hidden", **place)
    yield Part(path=at + "mlp_branch", kind="branch", **place)
    yield Part(path=at + "mlp_sum", kind="sum", skip=at + "mix_sum", branch=at + "mlp_branch", **place)


def _bit(model: BiT) -> Iterator[Part]:
    yield Part(path="root", kind="embed", layout="map")
    names = ("norm1", "conv1", "norm2", "conv2", "norm3", "conv3")
    yield from _stages(model.stages, "stages.", names if model.config.unit == "bottleneck" else names[:4])
    yield Part(path="norm", kind="norm", layout="map")
    yield from _end(model)


def _backbone(model: Hybrid) -> Iterator[Part]:
    stem = "second_norm" if model.config.stem == "3x3/2+3x3/2" else "root_norm"
    yield Part(path=f"backbone.{stem}", kind="embed", layout="map")
    names = ("conv1", "norm1", "conv2", "norm2", "conv3", "norm3")
    yield from _stages(
        model.backbone.stages, "backbone.stages.", names if model.config.unit == "bottleneck" else names[:4]
    )


def _stages(stages: nn.ModuleList, at: str, names: tuple[str, ...]) -> Iterator[Part]:
    block = 0
    for s, stage in enumerate(stages):
        assert isinstance(stage, Stage)
        for u in range(len(stage.units)):
            here = f"{at}{s}.units.{u}."
            place: dict = {"layout": "map", "block": block, "stage": s, "sublayer": "convolution"}
            for name in names:
                yield Part(path=here + name, kind="conv" if name.startswith("conv") else "norm", **place)
            yield Part(path=here + "branch", kind="branch", **place)
            yield Part(path=here + "sum", kind="sum", skip=here + "skip", branch=here + "branch", **place)
            block += 1


def _units(backbone: nn.Module) -> int:
    return sum(len(m.units) for m in backbone.modules() if isinstance(m, Stage))


def _end(model: ViT | BiT | Mixer) -> Iterator[Part]:
    yield Part(path="pooled", kind="pooled", layout="vector")
    if model.config.classes:
        yield Part(path="head", kind="logits", layout="vector")


def block_outputs(parts: Iterable[Part]) -> list[Part]:
    """The outputs of encoder blocks or residual units (Raghu et al., appendix A); for a CNN without such units, of
    every layer."""
    parts = list(parts)
    last = {p.block: p for p in parts if p.kind == "sum"}
    return list(last.values()) or [p for p in parts if p.layout == "map"]
