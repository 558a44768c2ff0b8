"""`sl.load`: from any checkpoint to a model, with a report of what happened to every key."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.models import checks
from sightline.models.bit import BiTConfig
from sightline.models.construct import Model, change
from sightline.models.hybrid import HybridConfig
from sightline.models.mixer import refuse_other_grid
from sightline.models.positions import Positions, RelativePositions, resize_state
from sightline.models.vit import ViT, ViTConfig
from sightline.spec import ImageSpec
from sightline.weights import published
from sightline.weights.containers import header as headers
from sightline.weights.containers.files import Checkpoint, open_path, with_image
from sightline.weights.containers.source import Source, StateDictSource
from sightline.weights.conversion import Conversion, build_on_meta, check_shapes, convert_tensors, match_keys
from sightline.weights.formats.key_table import SAME, KeyRule
from sightline.weights.formats.normalize import Location
from sightline.weights.probe import replay
from sightline.weights.report import KeyFate, Report, WeightsError
from sightline.weights.runs import collapse_warnings

log = logging.getLogger("sightline.weights")
FLOATS = {torch.float64: torch.float64, torch.float32: torch.float32}  # half precision is loaded as float32
FLOATS |= {torch.float16: torch.float32, torch.bfloat16: torch.float32}
HEADS = ("head.", "head_distill.", "pre_logits.")


@dataclass(frozen=True)
class LoadOptions:
    """Options of `load` that change the model from what the file says."""

    classes: int | Sequence[str] | None = None
    size: checks.Pair | None = None
    method: str = "paper"
    image: ImageSpec | None = None
    verify: bool = True
    strict: bool = True


def load(
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    classes: int | Sequence[str] | None = None,
    size: checks.Pair | None = None,
    *,
    method: str = "paper",
    image: ImageSpec | None = None,
    verify: bool = True,
    strict: bool = True,
    **switches: Any,
) -> Model:
    """A model from weights: a zoo name, a file, a run folder, a hub folder or a state dict, whatever library wrote it.

    Family, variant, size, patch, prefix tokens and heads follow from the keys and shapes. `classes` (a number, or
    names) replaces the head and its pre_logits by a new head of zeros. `size` resamples the position embeddings for
    another image size by the rule of `method`. `image` overrides the preprocessing. Further keywords override what
    shapes cannot tell: `heads=`, `gelu=`, `norm_eps=`. What happened to each key is in `model.loaded`. `verify=False`
    compares neither checksums nor probe outputs.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> again = sl.load(model.state_dict() | {}, config=model.config)
    >>> str(again.loaded)
    'a state dict (sightline): 80 taken, 0 resized, 0 new, 0 left over.'
    """
    options = LoadOptions(classes, size, method, image, verify, strict)
    checkpoint = open_checkpoint(source, verify=verify)
    if size is not None:
        switches.setdefault("size", size)
    config = switches.pop("config", None)
    return assemble(checkpoint, options, {**checkpoint.hints, **switches}, config)


def open_checkpoint(source: str | os.PathLike[str] | Mapping[str, Tensor], *, verify: bool = True) -> Checkpoint:
    """Open whatever the user gave: a state dict, an existing path, or a zoo name, which is downloaded."""
    if isinstance(source, Mapping):
        return Checkpoint(StateDictSource(source), "a state dict")
    name = os.fspath(source)
    if Path(name).exists():
        return open_path(name, verify=verify)
    entry = published.find(name)
    if entry is None:
        raise WeightsError(
            f"There is no file or folder {name}, and no published weights of that name. {published.suggestion(name)}"
        )
    found = open_path(entry.fetch(), verify=verify)
    hints = {**found.hints, **({"size": entry.size} if entry.size else {}), **entry.hints}
    expected = None if name.startswith(published.HUB) else entry.config
    return replace(found, label=name, hints=hints, image={**found.image, **entry.image}, expected=expected)


def assemble(checkpoint: Checkpoint, options: LoadOptions, hints: dict[str, Any], config: Any = None) -> Model:
    """Plan the conversion, read and verify the weights, then change head and size as asked."""
    source = checkpoint.source
    text = source.header.get("sightline")
    head = headers.from_text(text, verify=options.verify) if text else None
    plan = plan_conversion(source, head, hints, config=config, strict=options.strict)
    _check_expected(checkpoint, plan)
    packed = head is not None and head.about.get("stored") == headers.HALF
    dtype = torch.float32 if packed else common_dtype(plan, source)
    state = convert_tensors(plan, lambda key, layer: check_finite(key, source.read(key, layer)), dtype)
    model = fill_model(plan.model, state)
    worst, warnings = None, []
    overridden = set(hints) - {"size", "heads", *checkpoint.hints}
    if head is not None and head.probes is not None and options.verify:
        if overridden:
            warnings.append(
                f"Not verified against the file's probe outputs: {', '.join(sorted(overridden))} overridden."
            )
        else:
            worst = replay(model, head.probes)
    names = head.classes if head else _class_names(checkpoint.classes, plan)
    image = head.image if head else with_image(plan.image, checkpoint.image)
    warnings += _plan_warnings(plan, state, known_image=bool(checkpoint.image or options.image))
    model, entries = adapt(model, plan, state, options)
    model.image = replace(options.image or image, size=checks.pair(model.config.size))
    _attach(model, "prepared", image)  # from training, whatever the caller overrides
    _attach(model, "class_names", names if options.classes is None else _names(options.classes))
    known = head.probability if head else checkpoint.probability
    _attach(model, "probability", known if options.classes is None else "softmax")
    report = Report(
        source=checkpoint.label,
        format=plan.format,
        entries=entries,
        warnings=(*source.notes, *collapse_warnings(checkpoint.label), *warnings),
        switches=plan.switches,
        verified=worst,
    )
    _attach(model, "loaded", report)
    for warning in report.warnings:
        if not warning.startswith("Set from the format"):
            log.warning("%s: %s", checkpoint.label, warning)
    return model.eval()


def _check_expected(checkpoint: Checkpoint, plan: Conversion) -> None:
    """Weights from the zoo must match their entry."""
    for name in ("width", "depth", "heads", "token_width", "mlp_width", "patch", "units", "width_factor", "classes"):
        inner = (getattr(c, "vit", c) for c in (checkpoint.expected, plan.config))
        want, got = (getattr(c, name, None) for c in inner)
        if checkpoint.expected is not None and want != got:
            raise WeightsError(f"{checkpoint.label} should have {name}={want}; the file behind it has {got}.")


def _attach(model: nn.Module, name: str, value: Any) -> None:
    object.__setattr__(model, name, value)


def plan_conversion(
    source: Source, head: headers.Header | None, hints: dict[str, Any], *, config: Any, strict: bool
) -> Conversion:
    """The plan for one of our own files (described by its header) or another library's (recognized by its shapes)."""
    if not source.shapes:
        raise WeightsError("The file holds no tensors.")
    extra = {k: v for k, v in hints.items() if k not in ("size", "heads")}
    config = config or (head.config if head else None)
    if config is None or (head is not None and head.layout == "other"):
        return match_keys(source.shapes, hints, config=config, strict=strict)
    config = change(config, **extra) if extra else config
    model = build_on_meta(config, len(source.shapes))
    known = model.state_dict()
    rules = tuple(KeyRule(key, (key,), SAME) for key in known)
    locations = {key: Location(key) for key in source.shapes}
    entries = check_shapes(rules, source.shapes, locations, model)
    if unknown := [key for key in source.shapes if key not in known]:
        raise WeightsError(f"{len(unknown)} keys of the file have no place in its model: {', '.join(unknown[:4])}.")
    image = head.image if head else config.image
    return Conversion(
        format="sightline", config=config, image=image, model=model, rules=rules, locations=locations, entries=entries
    )


