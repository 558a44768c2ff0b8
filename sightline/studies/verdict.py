"""What effects say of a claim: the verdict on these models, and on models trained so."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sightline.spec import Displayable, ModelId
from sightline.studies.effects import SEEDS, Effect, State, holm, over_seeds, t_effect

About = Literal["these models", "models trained so"]


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """What results say about a claim, for some models on some images."""

    models: tuple[ModelId, ...]
    effects: tuple[Effect, ...]
    note: str = ""
    images: str = ""  # fingerprint; empty where unknown
    ways: dict[str, State] = field(default_factory=dict)  # what each way to look at similarity says


@dataclass(frozen=True, kw_only=True)
class Verdict(Displayable):
    """What saved results say about one claim of a paper.

    >>> e = sl.studies.Effect(what="gain", value=0.3, low=0.1, high=0.5)
    >>> v = sl.studies.Verdict(claim="V0", source="nowhere", statement="It gains.", models=("a",), effects=(e,))
    >>> v.state, v.about
    ('holds', 'these models')
    """

    claim: str
    source: str  # the figure or table of the paper
    statement: str  # the paper's claim in our words
    models: tuple[str, ...]
    effects: tuple[Effect, ...]
    note: str = ""
    fingerprints: tuple[str, ...] = ()  # of the models; empty where unknown
    images: str = ""  # fingerprint; empty where unknown
    ways: dict[str, State] = field(default_factory=dict)  # of a claim about CKA: what each way to look at it says

    @property
    def about(self) -> About:
        """What is judged: the networks that were measured, or the way they were trained, which takes several seeds."""
        trained = bool(self.effects) and all(e.over == SEEDS for e in self.effects)
        return "models trained so" if trained else "these models"

    @property
    def seeds(self) -> int:
        """Training seeds behind each effect; 1 for given networks."""
        return min(e.n for e in self.effects) if self.about == "models trained so" else 1

    @property
    def state(self) -> State:
        """All effects must hold; one that does not is enough to refute."""
        states = [e.state for e in self.effects]
        if not states:
            return "undecided"
        if "does not hold" in states:
            return "does not hold"
        return "holds" if all(s == "holds" for s in states) else "undecided"

    @property
    def p(self) -> float:
        """Of the weakest effect; of a claim that does not hold, of the strongest refutation times the number of effects
        that could have refuted it. NaN where there is no interval or nothing was drawn."""
        known = [e for e in self.effects if math.isfinite(e.p)]
        failed = [e.p for e in known if e.state == "does not hold"]
        if self.state == "does not hold":
            return min(1.0, min(failed) * len(self.effects)) if failed else math.nan
        return max((e.p for e in known), default=math.nan)

    def why(self) -> str:
        """Why it is undecided, or what failed; empty for a claim that holds."""
        if not self.effects:
            return self.note
        failed = [e.what for e in self.effects if e.state == "does not hold"]
        if failed:
            return "fails: " + "; ".join(failed)
        unknown = [e.what for e in self.effects if e.state == "undecided" and not math.isfinite(e.low)]
        wide = [e.what for e in self.effects if e.state == "undecided" and math.isfinite(e.low)]
        said = [f"there is no interval: {'; '.join(unknown)}"] if unknown else []
        return ". ".join([*said, f"the interval includes the bound: {'; '.join(wide)}"] if wide else said)

    def survives(self) -> str:
        """Which ways to look at similarity give the same answer; empty where there is one way only."""
        if len(self.ways) < 2:
            return ""
        same = [way for way, state in self.ways.items() if state == self.state]
        other = [f"{way} ({state})" for way, state in self.ways.items() if state != self.state]
        word = "undecided as well" if self.state == "undecided" else "survives"
        return f"{word}: {', '.join(same)}" + (f"; not: {', '.join(other)}" if other else "")

    def plain(self) -> dict[str, Any]:
        """All of it as plain values, for `to_json`."""
        rows = [{**vars(e), "state": e.state} for e in self.effects]
        more = {"state": self.state, "about": self.about, "seeds": self.seeds, "p": self.p, "why": self.why()}
        return {**vars(self), **more, "effects": rows}


def over_training(by_seed: Mapping[Any, Verdict]) -> Verdict:
    """One verdict about models trained so, from the verdict on each seed's models: every effect over the seeds.

    The intervals over images of the single verdicts play no part: image noise is inside the spread over seeds.

    >>> def of(gain):
    ...     e = sl.studies.Effect(what="gain", value=gain, low=gain - 1, high=gain + 1)
    ...     return sl.studies.Verdict(claim="V0", source="", statement="It gains.", models=("a",), effects=(e,))
    >>> v = sl.studies.over_training({0: of(0.3), 1: of(0.31), 2: of(0.29)})
    >>> v.state, v.about, v.seeds
    ('holds', 'models trained so', 3)
    """
    given = list(by_seed.values())
    if not given or len({v.claim for v in given}) != 1:
        raise ValueError("Verdicts on one claim are expected, one for each training seed.")
    effects = []
    for like in given[0].effects:
        values = [e.value for v in given for e in v.effects if e.what == like.what]
        effects.append(over_seeds(like.what, values, bound=like.bound, side=like.side, margin=like.margin))
    return replace(given[0], effects=tuple(effects), fingerprints=(), images="", ways={})


def surviving(verdicts: Sequence[Verdict]) -> list[bool]:
    """Which of many verdicts survive Holm's correction. The undecided ones count, those without an interval do not.

    >>> e = sl.studies.over_seeds("gain", [0.30, 0.31, 0.29, 0.30])
    >>> v = sl.studies.Verdict(claim="V0", source="", statement="It gains.", models=("a",), effects=(e,))
    >>> sl.studies.surviving([v, v])
    [True, True]
    """
    return [same and v.state != "undecided" for same, v in zip(holm([v.p for v in verdicts]), verdicts)]


def exact(what: str, value: float, **more: Any) -> Effect:
    """An effect that nothing random went into."""
    return Effect(what=what, value=float(value), low=float(value), high=float(value), over="exact", **more)


def mean_of(what: str, values: Sequence[float] | NDArray, over: str, **more: Any) -> Effect:
    """The mean of independent values and its 95 % interval (Student's t)."""
    x = np.asarray(values, dtype=np.float64).ravel()
    x = x[np.isfinite(x)]
    if len(x) < 2:
        value = float(x.mean()) if len(x) else math.nan
        return Effect(what=what, value=value, low=math.nan, high=math.nan, over=over, n=len(x), **more)
    error = float(x.std(ddof=1)) / len(x) ** 0.5
    return t_effect(what, float(x.mean()), error, len(x) - 1, over=over, n=len(x), **more)
