"""Convert state dicts between other libraries' names and Sightline's, in both directions; no files."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sightline.models.construct import Model, change, from_config
from sightline.models.variants import Config
from sightline.spec import ImageSpec
from sightline.weights.formats.bit import BIT_FORMATS
from sightline.weights.formats.format import NO_FILE, Format, Hints, differences
from sightline.weights.formats.google import GOOGLE
from sightline.weights.formats.huggingface import HF, HF_V5
from sightline.weights.formats.key_table import KeyRule, Shapes
from sightline.weights.formats.mixer import MIXER_FORMATS
from sightline.weights.formats.normalize import Location, normalize_keys
from sightline.weights.formats.timm import TIMM
from sightline.weights.formats.torchvision import TORCHVISION
from sightline.weights.report import KeyFate, WeightsError

FORMATS = (GOOGLE, TIMM, HF, HF_V5, TORCHVISION, *BIT_FORMATS, *MIXER_FORMATS)
TARGETS = ("sightline", "npz", "timm", "hf", "hf-v5", "torchvision", "bit-pytorch")
Reader = Callable[[str, int | None], Tensor]  # key, layer of a stack


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The plan for loading a file, before any weights are read: every key accounted for, every shape checked."""

    format: str
    config: Config
    image: ImageSpec
    model: Model  # on the meta device
    rules: tuple[KeyRule, ...]
    locations: Mapping[str, Location]
    entries: tuple[KeyFate, ...]
    warnings: tuple[str, ...] = ()
    switches: tuple[tuple[str, Any], ...] = ()


def match_keys(shapes: Shapes, hints: Hints, *, config: Config | None = None, strict: bool = True) -> Conversion:
    """Recognize a checkpoint by its keys and shapes; `config` is given if a header already describes the model."""
    keys = normalize_keys(shapes)
    form = recognize(keys.shapes)
    extra = {k: v for k, v in hints.items() if k not in ("heads", "size")}
    try:
        guess = form.guess_config(keys.shapes, hints) if config is None else None
        found = guess.config if guess else config
        assert found is not None
        found = change(found, **extra) if extra else found
    except (ValueError, TypeError, IndexError, ArithmeticError) as error:
        raise (
            error
            if isinstance(error, WeightsError)
            else WeightsError(f"The file describes an impossible model: {error}")
        ) from error
    model = build_on_meta(found, len(keys.shapes))
    rules = tuple(form.key_rules(found, keys.shapes))
    entries = (*check_shapes(rules, keys.shapes, keys.locations, model), *keys.left)
    entries += _unused_keys(form, rules, keys.shapes, keys.locations, strict=strict)
    switches = {**form.defaults(found), **extra}
    return Conversion(
        format=form.name,
        config=found,
        image=guess.image if guess else found.image,
        model=model,
        rules=rules,
        locations=keys.locations,
        entries=entries,
        warnings=guess.warnings if guess else (),
        switches=tuple(switches.items()) if guess else (),
    )


def recognize(shapes: Shapes) -> Format:
    """The format that these names belong to."""
    for form in FORMATS:
        if form.recognizes(shapes):
            return form
    some = ", ".join(list(shapes)[:3]) or "none at all"
    known = ", ".join(f.name for f in FORMATS)
    raise WeightsError(f"The keys belong to no format that Sightline knows ({known}): {some} ...")


def build_on_meta(config: Config, keys: int) -> Model:
    """The model on the meta device. A configuration that claims more layers than the file has keys is refused."""
    units = getattr(config, "units", ())
    depth = getattr(getattr(config, "vit", config), "depth", 0)
    if depth + sum(units) > keys:
        raise WeightsError(f"The configuration claims {depth + sum(units)} layers, the file has {keys} keys.")
    try:
        with torch.device("meta"):
            return from_config(config)
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        raise WeightsError(f"No model can be built from this file's configuration: {error}") from error