def common_dtype(plan: Conversion, source: Source) -> torch.dtype:
    """One dtype for the model: the widest in the file; half precision of other libraries is widened to float32."""
    kept: torch.dtype | None = None
    for rule in plan.rules:
        for key in rule.theirs:
            key = plan.locations[key].key
            dtype = source.dtypes[key]
            if rule.ours.endswith("num_batches_tracked"):
                continue
            if dtype not in FLOATS:
                raise WeightsError(f"{key} has type {str(dtype).removeprefix('torch.')}; expected floating point.")
            ours = dtype if plan.format == "sightline" else FLOATS[dtype]  # our own files keep their dtype
            kept = ours if kept is None else torch.promote_types(kept, ours)
    return kept or torch.float32


def check_finite(key: str, tensor: Tensor) -> Tensor:
    """The tensor, if all its values are finite; otherwise WeightsError.

    A finite sum of squares, which BLAS computes at memory speed, proves it; otherwise the bad values are counted.
    """
    if tensor.dtype in (torch.float32, torch.float64) and tensor.is_contiguous():
        flat = tensor.reshape(-1).numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(np.dot(flat, flat)):
                return tensor
    if tensor.is_floating_point() and (bad := int((~torch.isfinite(tensor)).sum())):
        raise WeightsError(f"{key} has {bad} NaN or infinite values out of {tensor.numel()}: the weights are broken.")
    return tensor


