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
from sightline.models.positions import Positions, RelativePositions, resize_state
from sightline.models.vit import ViT
from sightline.spec import ImageSpec
from sightline.weights import published
from sightline.weights.containers import header as headers
from sightline.weights.containers.files import Opened, open_path, with_image
from sightline.weights.containers.source import Source, StateDictSource
from sightline.weights.conversion import Conversion, carry, check, match_keys, on_meta
from sightline.weights.formats.key_table import SAME, KeyRule
from sightline.weights.formats.wrappers import Place
from sightline.weights.probe import replay
from sightline.weights.report import Entry, Report, WeightsError

log = logging.getLogger("sightline.weights")
FLOATS = {torch.float64: torch.float64, torch.float32: torch.float32}  # half precision is held as float32
FLOATS |= {torch.float16: torch.float32, torch.bfloat16: torch.float32}
HEADS = ("head.", "head_distill.", "pre_logits.")


@dataclass(frozen=True)
class Wish:
    """What the user asked for beyond the file itself."""

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

    Family, variant, size, patch, prefix tokens and heads are read off the keys and shapes. `classes` (a number, or
    names) puts a new zero head in place of the old one and of its pre_logits. `size` carries the position embeddings to
    another image size by the rule of `method`. `image` overrides the preprocessing. Further keywords override what
    no shape can say: `heads=`, `gelu=`, `norm_eps=`. What happened to each key is in `model.loaded`.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> again = sl.load(model.state_dict() | {}, config=model.config)
    >>> str(again.loaded)
    'a state dict (sightline): 80 taken, 0 resized, 0 new, 0 left over.'
    """
    wish = Wish(classes, size, method, image, verify, strict)
    opened = opened_source(source)
    if size is not None:
        switches.setdefault("size", size)
    config = switches.pop("config", None)
    return assemble(opened, wish, {**opened.hints, **switches}, config)


def opened_source(source: str | os.PathLike[str] | Mapping[str, Tensor]) -> Opened:
    """The source behind whatever the user gave. A zoo name is fetched; anything with a path on disk is that path."""
    if isinstance(source, Mapping):
        return Opened(StateDictSource(source), "a state dict")
    name = os.fspath(source)
    if Path(name).exists():
        return open_path(name)
    entry = published.find(name)
    if entry is None:
        raise WeightsError(
            f"There is no file or folder {name}, and no zoo name like that. {published.suggestion(name)}"
        )
    found = open_path(entry.fetch())
    hints = {**found.hints, **({"size": entry.size} if entry.size else {}), **entry.hints}
    expected = None if name.startswith(published.HUB) else entry.config
    return replace(found, label=name, hints=hints, image={**found.image, **entry.image}, expected=expected)


def assemble(opened: Opened, wish: Wish, hints: dict[str, Any], config: Any = None) -> Model:
    """Plan, read, verify, and then change what was wished for."""
    source = opened.source
    text = source.header.get("sightline")
    head = headers.from_text(text) if text else None
    made = planned(source, head, hints, config=config, strict=wish.strict)
    _as_promised(opened, made)
    state = carry(made, lambda key, layer: finite(key, source.read(key, layer)), common_dtype(made, source))
    model = filled(made.model, state)
    worst, doubts = None, []
    overridden = set(hints) - {"size", "heads", *opened.hints}
    if head is not None and head.probes is not None and wish.verify:
        if overridden:
            doubts.append(f"Not verified against the file's probe outputs: {', '.join(sorted(overridden))} overridden.")
        else:
            worst = replay(model, head.probes)
    names = head.classes if head else _fitting_names(opened.classes, made)
    image = head.image if head else with_image(made.image, opened.image)
    doubts += _doubts(made, state, known_image=bool(opened.image or wish.image))
    model, entries = adapted(model, made, state, wish)
    model.image = replace(wish.image or image, size=checks.pair(model.config.size))
    _attach(model, "prepared", image)  # what the weights were made with, whatever the caller overrides
    _attach(model, "class_names", names if wish.classes is None else _names(wish.classes))
    known = head.probability if head else opened.probability
    _attach(model, "probability", known if wish.classes is None else "softmax")
    report = Report(
        source=opened.label,
        format=made.format,
        entries=entries,
        warnings=(*source.notes, *doubts),
        switches=made.switches,
        verified=worst,
    )
    _attach(model, "loaded", report)
    for warning in report.warnings:
        if not warning.startswith("Set from the format"):
            log.warning("%s: %s", opened.label, warning)
    return model.eval()


def _as_promised(opened: Opened, made: Conversion) -> None:
    """What came from the zoo must be what its name says."""
    for name in ("width", "depth", "heads", "mlp_width", "patch", "units", "width_factor", "classes"):
        inner = (getattr(opened.expected, "vit", opened.expected), getattr(made.config, "vit", made.config))
        want, got = (getattr(c, name, None) for c in inner)
        if opened.expected is not None and want != got:
            raise WeightsError(f"{opened.label} should have {name}={want}; the file behind it has {got}.")


def _attach(model: nn.Module, name: str, value: Any) -> None:
    object.__setattr__(model, name, value)


def planned(
    source: Source, head: headers.Header | None, hints: dict[str, Any], *, config: Any, strict: bool
) -> Conversion:
    """The plan for a file of ours (its header says what it is) or anyone's (its shapes do)."""
    if not source.shapes:
        raise WeightsError("The file holds no tensors.")
    extra = {k: v for k, v in hints.items() if k not in ("size", "heads")}
    config = config or (head.config if head else None)
    if config is None or (head is not None and head.layout == "other"):
        return match_keys(source.shapes, hints, config=config, strict=strict)
    config = change(config, **extra) if extra else config
    model = on_meta(config, len(source.shapes))
    known = model.state_dict()
    rows = tuple(KeyRule(key, (key,), SAME) for key in known)
    places = {key: Place(key) for key in source.shapes}
    entries = check(rows, source.shapes, places, model)
    if unknown := [key for key in source.shapes if key not in known]:
        raise WeightsError(f"{len(unknown)} keys of the file have no place in its model: {', '.join(unknown[:4])}.")
    image = head.image if head else config.image
    return Conversion(
        format="sightline", config=config, image=image, model=model, rows=rows, places=places, entries=entries
    )


