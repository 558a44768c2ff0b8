"""Undo what stands around a checkpoint's keys: prefixes, stacked layers, other towers, numbered chunks."""

import re
from dataclasses import dataclass

from sightline.weights.formats.key_table import Shapes
from sightline.weights.report import Entry, WeightsError

WRAPPERS = ("module.", "_orig_mod.", "model.", "teacher.", "student.", "backbone.")  # DDP, torch.compile, DINO
TREES = ("params/img/", "opt/target/", "params/", "")  # big_vision image-text models, old training states, linen
ROOTS = ("embedding/kernel", "resnet/root_block/standardized_conv2d/kernel")
STACK = "Transformer/encoderblock/"
MANY = 10_000  # layers; a shape that claims more is not a model


@dataclass(frozen=True)
class Place:
    """Where a tensor really is: a key of the file, and the layer in a stack of layers."""

    key: str
    layer: int | None = None


@dataclass(frozen=True)
class BareWeights:
    """The keys as they would be without wrapping."""

    shapes: dict[str, tuple[int, ...]]
    places: dict[str, Place]
    left: tuple[Entry, ...]  # keys that are not part of the model, each with the reason


def unwrapped(shapes: Shapes) -> BareWeights:
    """A view of the checkpoint in which every format starts at its own names."""
    found: dict[str, tuple[int, ...]] = {k: tuple(v) for k, v in shapes.items()}
    names = {k: k for k in found}
    names, left = _without_tree(names, found)
    if not left:
        names, left = _without_wrappers(names, found)
    out: dict[str, tuple[int, ...]] = {}
    places: dict[str, Place] = {}
    for name, key in names.items():
        for clean, layer in _clean(name, found[key]):
            if clean in places:
                raise WeightsError(f"{key} and {places[clean].key} both mean {clean}.")
            places[clean] = Place(key, layer)
            out[clean] = found[key] if layer is None else found[key][1:]
    return BareWeights(out, places, tuple(left))


def _without_tree(names: dict[str, str], shapes: Shapes) -> tuple[dict[str, str], list[Entry]]:
    """JAX trees: keep what is below the model's parameters."""
    flat = {_conv_name(k): k for k in names}
    tree = next((t for t in TREES if any(t + root in flat for root in ROOTS)), "")
    kept = {k.removeprefix(tree): v for k, v in names.items() if k.startswith(tree)}
    left = [
        Entry(key=k, ours=None, fate="left", found=tuple(shapes[k]), why=f"outside {tree}: optimizer or another tower")
        for k in names
        if not k.startswith(tree)
    ]
    return kept, left


def _without_wrappers(names: dict[str, str], shapes: Shapes) -> tuple[dict[str, str], list[Entry]]:
    left: list[Entry] = []
    while names:
        wrapper = next((w for w in WRAPPERS if all(k.startswith(w) for k in names)), None)
        if wrapper is None:
            inner = [k for k in names if k.startswith("backbone.")]
            heads = [k for k in names if re.match(r"(dino|ibot)_head\.", k)]
            if not inner or len(inner) + len(heads) < len(names):
                break
            why = "a head of self-supervised training"
            left += [Entry(key=names[k], ours=None, fate="left", found=tuple(shapes[names[k]]), why=why) for k in heads]
            names, wrapper = {k: names[k] for k in inner}, "backbone."
        names = {k.removeprefix(wrapper): v for k, v in names.items()}
    return names, left


def _conv_name(name: str) -> str:
    return re.sub(r"standardized_conv2d_\d+/", "standardized_conv2d/", name)


def _clean(name: str, shape: tuple[int, ...]) -> list[tuple[str, int | None]]:
    """The names one key stands for: a stack of layers stands for each of them."""
    if name.startswith(STACK):
        if not shape or not 0 < shape[0] <= MANY:
            raise WeightsError(f"{name} is a stack of layers; its shape {shape} has no leading layer axis.")
        rest = name.removeprefix(STACK)
        return [(f"Transformer/encoderblock_{i}/{rest}", i) for i in range(shape[0])]
    # DINOv2 trains in chunks of blocks; the second number already counts through the model
    name = re.sub(r"^blocks\.\d+\.(\d+\.)", r"blocks.\1", name)
    return [(_conv_name(name), None)]
