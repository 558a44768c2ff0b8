"""`sl.analysis.outlier_tokens`: tokens of very large norm, the channels that carry it, and the attention they receive.

Darcet et al. 2023 found them in dull patches of large ViTs; Jiang et al. 2025 move them to a token added at test time.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.evals.interval import Ends, ends, known_ends, over_groups, t95
from sightline.evals.prediction import noting_predictions
from sightline.observe.attention import attention_probs
from sightline.observe.groups import ImageGroups
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.stream import residual_stream, watching
from sightline.observe.switches import Switch, without
from sightline.spec import About, Result

TIMES = 3.0  # the median norm of an image's patches; Darcet et al. cut DINOv2-g at 150, where most are near 50
SPREADS = 6.0  # robust standard deviations of log norm: images with patches of very different norm have no outliers
SINK = 10.0  # times its share if all tokens received the same attention
SHOWN = 4  # images whose maps are kept


@dataclass(frozen=True, kw_only=True)
class OutlierTokens(Result):
    """Norms of the residual stream, outliers among the patches, and attention received, by place and block.

    Place 0 is the encoder's input, place i + 1 the output of block i. Block i attends to what stands at place i.

    >>> import numpy as np
    >>> r = sl.analysis.OutlierTokens(title="", caption="", places=("input", "block 0"), typical=np.ones(2),
    ...     largest=np.array([1.0, 9.0]), prefix_norm=np.ones((2, 0)), share=np.array([0.0, 0.25]),
    ...     channels=np.array([[[0.5, 0.5], [0.5, 0.5]], [[0.1, 0.9], [0.5, 0.5]]]), groups=("outlier patches",),
    ...     mass=np.ones((1, 1)), sinks=np.zeros(1), norm=np.ones((1, 2, 4)), outlier=np.zeros((1, 2, 4), bool),
    ...     received=np.ones((1, 1, 4)), images=np.zeros((1, 8, 8, 3), np.uint8), grid=(2, 2))
    >>> r.peak, r.top_channels(1)
    (1, [(1, 0.9)])
    """

    places: tuple[str, ...]
    typical: NDArray[np.float64]  # (places,), median norm of an image's patches, mean over images
    largest: NDArray[np.float64]  # (places,), largest norm of an image's patches, mean over images
    prefix_norm: NDArray[np.float64]  # (places, prefix tokens), mean over images
    share: NDArray[np.float64]  # (places,), of the patches that are outliers
    channels: NDArray[np.float64]  # (places, 2, d): share of the squared norm; of outliers (NaN without), of the others
    groups: tuple[str, ...]  # who receives attention
    mass: NDArray[np.float64]  # (blocks, groups), share of all attention, mean over heads, queries and images
    sinks: NDArray[np.float64]  # (blocks,), patches per image that receive more than 10 times an even share
    norm: NDArray[np.float32]  # (shown, places, patches)
    outlier: NDArray[np.bool_]  # (shown, places, patches)
    received: NDArray[np.float32]  # (shown, blocks, patches), attention in multiples of an even share
    images: NDArray[np.uint8]  # (shown, height, width, 3)
    grid: tuple[int, int]
    register: str = ""  # the test-time register that was added, as a switch
    # half widths of 95 % intervals over images, NaN for one image: (places, 3) of `typical`, `largest` and `share`;
    # (blocks, groups) of `mass`; (blocks,) of `sinks`
    norm_band: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 3)))
    mass_band: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    sinks_band: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    # without each group of images: (groups, places, 2) `typical` and `largest`; (groups, d) `channels` at the peak, of
    # those that `top_channels` looks at
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 2)))
    channel_replicates: NDArray[np.floating] = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def peak(self) -> int:
        """The place with the most outliers, the largest norms deciding where there are none."""
        ratio = self.largest / np.maximum(self.typical, 1e-30)
        return int(np.lexsort((ratio, self.share))[-1])

    def top_channels(self, count: int = 5, place: int | None = None) -> list[tuple[int, float]]:
        """The channels that carry the outliers, or where there are none all patches, with their share of it."""
        row = self.channels[self._carriers(self.peak if place is None else place)]
        return [(int(i), float(row[i])) for i in np.argsort(row)[::-1][:count]]

    def _carriers(self, place: int) -> tuple[int, int]:
        """Where the channels stand that `top_channels` looks at: of the outliers, or of all others."""
        return place, 0 if np.isfinite(self.channels[place, 0]).all() else 1

    def channel_interval(self) -> Ends:
        """95 % interval over images of the largest share of one channel at the peak."""
        part = self.channels[self._carriers(self.peak)], self.channel_replicates.astype(np.float64)
        return over_groups(np.max, part, least=0.0, most=1.0)

    def norm_interval(self) -> Ends:
        """Of the largest ratio of largest and median norm."""
        left = self.replicates
        return over_groups(_norm_ratio, (self.typical, left[..., 0]), (self.largest, left[..., 1]), least=1.0)

    def summary(self) -> dict[str, float]:
        mass = dict(zip(self.groups, self.mass.T))
        place = {"place with the most outliers": float(self.peak)} if self.share.max() > 0 else {}
        return {
            "share of patches that are outliers, most": float(self.share.max()),
            **place,
            "largest norm over median norm, most": _norm_ratio(self.typical, self.largest),
            "attention on outlier patches, most": float(mass["outlier patches"].max()),
            "patches that are attention sinks, most": float(self.sinks.max()),
            "share of the largest channel": self.top_channels(1)[0][1],
        }

    def intervals(self) -> dict[str, Ends]:
        numbers, column = self.summary(), self.groups.index("outlier patches")
        halves = {
            "share of patches that are outliers, most": _at(self.norm_band, (int(self.share.argmax()), 2)),
            "attention on outlier patches, most": _at(self.mass_band, (int(self.mass[:, column].argmax()), column)),
            "patches that are attention sinks, most": _at(self.sinks_band, (int(self.sinks.argmax()),)),
        }
        shares = {name: ends(numbers[name], half, least=0.0) for name, half in halves.items()}
        norms, carried = self.norm_interval(), self.channel_interval()
        return known_ends(
            {**shares, "largest norm over median norm, most": norms, "share of the largest channel": carried}
        )


def _norm_ratio(typical: NDArray, largest: NDArray) -> float:
    return float((largest / np.maximum(typical, 1e-30)).max())


def _at(band: NDArray, at: tuple[int, ...]) -> float:
    """Half a width; NaN where a file of an older version holds none."""
    return float(band[at]) if all(i < size for i, size in zip(at, band.shape)) else np.nan


def outlier_tokens(
    model: Model,
    data: Data,
    *,
    register: str = "",
    times: float = TIMES,
    n: int | None = None,
    batch: int = 16,
    seed: int = 0,
) -> OutlierTokens:
    """Outlier patches at every place of a ViT's residual stream, and who receives attention in every block.

    A patch is an outlier if its norm is more than `times` the median of its image's patches, and more than 6 robust
    standard deviations of log norm above it. `register` adds a test-time register: see `register_switch`.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> found = sl.analysis.outlier_tokens(model, sl.dataset("scenes/shape", num=8, size=32))
    >>> found.mass.shape, found.groups
    ((6, 3), ('class token', 'outlier patches', 'other patches'))
    """
    s = observe(model)
    switch = check_request(s, times, register)
    images = ImageSource(data=data, batch=batch, n=n, seed=seed)
    groups = ImageGroups(images.total, seed)
    sums = TokenSums(s, times, groups=groups.count, registers=bool(register))
    with ExitStack() as stack:
        stack.enter_context(evaluation_mode(s))
        if switch:
            stack.enter_context(without(s, switch))
        taps = stack.enter_context(attention_probs(s, sums.attention))
        stack.enter_context(watching(residual_stream(s), sums.stream))
        said = stack.enter_context(noting_predictions(s))
        for made in images.batches([s], what="outlier tokens"):
            sums.member = torch.from_numpy(groups(made.index))
            s.model(made.images[0])
            sums.show(images.shown(made, s, 160) if sums.room else np.zeros((len(made), 0, 0, 3), np.uint8))
    how: dict[str, Any] = {"n": sums.images, "batch": batch, "seed": seed, "times": times, "spreads": SPREADS}
    how["proof"] = taps.proof
    how["predictions"] = said[:SHOWN]
    return _result(s, sums, register, how=how, about=images.about(s))


def check_request(s: ObservedModel, times: float, register: str) -> Switch | None:
    """The switch of the register, if one is asked for; refuses what cannot be looked at."""
    if not s.attention_blocks:
        raise ValueError(f"{s.name} has no attention; outlier tokens and attention sinks are a matter of ViTs.")
    if isinstance(times, bool) or not isinstance(times, int | float) or not times > 1:
        raise ValueError(f"times is how many times the median norm an outlier has, above 1; got {times!r}.")
    if not register:
        return None
    switch = Switch.parse(register, s)
    if switch.kind != "register":
        raise ValueError(
            f'register is a switch such as "register 5.12+5.80" (sl.analysis.register_switch); got {register!r}.'
        )
    return switch


def outliers(norms: Float[Tensor, "*b n"], times: float = TIMES) -> Bool[Tensor, "*b n"]:
    """Which patches of each image are outliers by their norm.

    >>> import torch
    >>> sl.analysis.outliers(torch.tensor([[1.0, 1.2, 0.9, 1.1, 30.0]])).tolist()
    [[False, False, False, False, True]]
    """
    logs = norms.double().clamp(min=torch.finfo(torch.float32).tiny).log()
    far = logs - logs.median(-1, keepdim=True).values
    spread = 1.4826 * far.abs().median(-1, keepdim=True).values
    return (far > np.log(times)) & (far > SPREADS * spread)


class TokenSums:
    """Sums over images, place by place and block by block."""

    def __init__(self, s: ObservedModel, times: float, *, groups: int, registers: bool):
        self.target, self.times, self.registers, self.images = s, times, registers, 0
        self.groups, self.member = groups, torch.zeros(0, dtype=torch.long)  # of the images of the current batch
        self.end = s.prefix + s.grid[0] * s.grid[1]
        self.total: dict[str, dict[int, Tensor]] = {}
        self.now: dict[int, Tensor] = {}  # outliers of this batch by place
        self.maps: dict[str, dict[int, list[Tensor]]] = {"norm": {}, "outlier": {}, "received": {}}
        self.shown: list[NDArray[np.uint8]] = []

    def add(self, name: str, at: int, value: Tensor) -> None:
        total = self.total.setdefault(name, {})
        total[at] = total.get(at, 0) + value.double().cpu()

    def each(self, name: str, at: int, value: Tensor) -> None:
        """Values of each image, (b, numbers): their sum, and that of their squares for the interval."""
        self.add(name, at, value.double().sum(0))
        self.add(f"{name}, squared", at, value.double().square().sum(0))

    def grouped(self, name: str, at: int, value: Tensor) -> None:
        """Values of each image, summed by group."""
        empty = torch.zeros(self.groups, *value.shape[1:], dtype=torch.float64)
        self.total.setdefault(name, {}).setdefault(at, empty).index_add_(0, self.member, value.double().cpu())

    def keep(self, name: str, at: int, value: Tensor) -> None:
        if room := self.room:
            self.maps[name].setdefault(at, []).append(value[:room].cpu())

    def stream(self, place: int, x: Tensor) -> None:
        """Norms, outliers and channels at one place."""
        x, p = x[:, : self.end], self.target.prefix
        squares = (x if x.dtype == torch.float64 else x.float()).square()
        norms = squares.sum(-1).sqrt()
        patches, found = norms[:, p:], outliers(norms[:, p:], self.times)
        self.now[place] = found
        three = [patches.median(1).values, patches.amax(1), found.to(norms).mean(1)]
        self.each("norms", place, torch.cat([torch.stack(three, 1), norms[:, :p]], 1))
        share = squares[:, p:] / squares[:, p:].sum(-1, keepdim=True).clamp(min=torch.finfo(squares.dtype).tiny)
        mask = found.to(share)
        all_, odd = share.sum(1), torch.einsum("bn,bnd->bd", mask, share)
        self.grouped("channels", place, torch.stack([odd, all_ - odd], 1))
        self.grouped("counts", place, torch.stack([mask.sum(1), (1 - mask).sum(1)], 1))
        self.grouped("sizes", place, torch.stack(three[:2], 1))
        self.grouped("members", place, torch.ones(len(x)))
        self.keep("norm", place, patches)
        self.keep("outlier", place, found)

    def attention(self, block: int, probs: Tensor) -> None:
        """Who receives attention in one block."""
        got = probs.mean((1, 2), dtype=torch.promote_types(probs.dtype, torch.float32))  # (b, keys)
        p, found = self.target.prefix, self.now[block].to(got)
        patches = got[:, p : self.end]
        groups = [*got[:, :p].T, (patches * found).sum(1), (patches * (1 - found)).sum(1)]
        groups += [got[:, -1]] if self.registers else []
        even = patches * got.shape[1]
        self.each("mass", block, torch.stack(groups, 1))
        self.each("sinks", block, (even > SINK).sum(1, keepdim=True))
        self.keep("received", block, even)

    @property
    def room(self) -> int:
        """How many more images are shown."""
        return max(0, SHOWN - sum(map(len, self.shown)))

    def show(self, images: NDArray[np.uint8]) -> None:
        """A batch is done."""
        self.images += len(images)
        if self.room:
            self.shown.append(images[: self.room])

    def mean(self, name: str) -> NDArray[np.float64]:
        """Over images, by place or block."""
        rows = self.total[name]
        return np.asarray(torch.stack([rows[i] for i in sorted(rows)]).numpy() / self.images, dtype=np.float64)

    def band(self, name: str) -> NDArray[np.float64]:
        """Half of the 95 % interval of the mean over images (Student's t)."""
        mean, n = self.mean(name), self.images
        if n < 2:
            return np.full(mean.shape, np.nan)
        variance = np.maximum(self.mean(f"{name}, squared") - mean**2, 0) * n / (n - 1)
        return np.asarray(t95(n - 1) * np.sqrt(variance / n))

    def by_group(self, name: str) -> NDArray[np.float64]:
        """(groups, places, ...)."""
        rows = self.total[name]
        return np.asarray(torch.stack([rows[i] for i in sorted(rows)], 1).numpy())

    def map(self, name: str) -> NDArray[Any]:
        rows = self.maps[name]
        return np.asarray(torch.stack([torch.cat(rows[i]) for i in sorted(rows)], 1).numpy())


def prefix_names(s: ObservedModel) -> list[str]:
    """What the tokens before the grid are called."""
    first = ["class token"] if s.prefix and s.class_token else []
    return first + [f"prefix token {i}" for i in range(len(first), s.prefix)]


def _result(s: ObservedModel, sums: TokenSums, register: str, *, how: dict[str, Any], about: About) -> OutlierTokens:
    norms = sums.mean("norms")
    carried, counts = sums.by_group("channels"), sums.by_group("counts")[..., None]
    sizes, members = sums.by_group("sizes"), sums.by_group("members")[..., None]
    with np.errstate(invalid="ignore", divide="ignore"):  # no outlier, without a group or at all
        channels = carried.sum(0) / counts.sum(0)
        less = (carried.sum(0) - carried) / (counts.sum(0) - counts)
        left = (sizes.sum(0) - sizes) / (members.sum(0) - members)
    groups = (*prefix_names(s), "outlier patches", "other patches", *(("register",) if register else ()))
    added = ", with a register added at test time" if register else ""
    found = OutlierTokens(
        title=f"Outlier tokens of {s.name}{added}",
        caption=f"Norms of the tokens after each block and the attention that each receives, over {sums.images:,} "
        f"images{added}. An outlier has more than {sums.times:g} times the median norm of its image's patches.",
        how=how,
        about=about,
        places=tuple(p.name for p in residual_stream(s)),
        typical=norms[:, 0],
        largest=norms[:, 1],
        share=norms[:, 2],
        prefix_norm=norms[:, 3:],
        channels=channels,
        groups=groups,
        mass=sums.mean("mass"),
        sinks=sums.mean("sinks")[:, 0],
        norm_band=sums.band("norms")[:, :3],
        mass_band=sums.band("mass"),
        sinks_band=sums.band("sinks")[:, 0],
        replicates=left,
        norm=sums.map("norm").astype(np.float32),
        outlier=sums.map("outlier"),
        received=sums.map("received").astype(np.float32),
        images=np.concatenate(sums.shown),
        grid=s.grid,
        register=register,
    )
    return replace(found, channel_replicates=less[:, *found._carriers(found.peak)].astype(np.float32))
