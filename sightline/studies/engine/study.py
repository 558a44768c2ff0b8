"""What a study is: what varies, what is fixed, what is measured, and which claims the numbers decide."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from sightline.studies.effects import Effect, over_seeds
from sightline.studies.engine.specs import Measurement
from sightline.studies.verdict import Verdict, over_training

MOST_SEEDS = 1000  # more is a seed that was taken for a number of seeds
Level = str | int | float
Cell = dict[str, Level]
Label = tuple[str, tuple[tuple[str, Level], ...]]  # name of the measurement, levels of the axes
Side = Literal["above", "below", "within"]


@dataclass(frozen=True)
class SeedNumbers:
    """All numbers of one training seed: `s("accuracy", family="ViT", images=1000)["accuracy"]`."""

    study: "Study"
    by_seed: Mapping[int, Mapping[Label, Mapping[str, Any]]]
    seed: int

    def __call__(self, name: str, **levels: Level) -> Mapping[str, Any]:
        """What a measurement found at these levels; those that are not given are the first of their axis."""
        cell = {axis: levels.get(axis, choices[0]) for axis, choices in self.study.axes.items()}
        if unknown := set(levels) - set(cell):
            raise ValueError(f"{self.study.name} has no axis {unknown.pop()!r}; it has {', '.join(cell)}.")
        found = self.by_seed.get(self.seed, {}).get((name, tuple(cell.items())))
        if found is None or "diverged" in found:
            raise MissingNumberError(f"{name} at {cell}")
        return found

    def accuracy(self, **levels: Level) -> float:
        """The most frequent question."""
        return float(self("accuracy", **levels)["accuracy"])

    def next(self) -> "SeedNumbers":
        """The numbers of the next seed (after the last comes the first): the same training once more, for nulls."""
        seeds = sorted(self.by_seed)
        return replace(self, seed=seeds[(seeds.index(self.seed) + 1) % len(seeds)])


class MissingNumberError(LookupError):
    """A number that a statistic needs was not measured, or its training diverged."""


Statistic = Callable[[SeedNumbers], float]


@dataclass(frozen=True, kw_only=True)
class Question:
    """One effect: a number per training seed, and where its interval must lie."""

    what: str
    of: Statistic
    side: Side = "above"
    bound: float = 0.0
    margin: float = 0.0
    step: float = 0.0  # the smallest difference that the statistic can show
    noise: bool = False  # a null: a number of this seed minus that of the next

    def effect(self, seeds: Sequence[SeedNumbers]) -> Effect:
        """The effect over the seeds that have the numbers."""
        values = [value_of(self.of, s) for s in seeds]
        values = seed_noise(values) if self.noise else values
        place = {"bound": self.bound, "side": self.side, "margin": self.margin}
        return over_seeds(self.what, values, step=self.step, **place)


def seed_noise(steps: Sequence[float]) -> list[float]:
    """What seeds alone do to a number, from its differences between each seed and the next.

    Around the circle of seeds these sum to 0, so their mean can never differ from it: a null that cannot fail. Their
    running sum is each seed's deviation from the mean; with every second sign changed, its mean can be anything.
    """
    height, heights = 0.0, []
    for step in steps:
        heights.append(height)
        height -= step
    middle = sum(heights) / max(1, len(heights))
    return [(h - middle) * (-1) ** i for i, h in enumerate(heights)]


def seed_null(what: str, of: Statistic, *, side: Side = "above", step: float = 0.0) -> Question:
    """The null of a difference: a number of one training against that of the same training with another seed."""
    return Question(
        what=f"{what}, minus another seed", of=lambda s: of(s) - of(s.next()), side=side, step=step, noise=True
    )


def value_of(statistic: Statistic, s: SeedNumbers) -> float:
    """A statistic of one seed; NaN where a number is missing."""
    try:
        return float(statistic(s))
    except MissingNumberError:
        return math.nan


@dataclass(frozen=True, kw_only=True)
class Decides:
    """One claim of a paper: its statement, the paper's number, and the questions whose answers decide it.

    `null` asks the same of models for which the answer must not be yes, `control` of models for which it must be.
    """

    claim: str
    source: str
    statement: str
    paper: str = ""  # the paper's number
    questions: tuple[Question, ...] = ()
    null: Question | None = None
    control: Question | None = None
    from_verdicts: str = ""  # the measurement whose verdicts on each seed's models are pooled
    beside: str = ""  # another such measurement, of models for which the claim is not made: the untrained twins

    def verdict(self, seeds: Sequence[SeedNumbers]) -> Verdict:
        """What the numbers say."""
        if self.from_verdicts:
            return pooled(self, seeds)
        effects = tuple(q.effect(seeds) for q in self.questions)
        return Verdict(claim=self.claim, source=self.source, statement=self.statement, models=(), effects=effects)


def pooled(d: Decides, seeds: Sequence[SeedNumbers]) -> Verdict:
    """The verdict over training seeds, from the verdict on each seed's own models."""
    by_seed = {}
    for s in seeds:
        try:
            rows = s(d.from_verdicts)["verdicts"]
        except MissingNumberError:
            continue
        for row in rows:
            if row["claim"] == d.claim:
                effects = tuple(map(effect_of, row["effects"]))
                by_seed[s.seed] = Verdict(
                    claim=d.claim, source=d.source, statement=d.statement, models=tuple(map(str, row["models"])),
                    effects=effects, note=str(row["note"]),
                )  # fmt: skip
                break
    if not by_seed:
        return Verdict(claim=d.claim, source=d.source, statement=d.statement, models=(), effects=())
    return over_training(by_seed)


