"""Gram matrices of many layers, built inside the hooks of one forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sightline.analysis.similarity.measures import SHARED, Metric, gram, nearest, raw_gram, uncentered
from sightline.analysis.similarity.ways import CANCELED, top_channels
from sightline.models.taps import record
from sightline.observe.model import ObservedModel
from sightline.observe.selection import MissingTokenError, Tokens, as_tokens, select_tokens

NEIGHBORS = 10  # of the second opinion, within a batch
SMALLEST = 4  # images in a batch: HSIC_1 divides by m - 3
STILL = 1e-12  # of the squared mean: less variance than rounding makes is none


@dataclass
class Grams:
    """What is kept of the layers of one model on one batch."""

    whole: dict[str, Tensor] = field(default_factory=dict)  # (m, m), of centered features
    lean: dict[str, Tensor] = field(default_factory=dict)  # the same without the channels of most variance
    near: dict[str, Tensor] = field(default_factory=dict)  # (m, k): the nearest images of each image


class Watch:
    """What is looked at in one model, and why some of it cannot be.

    `lean`: Gram matrices without the channels of most variance, too; which ones the first batch decides.
    """

    def __init__(
        self,
        s: ObservedModel,
        names: Sequence[str],
        tokens: Tokens,
        *,
        metric: Metric | None = None,
        lean: bool = False,
    ):
        self.target, self.tokens, self.names = s, tokens, list(names)
        self.metric, self.lean = metric, lean
        self.why: dict[str, str] = {}
        self.channels: dict[str, Tensor] = {}

    def __call__(self, images: Tensor) -> Grams:
        """One forward pass. No activation outlives its hook."""
        made = Grams()
        names = [name for name in self.names if name not in self.why]
        if names:
            with record(self.target.model, *names, keep=lambda path, value: self._keep(path, value, made)):
                self.target.model(images)
        return made

    def _keep(self, path: str, value: Tensor, made: Grams) -> None:
        try:
            rows = select_tokens(value, self.tokens, self.target, path).detach()
        except MissingTokenError as error:
            self.why[path] = f"{path} {error}"
            return
        raw = raw_gram(rows)
        found = gram(rows, raw)
        if reason := unusable(found, rows):
            self.why[path] = f"{path} {reason}"
            return
        made.whole[path] = found
        if self.metric and len(rows) > NEIGHBORS:
            shared = found.trace() < SHARED * raw.trace()
            made.near[path] = nearest(uncentered(rows, found) if shared else raw, found, NEIGHBORS, self.metric)
        if self.lean:
            made.lean[path] = self._without_channels(path, value, rows, found)

    def _without_channels(self, path: str, value: Tensor, rows: Tensor, whole: Tensor) -> Tensor:
        """The Gram matrix of all other channels: the whole less that of the few, unless little is left of it."""
        x = rows[:, None] if self.tokens not in ("all", "patches") else self._by_channel(path, value)
        if path not in self.channels:
            self.channels[path] = top_channels(x)
        few = self.channels[path]
        lean = whole - gram(x[..., few].flatten(1))
        if lean.trace() > CANCELED * whole.trace():
            return lean
        others = torch.ones(x.shape[2], dtype=torch.bool, device=x.device)
        others[few] = False
        return gram(x[..., others].flatten(1)) if others.any() else torch.full_like(whole, torch.nan)

    def _by_channel(self, path: str, value: Tensor) -> Tensor:
        part = self.target.part.get(path)
        if part is not None and part.layout == "probs":  # no channels: every number is one
            return value.detach().flatten(1)[:, None]
        layer = as_tokens(value.detach(), self.target, path)
        return layer.tokens if self.tokens == "all" else layer.tokens[:, layer.prefix :]


def unusable(made: Tensor, rows: Tensor) -> str | None:
    """Why a layer's features have no CKA on these images."""
    spread = made.diagonal().sum()
    if not torch.isfinite(spread):
        return "holds NaN or infinite values"
    first = rows[0].double()
    if spread <= STILL * len(rows) * (first @ first):
        return "is the same for every image"
    return None


def stack_grams(grams: dict[str, Tensor], names: Sequence[str], m: int) -> Tensor:
    """(layers, m, m) in float64; what is missing is NaN and makes its row and column NaN."""
    some = next(iter(grams.values()), torch.zeros(m, m, dtype=torch.float64))
    out = torch.full((len(names), m, m), torch.nan, dtype=torch.float64, device=some.device)
    for i, name in enumerate(names):
        if name in grams:
            out[i] = grams[name]
    return out
