"""`sl.analysis.activation_patching`: which part of a model carries the difference between two images.

Activations of one image (the source) are copied into the run of another (the destination), one place at a time, and the
share of the difference between their answers that this restores is measured (Zhang and Nanda 2023).
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.evals.interval import Ends, known_ends, of_mean, over_groups, without_each
from sightline.models.taps import record
from sightline.observe.branches import branches, rewriting_heads
from sightline.observe.images import Data, ImageSource, thumbnails
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.stream import residual_stream, rewriting, skipping, watching
from sightline.spec import About, Result
from sightline.weights.names import class_names

TAKE_OVER = "place from which the class token carries half"
CANDIDATES = 16  # images per pair that are looked at for two of different classes


@dataclass(frozen=True, kw_only=True)
class ActivationPatching(Result):
    """Shares of the difference in logits that a patch restores: 0 as without it, 1 as in the source.

    With a and b the classes that the model gives source and destination (if they are the same, the two classes whose
    logits the images move apart the most), m = logit a - logit b, and the share is
    (m of the patched run - m of the destination) / (m of the source - m of the destination). It may lie outside of 0
    to 1: a patch can overshoot, or work against the source.

    >>> import numpy as np
    >>> r = sl.analysis.ActivationPatching(title="", caption="", places=("input", "block 0"),
    ...     regions=np.array([[[[0.2]], [[0.0]]]]), prefix=np.array([[[0.0], [1.0]]]), branches=np.ones((1, 1, 2)),
    ...     kinds=("attention", "mlp"), heads=np.ones((1, 1, 2)), controls=np.array([[[0, 0], [1, 1.0]]]),
    ...     difference=np.array([[4.0, -4.0]]), classes=np.array([[1, 2]]), names={"1": "owl"},
    ...     images=np.zeros((1, 2, 8, 8, 3), np.uint8), passes=12)
    >>> r.name(1), r.summary()["largest share of one head"]
    ('owl', 1.0)
    """

    places: tuple[str, ...]  # of the residual stream, first to last
    regions: NDArray[np.float64]  # (pairs, places, rows, columns): the patches of one region replaced
    prefix: NDArray[np.float64]  # (pairs, places, prefix tokens): one of them replaced
    branches: NDArray[np.float64]  # (pairs, blocks, kinds): what the block adds, replaced at all tokens
    kinds: tuple[str, ...]  # attention and mlp, or convolution
    heads: NDArray[np.float64]  # (pairs, blocks, heads): one head replaced at all tokens; no heads in a CNN
    controls: NDArray[np.float64]  # (pairs, 2, places): nothing replaced, everything replaced
    difference: NDArray[np.float64]  # (pairs, 2): logit a - logit b of source and destination
    classes: NDArray[np.int64]  # (pairs, 2): a and b
    names: dict[str, str]  # of the classes, by number, where the model knows them
    images: NDArray[np.uint8]  # (pairs, 2, height, width, 3)
    passes: int  # patched runs in all
    class_token: bool = True  # whether the first prefix token, if there is one, is a class token; registers are none

    @property
    def has_class_token(self) -> bool:
        """Whether a class token was replaced alone."""
        return self.class_token and self.prefix.shape[2] > 0

    def name(self, number: int) -> str:
        """What to call a class."""
        return self.names.get(str(number), f"class {number}")

    def summary(self) -> dict[str, float]:
        numbers = {"patched runs": float(self.passes)}
        for i, kind in enumerate(self.kinds):
            each = self.branches[..., i].mean(0)
            numbers[f"largest share of one {kind} branch"] = float(np.nanmax(each, initial=-np.inf))
        if self.heads.size:
            numbers["largest share of one head"] = float(self.heads.mean(0).max())
        if self.has_class_token:
            half = np.flatnonzero(self.prefix[..., 0].mean(0) >= 0.5)
            numbers[TAKE_OVER] = float(half[0]) if half.size else np.inf
        return numbers

    def take_over(self, curve: NDArray | None = None) -> float:
        """The place from which on the class token alone carries half of the difference, on average over pairs; between
        two places where the line between them reaches half. Infinite where it never does."""
        carried = self.prefix[..., 0].mean(0) if curve is None else curve
        late = np.flatnonzero(carried >= 0.5)
        if not late.size:
            return np.inf
        i = int(late[0])
        before, after = float(carried[max(i - 1, 0)]), float(carried[i])
        return i - (after - 0.5) / (after - before) if i and after > before else float(i)

    def take_over_interval(self) -> Ends:
        """95 % interval over pairs of `take_over`; none for fewer than four pairs."""
        each = self.prefix[..., 0]
        most = len(self.places) - 1
        part = each.mean(0), without_each(each)
        return over_groups(lambda x: min(self.take_over(x), most), part, least=0.0, most=most)

    def intervals(self) -> dict[str, Ends]:
        """Over pairs of images."""
        found = {}
        for i, kind in enumerate(self.kinds):
            at = int(np.nan_to_num(self.branches[..., i].mean(0), nan=-np.inf).argmax())
            found[f"largest share of one {kind} branch"] = of_mean(self.branches[:, at, i])
        if self.heads.size:
            each = self.heads.reshape(len(self.heads), -1)
            found["largest share of one head"] = of_mean(each[:, int(each.mean(0).argmax())])
        if self.has_class_token and np.isfinite(self.take_over()):
            low, high = self.take_over_interval()
            found[TAKE_OVER] = first_place(low), first_place(high)
        return known_ends(found)


def first_place(at: float) -> float:
    """The first place at or after a point between two of them; rounding does not make it one more."""
    return float(np.ceil(at - 1e-9))


def activation_patching(
    model: Model, data: Data, *, pairs: int = 1, cells: int = 7, batch: int = 64, seed: int = 0
) -> ActivationPatching:
    """Copy activations from one image into the run of another: by region of patches, branch and head, in every block.

    Images are paired in their order, the first with the next one that the model gives another class, if there is one:
    the source and the destination. `cells` is the number of regions along each axis; as many as there are patches, or
    more, gives single patches. `batch` runs pass at a time, without the blocks before the patch; `passes` counts them.

    >>> model = sl.build("vit-nano4", classes=10, depth=2)
    >>> _ = torch.nn.init.normal_(model.head.weight)
    >>> found = sl.analysis.activation_patching(model, sl.dataset("scenes/shape", num=8, size=32), cells=2)
    >>> found.regions.shape, found.heads.shape, bool((abs(found.controls[0, 1] - 1) < 1e-4).all())
    ((1, 3, 2, 2), (1, 2, 4), True)
    """
    for what, value in (("pairs", pairs), ("cells", cells), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{what} is a whole number from 1 up; got {value!r}.")
    s = observe(model)
    if not s.classes:
        raise ValueError(f"{s.name} has no classes: patching compares logits, so load one with its head.")
    images = ImageSource(data=data, batch=min(batch, CANDIDATES), n=max(2, CANDIDATES * pairs), seed=seed)
    with evaluation_mode(s):
        chosen = choose_pairs(s, images, pairs)
        found = [Patching(s, *pair, cells=cells, batch=batch) for pair in chosen]
        runs = [each.run() for each in found]
    how = {"pairs": len(found), "cells": cells, "batch": batch, "seed": seed, "direction": "source into destination"}
    return _result(s, found, runs, pairs=chosen, how=how, about=images.about(s))


def choose_pairs(s: ObservedModel, images: ImageSource, count: int) -> list[tuple[Tensor, Tensor]]:
    """Each image with the next free one of another predicted class, or else with the next one of other logits."""
    seen = [(b.images[0], s.model(b.images[0])) for b in images.batches([s], what="images to patch")]
    pixels, logits = (torch.cat(t) for t in zip(*seen))
    said, free = logits.argmax(-1), list(range(len(pixels)))
    found: list[tuple[Tensor, Tensor]] = []
    while free and len(found) < count:
        i = free.pop(0)
        others = [j for j in free if not torch.equal(logits[i], logits[j])]
        j = next((j for j in others if said[j] != said[i]), next(iter(others), None))
        if j is not None:
            free.remove(j)
            found.append((pixels[i : i + 1], pixels[j : j + 1]))
    if len(found) < count:
        raise ValueError(
            f"{len(pixels)} images make {len(found)} of {count} pairs that {s.name} tells apart by its logits; give "
            "more or other images, or a trained head."
        )
    return found


class Patching:
    """One pair: the activations of the source, and runs of the destination with parts of them."""

    def __init__(self, s: ObservedModel, source: Tensor, destination: Tensor, *, cells: int, batch: int):
        self.target, self.source, self.destination, self.batch, self.passes = s, source, destination, batch, 0
        self.places, self.branches = residual_stream(s), branches(s)
        self.stream: dict[int, Tensor] = {}
        self.added: dict[int, Tensor] = {}  # branches of the source, by number in `flat`
        self.flat = [(b, kind, place) for b, each in enumerate(self.branches) for kind, place in each.items()]
        names = [p.path for p in s.parts if p.kind == "heads"]
        with ExitStack() as stack:
            tape = stack.enter_context(record(s.model, *names)) if names else {}
            stack.enter_context(watching(self.places, lambda i, t: self.stream.__setitem__(i, t.clone())))
            stack.enter_context(watching([f[2] for f in self.flat], lambda i, t: self.added.__setitem__(i, t.clone())))
            logits = s.model(source)
        feed: Any = getattr(s.model, "attention", None)
        written = names and feed is not None and feed.eager  # then a head cannot be replaced from outside
        self.per_head = [] if written else [tape[name].clone() for name in names]
        self.outputs: list[Any] = []  # of the destination's blocks
        with ExitStack() as stack:
            for block in s.encoder_blocks:
                stack.callback(block.register_forward_hook(lambda m, a, out: self.outputs.append(out)).remove)
            other = s.model(destination)
        self.classes = compared(logits[0], other[0])
        self.ends = (self.metric(logits).item(), self.metric(other).item())
        grids = [t.shape[2:] if t.ndim == 4 else s.grid for t in self.stream.values()]
        self.side = (min(cells, *(g[0] for g in grids)), min(cells, *(g[1] for g in grids)))

    def metric(self, logits: Tensor) -> Tensor:
        a, b = self.classes
        return logits[:, a].double() - logits[:, b].double()

    def share(self, logits: Tensor) -> NDArray[np.float64]:
        """Of the difference that each run restores."""
        high, low = self.ends
        return np.asarray(((self.metric(logits) - low) / (high - low)).cpu().numpy(), dtype=np.float64)

    def run(self) -> dict[str, NDArray[np.float64]]:
        """Every place and every block."""
        rows = np.stack([self.tokens(i) for i in range(len(self.places))])  # (places, 2 + prefix + regions)
        prefix = self.target.prefix if self.target.attention_blocks else 0
        inner = [self.block(b) for b in range(len(self.branches))]
        return {
            "controls": rows[:, :2].T,
            "prefix": rows[:, 2 : 2 + prefix],
            "regions": rows[:, 2 + prefix :].reshape(len(rows), *self.side),
            "branches": np.stack([each[0] for each in inner]),
            "heads": np.stack([each[1] for each in inner]),
        }

    def tokens(self, number: int) -> NDArray[np.float64]:
        """Nothing, everything, each prefix token, and each region of patches replaced at one place."""
        place, source = self.places[number], self.stream[number]
        masks = self.masks(source)
        found = []
        for part in masks.split(self.batch):
            with rewriting(place, lambda x, m=part: torch.where(m, source, x)):  # type: ignore[misc]
                found.append(self.shares(len(part), skipped=number))  # place i is the output of block i - 1
        return np.concatenate(found)

    def shares(self, count: int, *, skipped: int) -> NDArray[np.float64]:
        """So many runs of the destination; a ViT does not compute the blocks again that come before the patch."""
        s = self.target
        self.passes += count
        with skipping(s.encoder_blocks[:skipped], self.outputs):
            return self.share(s.model(self.destination.expand(count, -1, -1, -1)))

    def masks(self, source: Tensor) -> Tensor:
        """Which tokens (runs, n, 1) or locations (runs, 1, y, x) each run takes from the source."""
        whole, s = source.ndim == 4, self.target
        grid = (source.shape[2], source.shape[3]) if whole else s.grid
        prefix, count = 0 if whole else s.prefix, grid[0] * grid[1]
        cells = torch.arange(prefix, prefix + count).unflatten(0, grid)
        sets = [torch.arange(0), torch.arange(prefix + count), *(torch.tensor([i]) for i in range(prefix))]
        sets += [c.flatten() for band in cells.tensor_split(self.side[0]) for c in band.tensor_split(self.side[1], 1)]
        mask = torch.zeros(len(sets), prefix + count, dtype=torch.bool)
        for row, chosen in zip(mask, sets):
            row[chosen] = True
        mask = mask.to(source.device)
        return mask.unflatten(1, grid)[:, None] if whole else mask[..., None]

    def block(self, b: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Shares of the branches of one block and of its heads; NaN where a unit has no branch of its own."""
        s = self.target
        inside = [(i, kind, place) for i, (owner, kind, place) in enumerate(self.flat) if owner == b]
        heads = self.per_head[b].shape[1] if self.per_head else 0
        count = len(inside) + heads
        if not count:
            return np.full(len(self.kinds), np.nan), np.zeros(0)
        with ExitStack() as stack:
            for row, (i, _, place) in enumerate(inside):
                stack.enter_context(rewriting(place, partial(_with_row, row=row, value=self.added[i])))
            if heads:
                change = partial(_with_heads, first=len(inside), value=self.per_head[b])
                stack.enter_context(rewriting_heads(s, s.attention_blocks[b], change))
            found = self.shares(count, skipped=b)
        return found[: len(inside)], found[len(inside) :]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind for _, kind, _ in self.flat))