def effect_of(plain: Mapping[str, Any]) -> Effect:
    """An effect from plain values, which may come from elsewhere."""
    kinds = {"what": str, "over": str, "side": str, "n": int}
    kinds |= dict.fromkeys(("value", "low", "high", "bound", "margin", "p"), float)
    if plain.get("side", "above") not in get_args(Side):
        raise ValueError("an effect lies above, below or within")
    return Effect(**{k: kind(plain[k]) for k, kind in kinds.items() if k in plain})


@dataclass(frozen=True, kw_only=True)
class Study:
    """An experiment of a paper: what varies, what stays fixed, what is measured, and which claims that decides.

    `measure(**cell, seed)` yields a name and a measurement for one cell of the grid; a cell for which it yields nothing
    is not part of the study. What must be trained follows from what is measured.

    >>> study = sl.studies.get_study("data")
    >>> list(study.axes), [d.claim for d in study.decides][:2]
    (['family', 'images'], ['V1', 'V2'])
    """

    name: str
    question: str
    source: str
    axes: Mapping[str, tuple[Level, ...]]
    fixed: Mapping[str, str]
    measure: Callable[..., Iterator[tuple[str, Measurement]]]
    decides: tuple[Decides, ...]
    seeds: int = 5
    scale: str = ""  # one line for the atlas: models, images, steps
    notes: tuple[str, ...] = field(default=())

    def cells(self, only: Mapping[str, Sequence[str]] | None = None) -> list[Cell]:
        """The cells of the grid, those alone whose levels `only` names."""
        chosen = dict(self.axes)
        for axis, wanted in (only or {}).items():
            if axis not in chosen:
                raise ValueError(f"{self.name} has no axis {axis!r}; it varies {', '.join(self.axes)}.")
            levels = tuple(level for level in chosen[axis] if str(level) in wanted)
            if unknown := [w for w in wanted if w not in map(str, chosen[axis])]:
                known = ", ".join(map(str, chosen[axis]))
                raise ValueError(f"{self.name} has no {axis} {unknown[0]!r}; there is {known}.")
            chosen[axis] = levels
        return [dict(zip(chosen, levels)) for levels in itertools.product(*chosen.values())]

    def plan(
        self, seeds: Sequence[int], *, only: Mapping[str, Sequence[str]] | None = None, smoke: bool = False
    ) -> dict[int, dict[Label, Measurement]]:
        """Every measurement of the grid, by seed and label."""
        plan: dict[int, dict[Label, Measurement]] = {}
        for seed in seeds:
            rows = plan.setdefault(seed, {})
            for cell in self.cells(only):
                for name, m in self.measure(**cell, seed=seed):
                    rows[name, tuple(cell.items())] = m.smoke() if smoke else m
        return plan

    def verdicts(self, numbers: Mapping[int, Mapping[Label, Mapping[str, Any]]]) -> list[Verdict]:
        """What the numbers of all seeds say of each claim."""
        seeds = [SeedNumbers(self, numbers, seed) for seed in sorted(numbers)]
        return [d.verdict(seeds) for d in self.decides]


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Seeds as numbers, each once: the same training twice is one training."""
    if isinstance(seeds, int) and seeds > MOST_SEEDS:
        raise ValueError(f"seeds is how many trainings, at most {MOST_SEEDS:,}, or a list of them; got {seeds}.")
    given = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not given or not all(isinstance(s, int) and s >= 0 for s in given):
        raise ValueError(f"seeds is a number above 0, or a list of whole numbers such as 0,1,2; got {seeds!r}.")
    if len(set(given)) < len(given):
        twice = next(s for s in given if given.count(s) > 1)
        raise ValueError(f"seed {twice} is given twice: a training that is counted twice would narrow the interval.")
    return given
