"""The current state of a tab, to keep: as one page through the report's code, and as lines of Python."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from sightline.adoption.wrapper import AdoptedModel
from sightline.analysis.attention.head_attention import head_attention
from sightline.analysis.attention.rollout import attention_rollout
from sightline.analysis.pca import feature_pca
from sightline.analysis.receptive_fields import receptive_field
from sightline.analysis.tokens.logit_lens import logit_lens
from sightline.analysis.tokens.outliers import outlier_tokens
from sightline.app.networks import UNTRAINED
from sightline.evals.prediction import Prediction
from sightline.observe.model import ObservedModel
from sightline.observe.switches import switch_off
from sightline.report.write import render_page
from sightline.spec import Result

# what a page shows of each model; those that need patches on their grid are left out where some are switched off
VIT: dict[str, Callable[..., Result]] = {
    "head-attention": lambda s, image: head_attention(s, [image], n=1),
    "rollout": lambda s, image: attention_rollout(s, [image]),
    "rollout-gradient": lambda s, image: attention_rollout(s, [image], gradient=True),
    "outlier-tokens": lambda s, image: outlier_tokens(s, [image]),
}
ALL: dict[str, Callable[..., Result]] = {
    "logit-lens": lambda s, image: logit_lens(s, [image], n=1),
    "feature-pca": lambda s, image: feature_pca(s, [image], n=1),
    "receptive-field": lambda s, image: receptive_field(s, [image], layers=_some_blocks(s), n=1),
}


def _some_blocks(s: ObservedModel) -> list[int]:
    """Four blocks over the depth: each takes as long as several answers."""
    last = len(s.block_outputs) - 1
    return sorted({0, last // 3, 2 * last // 3, last})


@dataclass(frozen=True, kw_only=True)
class Look:
    """One model as it is shown now."""

    observed: ObservedModel
    image: Image.Image  # edited, if it was
    off: tuple[str, ...]
    source: Any  # what the user gave
    size: int | None  # None: the model's own
    checkpoint: str  # a file of the run folder; empty: the one that the folder stands for
    answer: Prediction | None


def page_of(looks: Sequence[Look], name: str) -> str:
    """One self-contained HTML file about what is shown now."""
    results: dict[str, Result] = {}
    for look, letter in zip(looks, ("",) if len(looks) == 1 else ("-a", "-b")):
        results |= {f"{kind}{letter}": r for kind, r in _results(look)}
    title = (
        f"What {' and '.join(look.observed.name for look in looks)} {'sees' if len(looks) == 1 else 'see'} in {name}"
    )
    return render_page(results, title, note=" ".join(map(_note, looks)))


def _note(look: Look) -> str:
    said = f": {look.answer.name}, {100 * look.answer.probability:.1f} %" if look.answer else ""
    return f"{look.observed.name}{said}{', without ' + ', '.join(look.off) if look.off else ''}."


def _results(look: Look) -> Iterator[tuple[str, Result]]:
    """Every analysis that works on this model as it is changed; one that does not is left out."""
    s = look.observed
    for name, make in {**(VIT if s.attention_blocks else {}), **ALL}.items():
        try:
            with switch_off(s, *look.off):
                yield name, make(s, look.image)
        except (ValueError, RuntimeError):  # no head to read, or a grid with a patch missing
            continue


def python_of(looks: Sequence[Look], image: str, edits: Sequence[Mapping[str, Any]]) -> str:
    """The lines that compute what is shown now; `image` is the image as an expression."""
    lines = ["import sightline as sl", "", f"image = {image}"]
    if edits:
        lines.append(f"image = sl.app.edit_image(image, {list(edits)!r})")
    for look in looks:
        lines += ["", *_opening_lines(look), *_number_lines(look)]
    return "\n".join(lines) + "\n"


def _opening_lines(look: Look) -> Iterator[str]:
    given = str(look.source) if isinstance(look.source, str | os.PathLike) else "YOUR MODEL"
    given = os.path.join(given, look.checkpoint) if look.checkpoint.endswith(".safetensors") else given
    adopted = isinstance(look.observed.model, AdoptedModel)
    size = f", size={look.size}" if look.size and not adopted else ""
    yield f"model = sl.observe.open_model({given!r}{size})"
    if look.checkpoint == UNTRAINED:
        yield "from sightline.observe import model as observed, twin"
        yield "model = twin.untrained(observed.observe(model)).model"
    if look.size and adopted:
        if look.observed.attention_blocks:
            yield f"model.inner.set_input_size(img_size=({look.size}, {look.size}))"
        yield f"model = sl.adopt(model.inner, image={look.observed.image!r})".replace(
            "image=ImageSpec", "image=sl.ImageSpec"
        )


def _number_lines(look: Look) -> Iterator[str]:
    yield f"with sl.observe.switch_off(model{''.join(f', {text!r}' for text in look.off)}):"
    if look.observed.classes:
        yield "    print(sl.predict(model, image)[0])"
        yield "    lens = sl.analysis.logit_lens(model, [image], n=1)"
    if look.observed.attention_blocks:
        yield "    heads = sl.head_attention(model, [image], n=1)  # .row(0, block, head, query)"
        yield "    rollout = sl.attention_rollout(model, [image]).maps[0]"
    yield "    features = sl.feature_pca(model, [image], n=1)"
    yield "    field = sl.receptive_field(model, [image], n=1)"