def fill_model(model: Model, state: Mapping[str, Tensor]) -> Model:
    """Give a model on the meta device its values without copying them."""
    for name, buffer in model.named_buffers():
        if name not in state:  # computed here, not stored in the file
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, torch.empty(buffer.shape, dtype=buffer.dtype))
    model.load_state_dict(state, assign=True)
    for module in model.modules():
        if isinstance(module, Positions):
            module.refill()
    return model


def adapt(
    model: Model, plan: Conversion, state: dict[str, Tensor], options: LoadOptions
) -> tuple[Model, tuple[KeyFate, ...]]:
    """The model with a new head or another image size, if the options ask for it."""
    changes: dict[str, Any] = {}
    entries = list(plan.entries)
    if options.size is not None and checks.pair(options.size) != checks.pair(plan.config.size):
        changes["size"] = options.size
    if options.classes is not None:
        changes["classes"] = options.classes if isinstance(options.classes, int) else len(options.classes)
        if isinstance(plan.config, ViTConfig | HybridConfig):
            changes["head"] = "linear"
    if not changes:
        return model, tuple(entries)
    changed = change(plan.config, **changes)
    refuse_other_grid(plan.config, changed)
    new = build_on_meta(changed, len(state))
    if "classes" in changes:
        entries = _new_head(new, state, entries)
    if "size" in changes and isinstance(model, ViT):
        entries = _new_grid(model, new, state, entries, options.method)
    return fill_model(new, state), tuple(entries)


def _new_head(new: Model, state: dict[str, Tensor], entries: list[KeyFate]) -> list[KeyFate]:
    why = "replaced by a new head because classes was given"
    for key in [k for k in state if k.startswith(HEADS)]:
        del state[key]
    kept = [replace(e, ours=None, fate="left", why=why) if e.ours and e.ours.startswith(HEADS) else e for e in entries]
    dtype = next(iter(state.values())).dtype
    bias = new.config.vit.head_bias if isinstance(new.config, HybridConfig) else new.config.head_bias
    for key, like in new.state_dict().items():
        if key.startswith(HEADS):
            value = bias if key.endswith("bias") else 0.0
            state[key] = torch.full(like.shape, value, dtype=dtype)
            kept.append(
                KeyFate(key=None, ours=key, fate="new", wanted=tuple(like.shape), why="a new head starts at zero")
            )
    return kept


def _new_grid(old: ViT, new: Model, state: dict[str, Tensor], entries: list[KeyFate], method: str) -> list[KeyFate]:
    assert isinstance(new, ViT)
    touched = set()
    for path, module in old.named_modules():
        if isinstance(module, Positions | RelativePositions):
            resize_state(module, state, f"{path}.", new.encoder_config.grid, method)
            touched |= {f"{path}.{name}" for name, _ in module.named_parameters()}
    to = new.state_dict()
    way = f"grid {' x '.join(map(str, old.encoder_config.grid))} to {' x '.join(map(str, new.encoder_config.grid))}"
    return [
        replace(e, fate="resized", wanted=tuple(to[e.ours].shape), method=method, why=way) if e.ours in touched else e
        for e in entries
    ]


def _plan_warnings(plan: Conversion, state: Mapping[str, Tensor], *, known_image: bool) -> list[str]:
    warnings = [w for w in plan.warnings if not (known_image and w.startswith("The preprocessing"))]
    for name in ("head", "head_distill"):
        weight = state.get(f"{name}.weight")
        if weight is not None and plan.format != "sightline" and not weight.any():
            warnings.append(f"The {name} is all zeros: the file gives features, not classifications.")
    if plan.switches:
        padding = ""
        if isinstance(plan.config, HybridConfig):
            padding = ", padding=SAME"
        elif isinstance(plan.config, BiTConfig):
            padding = ", padding=symmetric, pool padded with zeros"
        switches = ", ".join(f"{k}={v}" for k, v in plan.switches)
        warnings.append(f"Set from the format ({plan.format}), not from the file: {switches}{padding}.")
    return warnings


def _names(classes: int | Sequence[str]) -> tuple[str, ...] | None:
    return None if isinstance(classes, int) else tuple(classes)


def _class_names(names: tuple[str, ...] | None, plan: Conversion) -> tuple[str, ...] | None:
    """The class names found next to the file, if their number matches its head."""
    return names if names is not None and len(names) == plan.config.classes else None
