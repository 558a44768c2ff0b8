"""Saved results sorted by the models and the images they are about."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_lowercase
from typing import Any, TypeVar

from sightline.spec import ModelId, Result
from sightline.studies.verdict import Assessment

R = TypeVar("R", bound=Result)
Where = Callable[[Any], bool]
OTHER_IMAGES = "not compared: the two were measured on different images"


def anything(r: Result) -> bool:
    """Every result of a type."""
    return True


def key(m: ModelId) -> str:
    """What tells models apart: the fingerprint; the name only where the fingerprint is unknown."""
    return m.fingerprint or f"name {m.name}"


@dataclass(frozen=True)
class Model:
    """One model and every result about it alone."""

    id: ModelId
    results: list[Result] = field(default_factory=list)

    def each(self, kind: type[R], where: Where = anything) -> dict[str, R]:
        """The last result of a type on each set of images, by the images' fingerprint."""
        return {r.about.images: r for r in self.results if isinstance(r, kind) and where(r)}

    def last(self, kind: type[R], where: Where = anything) -> R | None:
        """The last result of a type, on any images."""
        return next(reversed(self.each(kind, where).values()), None)


@dataclass(frozen=True)
class Evidence:
    """All results: by model, about two models, and those that do not say which model they are about."""

    models: tuple[Model, ...]
    pairs: tuple[tuple[Model, Model, Result], ...]
    every: tuple[Result, ...]

    def of(self, *kinds: str, pool: str | None = None) -> list[Model]:
        """The models of some kinds."""
        return [m for m in self.models if m.id.kind in kinds and (pool is None or m.id.pool == pool)]

    def each(self, models: list[Model], kind: type[R], where: Where = anything) -> Iterator[tuple[Model, R]]:
        """The results of a type about single models, one for each model and set of images."""
        for m in models:
            for r in m.each(kind, where).values():
                yield m, r

    def compare(
        self,
        pairs: Iterable[tuple[Model, Model]],
        kind: type[R],
        judge: Callable[[Model, Model, R, R], Assessment | None],
        *,
        where: Where = anything,
    ) -> Iterator[Assessment]:
        """Judge pairs of models by results on the same images. Where both have results, but on different images, the
        assessment says so and decides nothing; it is left out where other pairs can be compared."""
        apart: list[Assessment] = []
        compared = False
        for a, b in pairs:
            first, second = a.each(kind, where), b.each(kind, where)
            shared = [images for images in first if images in second]
            compared = compared or bool(shared)
            for images in shared:
                found = judge(a, b, first[images], second[images])
                if found is not None:
                    yield replace(found, images=images)
            if first and second and not shared:
                apart.append(Assessment(models=(a.id, b.id), effects=(), note=OTHER_IMAGES))
        yield from () if compared else apart

    def between(self, kind: type[R]) -> Iterator[tuple[Model, Model, R]]:
        """Results about two models."""
        for a, b, r in self.pairs:
            if isinstance(r, kind):
                yield a, b, r

    def all(self, kind: type[R]) -> list[R]:
        """Every result of a type."""
        return [r for r in self.every if isinstance(r, kind)]


def couples(first: list[Model], second: list[Model]) -> Iterator[tuple[Model, Model]]:
    """Every model of the one list with every model of the other."""
    for a in first:
        for b in second:
            yield a, b


def gather(results: Iterable[Result]) -> Evidence:
    """Sort results by the models they are about. Models are told apart by fingerprint, never merged by name."""
    every = tuple(tell_apart(list(results)))
    models: dict[str, Model] = {}
    pairs = []
    for r in every:
        about = [models.setdefault(key(m), Model(m)) for m in r.about.models]
        if len(about) == 1:
            about[0].results.append(r)
        elif len(about) == 2:
            pairs.append((about[0], about[1], r))
    return Evidence(tuple(models.values()), tuple(pairs), every)


def tell_apart(results: Sequence[Result], folders: Sequence[str] = ()) -> list[Result]:
    """The same results, with different display names for different models.

    Models that share a name are told apart by the folders of their results, where each has its own; else by (a), (b).
    """
    places: dict[str, dict[str, set[str]]] = {}  # name -> model -> folders
    for i, r in enumerate(results):
        for m in r.about.models:
            places.setdefault(m.name, {}).setdefault(key(m), set()).add(folders[i] if folders else "")
    names: dict[tuple[str, str], str] = {}
    for name, models in places.items():
        if len(models) > 1:
            names |= {(name, k): label for k, label in zip(models, _labels(name, models, set(places)))}
    return [_rename(r, names) for r in results]


def _labels(name: str, models: dict[str, set[str]], taken: set[str]) -> list[str]:
    """One display name for each model of a name."""
    folders = ["".join(where) for where in models.values() if len(where) == 1]
    if len({f for f in folders if f}) == len(models):
        return [f"{name} ({folder})" for folder in folders]
    letters = (f"{name} ({letter})" for letter in ascii_lowercase)
    free = (label for label in letters if label not in taken)
    return [f"{name} (unknown weights)" if k == f"name {name}" else next(free, name) for k in models]


def _rename(r: Result, names: dict[tuple[str, str], str]) -> Result:
    about = r.about
    renamed = tuple(replace(m, name=names.get((m.name, key(m)), m.name)) for m in about.models)
    return r if renamed == about.models else replace(r, about=replace(about, models=renamed))
