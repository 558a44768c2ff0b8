"""Effects with intervals over training seeds or over images, and what many claims at once allow to be said."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sightline.evals.interval import FEWEST_GROUPS, Part, error_over_groups, t95
from sightline.spec import legible

State = Literal["holds", "does not hold", "undecided"]
SEEDS, IMAGES = "training seeds", "images"
FEWEST_SEEDS = 3  # below, the interval of a t with one degree of freedom is 12.7 standard errors wide: it says nothing
LEVEL = 0.05  # of all tests; intervals are of 1 - LEVEL


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One measured quantity, its 95 % interval, and where it must lie for the claim.

    `side`: "above" or "below" the bound, or "within" the margin around it (equal means equivalent, never "not
    significantly different"). `over` says what the interval is over: training seeds, images, episodes; "exact" where
    nothing was drawn, because the quantity is read from the weights.

    >>> sl.studies.Effect(what="gain", value=0.3, low=0.1, high=0.5).state
    'holds'
    >>> sl.studies.Effect(what="gain", value=0.3, low=-0.1, high=0.7).state
    'undecided'
    >>> sl.studies.Effect(what="gap", value=0.0, low=-0.01, high=0.01, side="within", margin=0.03).state
    'holds'
    """

    what: str
    value: float
    low: float
    high: float
    bound: float = 0.0
    side: Literal["above", "below", "within"] = "above"
    margin: float = 0.0  # of "within"
    over: str = IMAGES
    n: int = 0  # how many of them; 0 where unknown
    p: float = math.nan  # two-sided, of the value lying on the bound (within: on the nearer edge of the margin)

    @property
    def state(self) -> State:
        """Holds if the whole interval is where it must be, does not hold if it is wholly elsewhere, else undecided."""
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return "undecided"
        inside, outside = self._allowed()
        return "holds" if inside else "does not hold" if outside else "undecided"

    def _allowed(self) -> tuple[bool, bool]:
        """Whether the whole interval lies where it must, and whether all of it lies elsewhere."""
        if self.side == "above":
            return self.low > self.bound, self.high < self.bound
        if self.side == "below":
            return self.high < self.bound, self.low > self.bound
        down, up = self.bound - self.margin, self.bound + self.margin
        return down < self.low and self.high < up, self.low > up or self.high < down

    def text(self) -> str:
        """One line: what, value, interval, bound."""
        if self.over == "exact":
            found = f"{self.value:.3g} (read from the weights)"
        elif math.isfinite(self.low) and math.isfinite(self.high):
            many = f"{self.n:,} " if self.n else ""
            found = f"{effect_text(vars(self))} over {many}{self.over}"
        else:
            found = f"{self.value:.3g}, no interval" if math.isfinite(self.value) else "not measured"
        return f"{self.what}: {legible(found)}; required: {requirement(vars(self))}"


