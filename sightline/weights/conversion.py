"""Checkpoints as dictionaries, in and out of Sightline's names: pure, both directions, no files."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sightline.models.construct import Model, change, from_config
from sightline.models.variants import Config
from sightline.spec import ImageSpec
from sightline.weights.formats import bit
from sightline.weights.formats.format import UNSEEN, Format, Hints, differing
from sightline.weights.formats.google import GOOGLE
from sightline.weights.formats.huggingface import HF, HF_V5
from sightline.weights.formats.key_table import KeyRule, Shapes, write
from sightline.weights.formats.timm import TIMM
from sightline.weights.formats.torchvision import TORCHVISION
from sightline.weights.formats.wrappers import Place, unwrapped
from sightline.weights.report import Entry, WeightsError

FORMATS = (
    GOOGLE,
    TIMM,
    HF,
    HF_V5,
    TORCHVISION,
    bit.GOOGLE_BIT,
    bit.TIMM_BIT,
    bit.HF_BIT,
    bit.HF_BIT_HEADLESS,
    bit.BIT_PYTORCH,
)
TARGETS = ("sightline", "npz", "timm", "hf", "hf-v5", "torchvision", "bit-pytorch")
Reader = Callable[[str, int | None], Tensor]  # key, layer of a stack


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What is going to be loaded, before a single weight is read: every key accounted for, every shape checked."""

    format: str
    config: Config
    image: ImageSpec
    model: Model  # on the meta device
    rows: tuple[KeyRule, ...]
    places: Mapping[str, Place]
    entries: tuple[Entry, ...]
    warnings: tuple[str, ...] = ()
    switches: tuple[tuple[str, Any], ...] = ()


def match_keys(shapes: Shapes, hints: Hints, *, config: Config | None = None, strict: bool = True) -> Conversion:
    """Recognize a checkpoint by its keys and shapes; `config` is used where a header already says what it is."""
    view = unwrapped(shapes)
    form = recognize(view.shapes)
    extra = {k: v for k, v in hints.items() if k not in ("heads", "size")}
    try:
        guess = form.guess(view.shapes, hints) if config is None else None
        found = guess.config if guess else config
        assert found is not None
        found = change(found, **extra) if extra else found
    except (ValueError, TypeError, IndexError, ArithmeticError) as error:
        raise error if isinstance(error, WeightsError) else WeightsError(f"No model is like that: {error}") from error
    model = on_meta(found, len(view.shapes))
    rows = tuple(form.rows(found, view.shapes))
    entries = (*check(rows, view.shapes, view.places, model), *view.left)
    entries += _left_over(form, rows, view.shapes, view.places, strict=strict)
    switches = {**form.native(found), **extra}
    return Conversion(
        format=form.name,
        config=found,
        image=guess.image if guess else found.image,
        model=model,
        rows=rows,
        places=view.places,
        entries=entries,
        warnings=guess.warnings if guess else (),
        switches=tuple(switches.items()) if guess else (),
    )


def recognize(shapes: Shapes) -> Format:
    """The format whose names these are."""
    for form in FORMATS:
        if form.knows(shapes):
            return form
    some = ", ".join(list(shapes)[:3]) or "none at all"
    known = ", ".join(f.name for f in FORMATS)
    raise WeightsError(f"The keys belong to no format that Sightline knows ({known}): {some} ...")


def on_meta(config: Config, keys: int) -> Model:
    """The model without memory. A configuration that claims more layers than the file has keys is not built."""
    units = getattr(config, "units", ())
    depth = getattr(getattr(config, "vit", config), "depth", 0)
    if depth + sum(units) > keys:
        raise WeightsError(f"The configuration claims {depth + sum(units)} layers, the file has {keys} keys.")
    try:
        with torch.device("meta"):
            return from_config(config)
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        raise WeightsError(f"No model can be built from this file's configuration: {error}") from error


def check(
    rows: tuple[KeyRule, ...], shapes: Shapes, places: Mapping[str, Place], model: nn.Module
) -> tuple[Entry, ...]:
    """Compare each shape of the file with the one that the model's own tensor would have there."""
    wanted = model.state_dict()
    assert {row.ours for row in rows} == set(wanted), "the table of a format misses a tensor of ours"
    entries = []
    for row in rows:
        for key, tensor in write(row, wanted[row.ours]).items():
            if key not in shapes:
                raise WeightsError(f"The file has no {key}, which {row.ours} needs: it is incomplete.")
            found, expected = tuple(shapes[key]), tuple(tensor.shape)
            if [n for n in found if n != 1] != [n for n in expected if n != 1]:
                raise WeightsError(f"{places[key].key} has shape {found}; expected {expected} for {row.ours}.")
            shape = tuple(wanted[row.ours].shape)
            entries.append(Entry(key=_label(places[key]), ours=row.ours, fate="taken", found=found, wanted=shape))
    return tuple(entries)