def compared(source: Tensor, destination: Tensor) -> tuple[int, int]:
    """The classes of two images; if the model gives them the same, those whose logits they move apart the most."""
    a, b = int(source.argmax()), int(destination.argmax())
    apart = source - destination
    return (a, b) if a != b else (int(apart.argmax()), int(apart.argmin()))


def _with_row(x: Tensor, *, row: int, value: Tensor) -> Tensor:
    """One run of the batch takes the branch of the source."""
    x = x.clone()
    x[row] = value[0]
    return x


def _with_heads(x: Tensor, *, first: int, value: Tensor) -> Tensor:
    """From run `first` on, each takes the next head of the source."""
    x = x.clone()
    for head in range(x.shape[1]):
        x[first + head, head] = value[0, head]
    return x


def _result(
    s: ObservedModel,
    found: list[Patching],
    runs: list[dict[str, NDArray[np.float64]]],
    *,
    pairs: list[tuple[Tensor, Tensor]],
    how: dict[str, Any],
    about: About,
) -> ActivationPatching:
    passes = sum(each.passes for each in found)
    classes = np.array([each.classes for each in found], dtype=np.int64)
    names, origin = class_names(s.model, s.classes)
    known = () if origin == "number" else names
    if s.attention_blocks and not found[0].per_head:
        how = {**how, "heads": "left out: the model writes its attention out"}
    return ActivationPatching(
        title=f"Activation patching in {s.name}",
        caption=f"Share of the difference in logits between {len(found)} pair(s) of images that is restored where "
        f"activations of the source replace those of the destination; {passes:,} patched runs.",
        how=how,
        about=about,
        places=tuple(p.name for p in found[0].places),
        kinds=found[0].kinds,
        difference=np.array([each.ends for each in found]),
        classes=classes,
        names={str(i): str(known[i]) for i in np.unique(classes).tolist() if i < len(known)},
        images=np.stack([np.concatenate([thumbnails(x, s.image, 160) for x in pair]) for pair in pairs]),
        passes=passes,
        class_token=s.class_token,
        **{k: np.stack([run[k] for run in runs]) for k in runs[0]},
    )
