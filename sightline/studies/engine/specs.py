"""What decides the outcome of a run, as frozen values with a key: images, a training, a measurement."""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sightline.data.augment.augment import Augment
from sightline.spec import to_json
from sightline.training.recipe import Recipe

# Part of every key. Raise it when the same values come to mean something else: all runs are then trained again.
VERSION = 1
SMOKE_IMAGES, SMOKE_STEPS, SMOKE_BATCH = 60, 3, 16
Plain = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Images:
    """A dataset by what decides its pixels and labels.

    >>> sl.studies.Images(name="scenes/objects", num=1000, size=24).split
    'train'
    """

    name: str
    split: str = "train"
    num: int | None = None  # None: all of them
    size: int = 32
    seed: int = 0  # of scenes, or of the choice of a subset
    permuted: int = 0  # side of the patches that one fixed permutation moves; 0: none
    tail: int = 0  # how much larger the first class is than the last, with sizes falling geometrically; 0: as they are

    def smoke(self) -> "Images":
        """A few of them; what differed in number still does."""
        whole = 100_000 if self.num is None else self.num
        return replace(self, num=min(whole, SMOKE_IMAGES + 2 * whole.bit_length()))


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training. The seed decides initialization, order and augmentation.

    `start` is the training whose weights this one continues from. Without a recipe the model stays as it was
    initialized: the untrained twin. More than one of `processes` goes through torchrun.

    >>> images = sl.studies.Images(name="scenes/shape", num=100, size=16)
    >>> a, b = (sl.studies.Training(model="vit-nano4", images=images, recipe=None, seed=s) for s in (0, 1))
    >>> len(a.key), a.key == b.key
    (16, False)
    """

    model: str
    images: Images
    recipe: Recipe | None
    seed: int = 0
    changes: tuple[tuple[str, Any], ...] = ()  # fields of the model's configuration
    start: "Training | None" = None
    val: Images | None = None  # scored during training, where the course matters
    processes: int = 1

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits of everything that decides the outcome."""
        return digest("training", sparse(self))

    @property
    def needs(self) -> tuple["Training", ...]:
        """What must be trained before."""
        return () if self.start is None else (self.start,)

    def smoke(self) -> "Training":
        """The same in three steps on a few images."""
        recipe = self.recipe
        if recipe is not None:
            few = min(recipe.batch, SMOKE_BATCH)
            milestones = () if recipe.decay == "staircase" else recipe.milestones
            decay = "constant" if recipe.decay == "staircase" else recipe.decay
            recipe = replace(
                recipe, epochs=None, steps=SMOKE_STEPS, batch=few, micro=few, warmup=0, decay=decay,
                milestones=milestones, eval_every=None, sizes=(),
            )  # fmt: skip
        return replace(
            self,
            images=self.images.smoke(),
            recipe=recipe,
            start=self.start and self.start.smoke(),
            val=self.val and self.val.smoke(),
        )


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measurement or analysis of one or several trained models: a name of the table, images and options.

    >>> images = sl.studies.Images(name="scenes/shape", num=100, size=16)
    >>> model = sl.studies.Training(model="vit-nano4", images=images, recipe=None)
    >>> m = sl.studies.Measurement(name="accuracy", models=(model,), images=(images,))
    >>> m.needs == (model,)
    True
    """

    name: str
    models: tuple[Training, ...]
    images: tuple[Images, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    version: int = 1  # of the function behind the name

    @property
    def key(self) -> str:
        plain = sparse(replace(self, models=()))
        return digest("measurement", {**plain, "models": [m.key for m in self.models]})

    @property
    def needs(self) -> tuple[Training, ...]:
        """What must be trained before."""
        return tuple(dict.fromkeys(self.models))

    def smoke(self) -> "Measurement":
        """The same of models and images of a smoke test."""
        small = {"n": 32, "draws": 2, "episodes": 4, "shots": (1, 2), "probe_shots": 2, "queries": 2}
        options = tuple((k, small.get(k, v)) for k, v in self.options)
        if self.name == "suite":
            options = (("tasks", ("shape",)),)
        models = tuple(m.smoke() for m in self.models)
        return replace(self, models=models, images=tuple(i.smoke() for i in self.images), options=options)


Task = Training | Measurement


def sparse(value: Any) -> Any:
    """Plain values, without the fields that have their default: a field that a later version adds changes no key."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: sparse(v) for f in fields(value) if not _is_default(f, v := getattr(value, f.name))}
    if isinstance(value, tuple | list):
        return [sparse(v) for v in value]
    if isinstance(value, Mapping):
        return {k: sparse(v) for k, v in value.items()}
    return value


def _is_default(f: "dataclasses.Field[Any]", value: Any) -> bool:
    if f.default is not dataclasses.MISSING:
        return bool(value == f.default and type(value) is type(f.default))
    return f.default_factory is not dataclasses.MISSING and bool(value == f.default_factory())


def digest(kind: str, plain: Plain) -> str:
    """The key of plain values."""
    return hashlib.sha256(to_json([VERSION, kind, plain]).encode()).hexdigest()[:16]


def training_of(plain: Plain) -> Training:
    """A training from the plain values that `sparse` made of it."""
    given = dict(plain)
    for name in ("images", "val"):
        if given.get(name) is not None:
            given[name] = Images(**given[name])
    if given.get("recipe") is not None:
        given["recipe"] = recipe_of(given["recipe"])
    if given.get("start") is not None:
        given["start"] = training_of(given["start"])
    given["changes"] = tuple((k, tuples(v)) for k, v in given.get("changes", ()))
    return Training(**{"recipe": None, **given})


def measurement_of(plain: Plain) -> Measurement:
    """A measurement from the plain values that `sparse` made of it."""
    return Measurement(
        name=plain["name"],
        models=tuple(training_of(m) for m in plain["models"]),
        images=tuple(Images(**i) for i in plain.get("images", ())),
        options=tuple((k, tuples(v)) for k, v in plain.get("options", ())),
        version=plain.get("version", 1),
    )


def recipe_of(plain: Plain) -> Recipe:
    """A recipe from plain values."""
    given = {k: tuples(v) for k, v in plain.items() if k != "augment"}
    augment = {k: tuples(v) for k, v in plain.get("augment", {}).items()}
    return Recipe(**given, augment=Augment(**augment))


def tuples(value: Any) -> Any:
    """Lists, which JSON has, as the tuples that they were."""
    return tuple(tuples(v) for v in value) if isinstance(value, list | tuple) else value


def task_of(plain: Plain) -> Task:
    """What spec.json holds."""
    return training_of(plain["training"]) if "training" in plain else measurement_of(plain["measurement"])