def over_seeds(what: str, values: Sequence[float] | NDArray, *, step: float = 0.0, **place: Any) -> Effect:
    """The effect of training so: one value per training seed (a paired difference, where levels are compared).

    Student's t over seeds; fewer than three finite values give no interval, and so does the same value for every seed,
    unless `step` says what the smallest difference is that the statistic can show (one test image, one learning rate):
    then the spread is at least that of rounding to it. `place`: bound, side, margin.

    >>> sl.studies.over_seeds("accuracy, ViT minus BiT", [0.04, 0.05, 0.03, 0.045, 0.038]).state
    'holds'
    >>> sl.studies.over_seeds("accuracy, ViT minus BiT", [0.04, 0.05]).state
    'undecided'
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    x = x[np.isfinite(x)]
    if len(x) < FEWEST_SEEDS:
        value = float(x.mean()) if len(x) else math.nan
        return Effect(what=what, value=value, low=math.nan, high=math.nan, over=SEEDS, n=len(x), **place)
    spread = max(float(x.std(ddof=1)), step / 12**0.5)
    return t_effect(what, float(x.mean()), spread / len(x) ** 0.5, len(x) - 1, over=SEEDS, n=len(x), **place)


def paired(first: Mapping[Any, float], second: Mapping[Any, float]) -> NDArray[np.float64]:
    """First minus second for each training seed that both have, in the order of the seeds.

    >>> sl.studies.paired({0: 0.9, 1: 0.8}, {1: 0.7, 0: 0.6, 2: 0.5}).round(3).tolist()
    [0.3, 0.1]
    """
    return np.array([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())], dtype=np.float64)


def known_mean(x: NDArray) -> float:
    """Of the values that are numbers; NaN where there is none."""
    known = x[np.isfinite(x)]
    return float(known.mean()) if known.size else math.nan


def left_out(replicates: NDArray, *index: Any) -> NDArray:
    """A part of a result without each group of images; nothing where a result of an older version kept no groups."""
    return replicates[(slice(None), *index)] if len(replicates) else np.zeros(0)


def over_images(what: str, statistic: Callable[..., float], *parts: Part, step: float = 0.0, **place: Any) -> Effect:
    """The effect in these networks: the statistic of all images, and its error over groups of images.

    The whole statistic is computed again with every group's share moved up or down, so that minima, ranks and ratios
    have their own error, and what two models have in common on the same images cancels. `step` is the smallest
    difference that the statistic can show (one swap of ranks, one head of all): no error is smaller. One image, and
    results of versions that kept no groups, give no interval. `place`: bound, side, margin.

    >>> import numpy as np
    >>> images = np.random.default_rng(0).normal(1, 0.5, 20)
    >>> left = (images.sum() - images) / 19
    >>> sl.studies.over_images("mean", float, (images.mean(), left)).state
    'holds'
    """
    value = float(statistic(*(whole for whole, _ in parts)))
    error, freedom = error_over_groups(statistic, *parts, step=step)
    return t_effect(what, value, error, freedom, **place)


def against_nulls(what: str, value: float, nulls: NDArray, over: str, **place: Any) -> Effect:
    """A value read from the weights minus the mean of that of random tables or filters; the interval is how far one
    more of these would lie from their mean."""
    if len(nulls) < FEWEST_GROUPS:
        return Effect(what=what, value=math.nan, low=math.nan, high=math.nan, over=over, **place)
    error = float(nulls.std(ddof=1)) * (1 + 1 / len(nulls)) ** 0.5
    return t_effect(what, value - float(nulls.mean()), error, len(nulls) - 1, over=over, n=len(nulls), **place)


def missing(what: str, **place: Any) -> Effect:
    """A part of a claim that nothing was measured for: without it the claim can fail, and cannot hold."""
    return Effect(what=what, value=math.nan, low=math.nan, high=math.nan, **place)


def t_effect(what: str, value: float, error: float, freedom: int, **more: Any) -> Effect:
    """A value with its standard error as an effect, by Student's t; no error, or one of 0, gives no interval."""
    half = t95(freedom) * error if error > 0 else math.nan  # NaN is not above 0 either
    found = Effect(what=what, value=value, low=value - half, high=value + half, **more)
    if not math.isfinite(half):
        return found
    return replace(found, p=t_tail(_away(found) / error, freedom))


def _away(e: Effect) -> float:
    """How far the value is from what would change the answer."""
    gap = abs(e.value - e.bound)
    return abs(gap - e.margin) if e.side == "within" else gap


def t_tail(t: float, freedom: int) -> float:
    """Two-sided p of Student's t for whole degrees of freedom, by the finite sums (Abramowitz & Stegun, 26.7.3-4).

    >>> round(t_tail(4.303, 2), 3)
    0.05
    """
    angle = math.atan2(abs(t), math.sqrt(freedom))
    cos, sin = math.cos(angle), math.sin(angle)
    start, term = (1, cos) if freedom % 2 else (0, 1.0)
    total = 0.0 if freedom == 1 else term
    for i in range(start + 2, freedom - 1, 2):
        term *= cos * cos * (i - 1) / i
        total += term
    inside = 2 / math.pi * (angle + sin * total) if freedom % 2 else sin * total
    return min(1.0, max(0.0, 1 - inside))