def common_dtype(made: Conversion, source: Source) -> torch.dtype:
    """One floating-point type for the model: the widest in the file; others' half precision is widened to float32."""
    kept: torch.dtype | None = None
    for row in made.rows:
        for key in row.theirs:
            place = made.places[key]
            dtype = source.dtypes[place.key]
            if row.ours.endswith("num_batches_tracked"):
                continue
            if dtype not in FLOATS:
                raise WeightsError(
                    f"{place.key} has type {str(dtype).removeprefix('torch.')}; expected floating point."
                )
            ours = dtype if made.format == "sightline" else FLOATS[dtype]  # our own files come back as they were
            kept = ours if kept is None else torch.promote_types(kept, ours)
    return kept or torch.float32


def finite(key: str, tensor: Tensor) -> Tensor:
    """The tensor itself, if all its values are numbers.

    Only then their sum of squares is finite, which BLAS makes at the speed of memory; otherwise values are counted.
    """
    if tensor.dtype in (torch.float32, torch.float64) and tensor.is_contiguous():
        flat = tensor.reshape(-1).numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(np.dot(flat, flat)):
                return tensor
    if tensor.is_floating_point() and (bad := int((~torch.isfinite(tensor)).sum())):
        raise WeightsError(f"{key} holds {bad} NaN or infinite values of {tensor.numel()}: the weights are broken.")
    return tensor


def filled(model: Model, state: Mapping[str, Tensor]) -> Model:
    """Give a model on the meta device its values without copying them."""
    for name, buffer in model.named_buffers():
        if name not in state:  # computed, not stored
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, torch.empty(buffer.shape, dtype=buffer.dtype))
    model.load_state_dict(state, assign=True)
    for module in model.modules():
        if isinstance(module, Positions):
            module.refill()
    return model


def adapted(model: Model, made: Conversion, state: dict[str, Tensor], wish: Wish) -> tuple[Model, tuple[Entry, ...]]:
    """The model with a new head or for another size, where that was wished for."""
    changes: dict[str, Any] = {}
    entries = list(made.entries)
    if wish.size is not None and checks.pair(wish.size) != checks.pair(made.config.size):
        changes["size"] = wish.size
    if wish.classes is not None:
        changes["classes"] = wish.classes if isinstance(wish.classes, int) else len(wish.classes)
        if not isinstance(made.config, BiTConfig):
            changes["head"] = "linear"
    if not changes:
        return model, tuple(entries)
    new = on_meta(change(made.config, **changes), len(state))
    if "classes" in changes:
        entries = _new_head(new, state, entries)
    if "size" in changes and isinstance(model, ViT):
        entries = _new_grid(model, new, state, entries, wish.method)
    return filled(new, state), tuple(entries)


def _new_head(new: Model, state: dict[str, Tensor], entries: list[Entry]) -> list[Entry]:
    why = "replaced by a new head, as classes was given"
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
                Entry(key=None, ours=key, fate="new", wanted=tuple(like.shape), why="a new head starts at zero")
            )
    return kept


def _new_grid(old: ViT, new: Model, state: dict[str, Tensor], entries: list[Entry], method: str) -> list[Entry]:
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


def _doubts(made: Conversion, state: Mapping[str, Tensor], *, known_image: bool) -> list[str]:
    doubts = [w for w in made.warnings if not (known_image and w.startswith("The preprocessing"))]
    for name in ("head", "head_distill"):
        weight = state.get(f"{name}.weight")
        if weight is not None and made.format != "sightline" and not weight.any():
            doubts.append(f"The {name} is all zeros: the file gives features, no classification.")
    if made.switches:
        padding = ""
        if isinstance(made.config, HybridConfig):
            padding = ", padding=SAME"
        elif isinstance(made.config, BiTConfig):
            padding = ", padding=symmetric, pool padded with zeros"
        set_so = ", ".join(f"{k}={v}" for k, v in made.switches)
        doubts.append(f"Set from the format ({made.format}), not from the file: {set_so}{padding}.")
    return doubts


def _names(classes: int | Sequence[str]) -> tuple[str, ...] | None:
    return None if isinstance(classes, int) else tuple(classes)


def _fitting_names(names: tuple[str, ...] | None, made: Conversion) -> tuple[str, ...] | None:
    return names if names is not None and len(names) == made.config.classes else None
