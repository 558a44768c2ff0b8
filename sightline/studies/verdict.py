"""Effects with intervals, each on one side of a bound or on neither, and the verdict that follows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sightline.evals.interval import half_width, wilson
from sightline.spec import Displayable, ModelId, legible

State = Literal["holds", "does not hold", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One measured quantity, its 95 % interval, and the bound it must lie above (or below) for the claim.

    `over` says what the interval is over: images, repeats, heads, blocks, tokens, draws; "exact" where nothing was
    drawn, because the quantity is read from the weights.

    >>> sl.studies.Effect(what="gain", value=0.3, low=0.1, high=0.5).state
    'holds'
    >>> sl.studies.Effect(what="gain", value=0.3, low=-0.1, high=0.7).state
    'undecided'
    """

    what: str
    value: float
    low: float
    high: float
    bound: float = 0.0
    side: Literal["above", "below"] = "above"
    over: str = "images"

    @property
    def state(self) -> State:
        """Holds if the whole interval is on the right side, does not hold if it is on the other, else undecided."""
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return "undecided"
        if self.side == "above":
            return "holds" if self.low > self.bound else "does not hold" if self.high < self.bound else "undecided"
        return "holds" if self.high < self.bound else "does not hold" if self.low > self.bound else "undecided"

    def text(self) -> str:
        """One line: what, value, interval, bound."""
        if self.over == "exact":
            found = f"{self.value:.3g} (read from the weights)"
        elif math.isfinite(self.low) and math.isfinite(self.high):
            found = f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}] over {self.over}"
        else:
            found = f"{self.value:.3g}, no interval"
        return f"{self.what}: {legible(found)}; required: {self.side} {self.bound:.3g}"


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """What results say about a claim, for some models on some images."""

    models: tuple[ModelId, ...]
    effects: tuple[Effect, ...]
    seeds: int = 1  # trained models, or draws of training images, behind each effect
    note: str = ""
    images: str = ""  # fingerprint; empty where unknown


@dataclass(frozen=True, kw_only=True)
class Verdict(Displayable):
    """What saved results say about one claim of a paper, for these models.

    >>> e = sl.studies.Effect(what="gain", value=0.3, low=0.1, high=0.5)
    >>> sl.studies.Verdict(claim="V0", source="nowhere", statement="It gains.", models=("a",), effects=(e,),
    ...     seeds=1).state
    'holds'
    """

    claim: str
    source: str  # the figure or table of the paper
    statement: str  # the paper's claim in our words
    models: tuple[str, ...]
    effects: tuple[Effect, ...]
    seeds: int  # trained models, or draws of training images, behind each effect
    needs: int = 1  # so many are needed to decide
    note: str = ""
    fingerprints: tuple[str, ...] = ()  # of the models; empty where unknown
    images: str = ""  # fingerprint; empty where unknown

    @property
    def state(self) -> State:
        """All effects must hold; one that does not is enough to refute; too few seeds leave it undecided."""
        states = [e.state for e in self.effects]
        if self.seeds < self.needs or not states:
            return "undecided"
        if "does not hold" in states:
            return "does not hold"
        return "holds" if all(s == "holds" for s in states) else "undecided"

    def why(self) -> str:
        """Why it is undecided, or what failed; empty for a claim that holds."""
        if not self.effects:
            return self.note
        if self.seeds < self.needs:
            return f"{self.needs} seeds are needed, there {'is' if self.seeds == 1 else 'are'} {self.seeds}"
        failed = [e.what for e in self.effects if e.state == "does not hold"]
        open_ = [e.what for e in self.effects if e.state == "undecided"]
        if failed:
            return "fails: " + "; ".join(failed)
        return "the interval includes the bound or is unknown: " + "; ".join(open_) if open_ else ""

    def plain(self) -> dict[str, Any]:
        """All of it as plain values, for `to_json`."""
        rows = [{**vars(e), "state": e.state} for e in self.effects]
        return {**vars(self), "state": self.state, "why": self.why(), "effects": rows}


def around(what: str, value: float, half: float, over: str, **more: Any) -> Effect:
    """An effect with a symmetric interval."""
    return Effect(what=what, value=float(value), low=float(value - half), high=float(value + half), over=over, **more)


def exact(what: str, value: float, **more: Any) -> Effect:
    """An effect that nothing random went into."""
    return Effect(what=what, value=float(value), low=float(value), high=float(value), over="exact", **more)


def mean_of(what: str, values: Sequence[float] | NDArray, over: str, **more: Any) -> Effect:
    """The mean of values and its 95 % interval (Student's t)."""
    x = np.asarray(values, dtype=np.float64).ravel()
    x = x[np.isfinite(x)]
    if not len(x):
        return Effect(what=what, value=math.nan, low=math.nan, high=math.nan, over=over, **more)
    return around(what, float(x.mean()), float(half_width(x)), over, **more)


def share_of(what: str, hits: NDArray, over: str, **more: Any) -> Effect:
    """A share of yes and no, and Wilson's interval."""
    x = np.asarray(hits, dtype=bool).ravel()
    low, high = wilson(int(x.sum()), len(x))
    return Effect(what=what, value=float(x.mean()) if len(x) else math.nan, low=low, high=high, over=over, **more)


def share_difference(what: str, a: Effect, b: Effect, **more: Any) -> Effect:
    """One share minus another, by Newcombe's interval."""
    value = a.value - b.value
    down = math.hypot(a.value - a.low, b.high - b.value)
    up = math.hypot(a.high - a.value, b.value - b.low)
    return Effect(what=what, value=value, low=value - down, high=value + up, over=a.over, **more)
