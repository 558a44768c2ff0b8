"""One image on its way through a model, kept: the answer, the attention of every head, the stream at every depth."""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from sightline.analysis.attention.rollout import from_head, rollout
from sightline.analysis.tokens.outliers import outliers
from sightline.data.images import resized_size
from sightline.data.opening import model_batch
from sightline.evals.prediction import Prediction, TopClasses, probability_rule, top_classes
from sightline.observe.attention import attention_probs
from sightline.observe.model import ObservedModel, evaluation_mode
from sightline.observe.stream import Place, residual_stream, watching
from sightline.observe.switches import switch_off
from sightline.spec import ImageSpec
from sightline.weights.names import class_names
from sightline.weights.runs import run_temperature

Grid = tuple[int, int]
Spot = tuple[float, float]  # (x, y) within 0..1 of what the model sees
_temperatures: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()  # of models, which stay as they are here


def calibration(model: nn.Module) -> float:
    """What the logits of a run's model are divided by, found once."""
    if model not in _temperatures:
        _temperatures[model] = run_temperature(model)
    return _temperatures[model]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What one forward pass left. A patch that was switched off keeps its place: it attends to itself alone, and its
    features are zeros."""

    observed: ObservedModel
    off: tuple[str, ...]
    pixels: Tensor  # (1, c, y, x), as the model takes them
    logits: Tensor  # (1, classes)
    attention: Tensor | None  # (blocks, heads, tokens, tokens); None for a CNN
    stream: tuple[Tensor, ...]  # by depth: tokens (n, d) with those before the grid, or a map (d, y, x)
    gone: tuple[int, ...]  # patches that were switched off

    @property
    def prefix(self) -> int:
        return self.observed.prefix if self.attention is not None else 0

    def grid(self, depth: int) -> Grid:
        """Rows and columns at one depth."""
        x = self.stream[depth]
        return (x.shape[1], x.shape[2]) if x.ndim == 3 else self.observed.grid

    def cells(self, depth: int) -> Tensor:
        """(cells, d) at one depth, without the tokens before the grid."""
        x = self.stream[depth]
        return x.flatten(1).mT if x.ndim == 3 else x[self.prefix :]

    def classes(self, top: int) -> TopClasses:
        """The most probable classes, calibrated as those of `sl.predict` are."""
        model, by = self.observed.model, probability_rule(self.observed.model)
        logits = self.logits.double().cpu().numpy()
        return top_classes(logits / calibration(model) if by == "softmax" else logits, by=by, top=top)

    def answer(self, top: int) -> Prediction:
        """The most probable classes, as `sl.predict` gives them."""
        found = self.classes(top)
        names, _ = class_names(self.observed.model, found.classes)
        return Prediction(
            image="",
            names=tuple(names[i] for i in found.indices[0]),
            indices=tuple(found.indices[0].tolist()),
            probabilities=tuple(found.probabilities[0].tolist()),
        )

    def probability(self, number: int) -> float:
        """Of one class."""
        found = self.classes(self.logits.shape[1])
        return float(found.probabilities[0][found.indices[0] == number][0])

    def from_spot(self, spot: Spot | None) -> NDArray[np.float32]:
        """Attention (blocks, heads, cells) from the patch at a spot to the patches; None: from what the head reads."""
        assert self.attention is not None
        if spot is None:
            return from_head(self.attention, self.observed).flatten(-2).numpy()
        row = self.prefix + cell_at(self.observed.grid, spot)
        return self.attention[..., row, self.prefix :].numpy()

    def to_spot(self, spot: Spot | None) -> NDArray[np.float32]:
        """Attention (blocks, heads, cells) that each patch gives to the one at a spot; None: to the class token, or
        where there is none the mean over all patches."""
        assert self.attention is not None
        rows = self.attention[..., self.prefix :, :]
        if spot is not None:
            return rows[..., self.prefix + cell_at(self.observed.grid, spot)].numpy()
        if self.observed.class_token:
            return rows[..., 0].numpy()
        return rows[..., self.prefix :].mean(-1).numpy()

    def similarity(self, spot: Spot) -> list[NDArray[np.float32]]:
        """Cosine of the cell at a spot with every cell, by depth."""
        found = []
        for depth in range(len(self.stream)):
            unit = F.normalize(self.cells(depth).float(), dim=-1)
            found.append((unit @ unit[cell_at(self.grid(depth), spot)]).numpy())
        return found

    def rollout(self, *, identity: bool = False) -> NDArray[np.float32]:
        """Attention rollout, (y, x), as `sl.attention_rollout` gives it."""
        assert self.attention is not None
        joint = rollout((a.mean(0)[None, None] for a in self.attention), identity=identity)
        return from_head(joint, self.observed)[0].numpy()

    def norms(self) -> list[NDArray[np.float32]]:
        """Norm of every cell, by depth."""
        return [torch.linalg.vector_norm(self.cells(i).float(), dim=-1).numpy() for i in range(len(self.stream))]

    def outliers(self) -> list[NDArray[np.bool_]]:
        """Which patches are outliers by their norm, by depth, as `sl.analysis.outlier_tokens` finds them."""
        return [outliers(torch.from_numpy(n)[None])[0].numpy() for n in self.norms()]


def cell_at(grid: Grid, spot: Spot) -> int:
    """The number of the cell in which a spot lies."""
    row, column = (min(int(v * n), n - 1) for v, n in zip((spot[1], spot[0]), grid))
    return row * grid[1] + column


def places(s: ObservedModel) -> list[Place]:
    """Where the stream is kept: the input and output of blocks; of a CNN without blocks, every convolution."""
    if s.attention_blocks or s.block_outputs:
        return residual_stream(s)
    return [Place(p.path, s.model.get_submodule(p.path)) for p in s.parts if p.layout == "map" and p.kind == "conv"]


def run(s: ObservedModel, image: Image.Image, off: Sequence[str] = ()) -> Pass:
    """Classify an image, and keep what can be looked at."""
    device, dtype = s.place
    pixels = model_batch([image], s.image).to(device=device, dtype=dtype)
    attention: dict[int, Tensor] = {}
    stream: dict[int, Tensor] = {}
    with evaluation_mode(s), switch_off(s, *off), watching(places(s), lambda i, x: stream.update({i: x[0].clone()})):
        if s.attention_blocks:
            with attention_probs(s, lambda i, p: attention.update({i: p[0]})):
                logits = s.model(pixels)
        else:
            logits = s.model(pixels)
    gone = tuple(sorted(int(text.split()[1]) for text in off if text.startswith("token ")))
    kept = kept_tokens(s, gone)
    probs = torch.stack([attention[i].float() for i in sorted(attention)]).cpu() if attention else None
    return Pass(
        observed=s,
        off=tuple(off),
        pixels=pixels,
        logits=logits,
        attention=probs if probs is None or kept is None else spread_attention(probs, kept, tokens_of(s)),
        stream=tuple(
            x.cpu() if kept is None else spread(x.cpu(), kept, tokens_of(s)) for _, x in sorted(stream.items())
        ),
        gone=gone,
    )


def tokens_of(s: ObservedModel) -> int:
    return s.prefix + s.grid[0] * s.grid[1]


def kept_tokens(s: ObservedModel, gone: Sequence[int]) -> Tensor | None:
    """The numbers of the tokens that are still there; None: all of them."""
    if not gone:
        return None
    away = {s.prefix + number for number in gone}
    return torch.tensor([i for i in range(tokens_of(s)) if i not in away])


def spread(x: Tensor, kept: Tensor, count: int, *, fill: float = 0.0) -> Tensor:
    """Rows (n, ...) at the places of the tokens that were kept, the others filled."""
    out = x.new_full((count, *x.shape[1:]), fill)
    out[kept] = x
    return out


def spread_attention(probs: Tensor, kept: Tensor, count: int) -> Tensor:
    """Attention (..., n, n) of the kept tokens among all; those that are gone attend to themselves alone."""
    out = torch.eye(count).expand(*probs.shape[:-2], count, count).clone()
    out[..., kept[:, None], kept] = probs
    return out


def visible(size: tuple[int, int], spec: ImageSpec) -> tuple[float, float, float, float]:
    """The part of an image of this (width, height) that a model sees: left, top, width and height as shares of it."""
    width, height = resized_size(size, spec)
    w, h = spec.size[1] / width, spec.size[0] / height
    return (1 - w) / 2, (1 - h) / 2, w, h