def _label(place: Place) -> str:
    return place.key if place.layer is None else f"{place.key}[{place.layer}]"


def _left_over(
    form: Format, rows: tuple[KeyRule, ...], shapes: Shapes, places: Mapping[str, Place], *, strict: bool
) -> tuple[Entry, ...]:
    taken = {key for row in rows for key in row.theirs}
    left, unexplained = [], []
    for key in shapes:
        if key in taken:
            continue
        why = next((why for pattern, why in form.spare if re.fullmatch(pattern, key)), None)
        if why is None:
            unexplained.append(key)
        found = tuple(shapes[key])
        left.append(Entry(key=_label(places[key]), ours=None, fate="left", found=found, why=why or "unexplained"))
    if unexplained and strict:
        some = ", ".join(unexplained[:4]) + (" ..." if len(unexplained) > 4 else "")
        raise WeightsError(
            f"{len(unexplained)} keys of the file have no place in the model: {some}. "
            "Loading without them would give other numbers; strict=False leaves them out."
        )
    return tuple(left)


def carry(made: Conversion, read: Reader, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The weights under our names. One tensor at a time: what is read is let go before the next is read."""
    wanted = made.model.state_dict()
    state: dict[str, Tensor] = {}
    for row in made.rows:
        like = wanted[row.ours]
        # what stays is allocated before what is let go again, or the heap fills with holes
        kept = None if row.way.in_order or dtype is None else torch.empty(like.shape, dtype=dtype)
        parts = []
        for key, shape in write(row, like).items():
            tensor = read(made.places[key].key, made.places[key].layer)
            parts.append(tensor.reshape(shape.shape))
        there = row.way.there(parts)
        if kept is None:  # counters of batch norms stay whole numbers
            kept = there.to(dtype if dtype and there.is_floating_point() else there.dtype).contiguous()
        else:
            kept.copy_(there)
        state[row.ours] = kept
    return state


def writable(config: Config, target: str) -> Format:
    """The format behind a target's name that holds this model, or the reason why none does."""
    if target not in TARGETS[1:]:
        raise WeightsError(f"Weights are written as one of {', '.join(TARGETS)}; got {target!r}.")
    targets = (target, "hf") if target == "hf-v5" else (target,)
    reasons = []
    for form in sorted((f for f in FORMATS if f.target in targets), key=lambda f: f.target != target):
        reason = form.refuses(config)
        if reason is None:
            return form
        reasons.append(reason)
    told = next((r for r in reasons if not r.startswith("this layout")), reasons[0])
    raise WeightsError(f"{target} cannot hold this model: {told}. Use --to sightline, which holds every model.")


def to_format(state: Mapping[str, Tensor], config: Config, target: str) -> dict[str, Tensor]:
    """Our weights under the names of another library: the same table, read backwards."""
    form = writable(config, target)
    rows = form.rows(config, UNSEEN)
    if missing := {row.ours for row in rows} ^ set(state):
        raise WeightsError(f"The weights do not fit their configuration: {', '.join(sorted(missing)[:4])}.")
    return {key: tensor for row in rows for key, tensor in write(row, state[row.ours]).items()}


def from_format(tensors: Mapping[str, Tensor], **hints: Any) -> tuple[Config, dict[str, Tensor]]:
    """Configuration and weights under our names, from any state dict that Sightline knows."""
    made = match_keys({k: tuple(v.shape) for k, v in tensors.items()}, hints)
    return made.config, carry(made, lambda key, layer: tensors[key] if layer is None else tensors[key][layer])


def advice(config: Config, target: str) -> list[str]:
    """What the reader of a written file must know: numeric switches that its library sets otherwise."""
    form = writable(config, target)
    return [
        f"The model computes with {path}={ours!r}; {form.name} sets {theirs!r} unless told otherwise."
        for path, (ours, theirs) in differing(config, form.native(config)).items()
    ]
