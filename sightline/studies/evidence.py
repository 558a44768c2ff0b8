"""Saved results sorted by the models they are about."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from sightline.spec import Result

R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Model:
    """One model and everything that is known of it alone."""

    name: str
    kind: str  # vit, hybrid, cnn, or "" where the results do not say
    pool: str  # cls, gap, map
    results: list[Result] = field(default_factory=list)

    def get(self, kind: type[R], **how: object) -> R | None:
        """The last result of a type, computed in a certain way; later results replace earlier ones."""
        found = [r for r in self.results if isinstance(r, kind)]
        found = [r for r in found if all(r.how.get(k, getattr(r, k, None)) == v for k, v in how.items())]
        return found[-1] if found else None


@dataclass(frozen=True)
class Evidence:
    """All results: by model, about two models, and those that do not say of which model they are."""

    models: tuple[Model, ...]
    pairs: tuple[tuple[Model, Model, Result], ...]
    every: tuple[Result, ...]

    def of(self, *kinds: str, pool: str | None = None) -> list[Model]:
        """The models of some kinds."""
        return [m for m in self.models if m.kind in kinds and (pool is None or m.pool == pool)]

    def couples(self, first: str, second: str) -> Iterator[tuple[Model, Model]]:
        """Every two models of two kinds."""
        for a in self.of(first):
            for b in self.of(second):
                yield a, b

    def between(self, kind: type[R]) -> Iterator[tuple[Model, Model, R]]:
        """Results about two models."""
        for a, b, r in self.pairs:
            if isinstance(r, kind):
                yield a, b, r

    def all(self, kind: type[R]) -> list[R]:
        """Every result of a type."""
        return [r for r in self.every if isinstance(r, kind)]


def gather(results: Iterable[Result]) -> Evidence:
    """Sort results by the models they are about; others belong to no known model."""
    every = tuple(results)
    models: dict[str, Model] = {}
    pairs = []
    for r in every:
        about = [models.setdefault(m.fingerprint or m.name, Model(m.name, m.kind, m.pool)) for m in r.about.models]
        if len(about) == 1:
            about[0].results.append(r)
        elif len(about) == 2:
            pairs.append((about[0], about[1], r))
    return Evidence(tuple(models.values()), tuple(pairs), every)