def holm(ps: Sequence[float], *, level: float = LEVEL) -> list[bool]:
    """Which of many decisions survive Holm's correction: with it, one wrong one among all has a chance of `level`.

    NaN, a claim that was not judged, neither counts nor survives.

    >>> sl.studies.holm([0.001, 0.04, 0.012, float("nan")])
    [True, True, True, False]
    >>> sl.studies.holm([0.001, 0.04, 0.03])
    [True, False, False]
    """
    judged = sorted((i for i, p in enumerate(ps) if not math.isnan(p)), key=lambda i: ps[i])
    survives = [False] * len(ps)
    for rank, i in enumerate(judged):
        if ps[i] > level / (len(judged) - rank):
            break
        survives[i] = True
    return survives


def decisive_effect(effects: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The effect that a verdict rests on, of those in `Verdict.plain()`: a refuted one, else an undecided one, else the
    one nearest to its bound.

    >>> def effect(value):
    ...     e = sl.studies.Effect(what="gain", value=value, low=value - 0.1, high=value + 0.1)
    ...     return {**vars(e), "state": e.state}
    >>> sl.studies.decisive_effect([effect(0.9), effect(0.3), effect(-0.5)])["value"]
    -0.5
    """
    order = ("does not hold", "undecided", "holds")
    return min(effects, key=lambda e: (order.index(e["state"]), distance_to_bound(e)), default=None)


def distance_to_bound(effect: Mapping[str, Any]) -> float:
    """How far an effect is on the claimed side of its bound, in half widths of its interval; NaN without one."""
    half = (effect["high"] - effect["low"]) / 2
    gap = effect["value"] - effect["bound"]
    inside = {"above": gap, "below": -gap}.get(effect["side"], effect["margin"] - abs(gap))
    return float(inside / half) if math.isfinite(half) and half > 0 else math.nan


def effect_text(effect: Mapping[str, Any] | None) -> str:
    """Value and interval for people to read, with as many digits as the interval carries.

    >>> sl.studies.effect_text({"value": 0.02113, "low": 0.0008, "high": 0.0415})
    '0.021 [0.001 to 0.042]'
    >>> sl.studies.effect_text({"value": 0.25, "low": float("nan"), "high": float("nan")})
    '0.25, no interval'
    >>> sl.studies.effect_text(None)
    'not measured'
    """
    if effect is None or math.isnan(effect["value"]):
        return "not measured"
    ends = (effect["low"], effect["high"])
    if any(map(math.isnan, ends)):
        return legible(f"{effect['value']:.3g}, no interval")
    digits = _decimals(*ends, effect.get("bound", 0.0))
    return legible(f"{effect['value']:z.{digits}f} [{ends[0]:z.{digits}f} to {ends[1]:z.{digits}f}]")


def requirement(effect: Mapping[str, Any]) -> str:
    """Where the interval of an effect must lie, in words.

    >>> requirement({"side": "above", "bound": 1 / 3, "margin": 0.0})
    'above 0.333'
    >>> requirement({"side": "within", "bound": 0.5, "margin": 0.25})
    'between 0.25 and 0.75'
    """
    bound, margin = effect["bound"], effect["margin"]
    if effect["side"] == "within":
        return legible(f"between {bound - margin:.3g} and {bound + margin:.3g}")
    return legible(f"{effect['side']} {bound:.3g}")


def _decimals(low: float, high: float, bound: float) -> int:
    """Two digits of half the interval; more where an end would read as the bound that it is not."""
    half = (high - low) / 2
    digits = 1 - math.floor(math.log10(half)) if math.isfinite(half) and half > 0 else 3
    digits = min(max(digits, 0), 6)
    while digits < 6 and any(end != bound and round(end, digits) == bound for end in (low, high)):
        digits += 1
    return digits
