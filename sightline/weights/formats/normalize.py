"""Normalize the keys of a checkpoint: strip wrapper prefixes, split stacked layers, leave out other towers."""

import re
from dataclasses import dataclass

from sightline.weights.formats.key_table import Shapes
from sightline.weights.report import KeyFate, WeightsError

PREFIXES = ("module.", "_orig_mod.", "model.", "teacher.", "student.", "backbone.")  # DDP, torch.compile, DINO
JAX_PREFIXES = ("params/img/", "opt/target/", "params/", "")  # big_vision image-text models, old training states, linen
ROOTS = ("embedding/kernel", "resnet/root_block/standardized_conv2d/kernel")
STACK = "Transformer/encoderblock/"
MAX_LAYERS = 10_000  # more layers than any model has


@dataclass(frozen=True)
class Location:
    """Where a tensor is in the file: its key, and its layer in a stack of layers."""

    key: str
    layer: int | None = None


@dataclass(frozen=True)
class NormalizedKeys:
    """The tensors of a checkpoint under the keys of their format."""

    shapes: dict[str, tuple[int, ...]]
    locations: dict[str, Location]
    left: tuple[KeyFate, ...]  # keys that are not part of the model, each with the reason


def normalize_keys(shapes: Shapes) -> NormalizedKeys:
    """Remove what frameworks and training scripts add to the keys of a model."""
    found: dict[str, tuple[int, ...]] = {k: tuple(v) for k, v in shapes.items()}
    names = {k: k for k in found}
    names, left = _strip_jax_prefix(names, found)
    if not left:
        names, left = _strip_prefixes(names, found)
    out: dict[str, tuple[int, ...]] = {}
    locations: dict[str, Location] = {}
    for name, key in names.items():
        for clean, layer in _split_stack(name, found[key]):
            if clean in locations:
                raise WeightsError(f"{key} and {locations[clean].key} both mean {clean}.")
            locations[clean] = Location(key, layer)
            out[clean] = found[key] if layer is None else found[key][1:]
    return NormalizedKeys(out, locations, tuple(left))


def _strip_jax_prefix(names: dict[str, str], shapes: Shapes) -> tuple[dict[str, str], list[KeyFate]]:
    """Keep only the parameters of the image model of a JAX tree."""
    flat = {_without_numbers(k): k for k in names}
    tree = next((t for t in JAX_PREFIXES if any(t + root in flat for root in ROOTS)), "")
    kept = {k.removeprefix(tree): v for k, v in names.items() if k.startswith(tree)}
    left = [
        KeyFate(
            key=k, ours=None, fate="left", found=tuple(shapes[k]), why=f"outside {tree}: optimizer or another tower"
        )
        for k in names
        if not k.startswith(tree)
    ]
    return kept, left


def _strip_prefixes(names: dict[str, str], shapes: Shapes) -> tuple[dict[str, str], list[KeyFate]]:
    left: list[KeyFate] = []
    while names:
        prefix = next((w for w in PREFIXES if all(k.startswith(w) for k in names)), None)
        if prefix is None:
            inner = [k for k in names if k.startswith("backbone.")]
            heads = [k for k in names if re.match(r"(dino|ibot)_head\.", k)]
            if not inner or len(inner) + len(heads) < len(names):
                break
            why = "a head of self-supervised pre-training"
            left += [
                KeyFate(key=names[k], ours=None, fate="left", found=tuple(shapes[names[k]]), why=why) for k in heads
            ]
            names, prefix = {k: names[k] for k in inner}, "backbone."
        names = {k.removeprefix(prefix): v for k, v in names.items()}
    return names, left


def _without_numbers(name: str) -> str:
    return re.sub(r"standardized_conv2d_\d+/", "standardized_conv2d/", name)


def _split_stack(name: str, shape: tuple[int, ...]) -> list[tuple[str, int | None]]:
    """One key, or in a stack of layers one key per layer, each with its index."""
    if name.startswith(STACK):
        if not shape or not 0 < shape[0] <= MAX_LAYERS:
            raise WeightsError(f"{name} is a stack of layers; its shape {shape} has no leading layer axis.")
        rest = name.removeprefix(STACK)
        return [(f"Transformer/encoderblock_{i}/{rest}", i) for i in range(shape[0])]
    # DINOv2 trains in chunks of blocks; the second number already runs through the whole model
    name = re.sub(r"^blocks\.\d+\.(\d+\.)", r"blocks.\1", name)
    return [(_without_numbers(name), None)]