def check_shapes(
    rules: tuple[KeyRule, ...], shapes: Shapes, locations: Mapping[str, Location], model: nn.Module
) -> tuple[KeyFate, ...]:
    """Check each shape in the file against the model's own tensor."""
    wanted = model.state_dict()
    assert {rule.ours for rule in rules} == set(wanted), "the table of a format misses a tensor of ours"
    entries = []
    for rule in rules:
        for key, tensor in rule.export(wanted[rule.ours]).items():
            if key not in shapes:
                raise WeightsError(f"The file has no {key}, which {rule.ours} needs: it is incomplete.")
            found, expected = tuple(shapes[key]), tuple(tensor.shape)
            if [n for n in found if n != 1] != [n for n in expected if n != 1]:
                raise WeightsError(f"{locations[key].key} has shape {found}; expected {expected} for {rule.ours}.")
            shape = tuple(wanted[rule.ours].shape)
            entries.append(KeyFate(key=_label(locations[key]), ours=rule.ours, fate="taken", found=found, wanted=shape))
    return tuple(entries)


def _label(at: Location) -> str:
    return at.key if at.layer is None else f"{at.key}[{at.layer}]"


def _unused_keys(
    form: Format, rules: tuple[KeyRule, ...], shapes: Shapes, locations: Mapping[str, Location], *, strict: bool
) -> tuple[KeyFate, ...]:
    taken = {key for rule in rules for key in rule.theirs}
    left, unexplained = [], []
    for key in shapes:
        if key in taken:
            continue
        why = next((why for pattern, why in form.ignored if re.fullmatch(pattern, key)), None)
        if why is None:
            unexplained.append(key)
        found = tuple(shapes[key])
        left.append(KeyFate(key=_label(locations[key]), ours=None, fate="left", found=found, why=why or "unexplained"))
    if unexplained and strict:
        some = ", ".join(unexplained[:4]) + (" ..." if len(unexplained) > 4 else "")
        raise WeightsError(
            f"{len(unexplained)} keys of the file have no place in the model: {some}. "
            "Loading without them would give other numbers; strict=False leaves them out."
        )
    return tuple(left)


def convert_tensors(plan: Conversion, read: Reader, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights under our names. One tensor at a time: each is freed before the next is read."""
    wanted = plan.model.state_dict()
    state: dict[str, Tensor] = {}
    for rule in plan.rules:
        like = wanted[rule.ours]
        # allocate what stays before what will be freed, or the heap becomes fragmented
        kept = None if rule.tensor_map.in_order else torch.empty(like.shape, dtype=dtype)
        parts = []
        for key, shape in rule.export(like).items():
            tensor = read(plan.locations[key].key, plan.locations[key].layer)
            parts.append(tensor.reshape(shape.shape))
        tensor = rule.tensor_map.to_ours(parts)
        if kept is None:  # batch norm counters stay integers
            kept = tensor.to(dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
        else:
            kept.copy_(tensor)
        state[rule.ours] = kept
    return state


def format_for(config: Config, target: str) -> Format:
    """The format of this target that can represent the model; WeightsError with the reason if there is none."""
    if target not in TARGETS[1:]:
        raise WeightsError(f"Weights are written as one of {', '.join(TARGETS)}; got {target!r}.")
    targets = (target, "hf") if target == "hf-v5" else (target,)
    reasons = []
    for form in sorted((f for f in FORMATS if f.target in targets), key=lambda f: f.target != target):
        reason = form.unsupported(config)
        if reason is None:
            return form
        reasons.append(reason)
    reason = next((r for r in reasons if not r.startswith("this layout")), reasons[0])
    raise WeightsError(
        f"{target} cannot represent this model: {reason}. Use --to sightline, which can store every model."
    )


def to_format(state: Mapping[str, Tensor], config: Config, target: str) -> dict[str, Tensor]:
    """Our weights under the names of another library: the same table, read in reverse."""
    form = format_for(config, target)
    rules = form.key_rules(config, NO_FILE)
    if missing := {rule.ours for rule in rules} ^ set(state):
        raise WeightsError(f"The weights do not fit their configuration: {', '.join(sorted(missing)[:4])}.")
    return {key: tensor for rule in rules for key, tensor in rule.export(state[rule.ours]).items()}


def switch_warnings(config: Config, target: str) -> list[str]:
    """Warnings about numeric settings of the model whose defaults differ in the library of the written format."""
    form = format_for(config, target)
    return [
        f"The model computes with {path}={ours!r}; {form.name} sets {theirs!r} by default."
        for path, (ours, theirs) in differences(config, form.defaults(config)).items()
    ]
