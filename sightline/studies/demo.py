"""The demo: a small study of all families, trained by the engine, then measured and analyzed, in a few minutes."""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sightline.analysis.catalog import COMPARE
from sightline.analysis.inspection import compare, look
from sightline.data.datasets import Dataset
from sightline.data.source import available_splits
from sightline.evals.accuracy import Classification, evaluate
from sightline.evals.extraction import extract
from sightline.evals.few_shot import fewshot
from sightline.files import set_aside
from sightline.models.construct import Model
from sightline.models.costs import cost
from sightline.observe.identity import identify
from sightline.spec import ModelId, Result
from sightline.studies.engine.images import open_images
from sightline.studies.engine.local import run_local
from sightline.studies.engine.specs import Images, Measurement, Training
from sightline.studies.engine.store import Store, with_needs
from sightline.studies.engine.study import Study
from sightline.training.recipe import Recipe
from sightline.training.recipes.laptop import laptop_bit, laptop_vit
from sightline.training.run.folder import Run

log = logging.getLogger("sightline.studies")
SIZE, HIGH, BATCH = 32, 48, 128
STEPS = 28  # of each model, for every minute of the demo: the four trainings take half of it on two cores
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("vit-nano4", {}),
    "ViT-GAP": ("vit-nano4", {"pool": "gap"}),
    "BiT": ("bit-nano", {}),
    "hybrid": ("r8-vit-nano4", {}),
}


@dataclass(frozen=True)
class Step:
    """One step of the demo, and its results."""

    what: str
    results: tuple[Path, ...] = ()
    row: dict[str, Any] | None = None  # of the table of models


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Everything in one folder; what an earlier call has finished is not done again.

    >>> list(sl.studies.Demo(out="demo", minutes=10).models)
    ['ViT', 'ViT-GAP', 'BiT', 'hybrid']
    """

    out: str | Path = "demo"
    data: str = "scenes/count"
    minutes: float = 10.0
    seed: int = 0
    models: tuple[str, ...] = tuple(MODELS)

    def __post_init__(self) -> None:
        if self.minutes <= 0:
            raise ValueError(f"--minutes is a number above 0; got {self.minutes}.")
        if unknown := [m for m in self.models if m not in MODELS]:
            raise ValueError(f"The demo trains {', '.join(MODELS)}; got {unknown[0]}.")

    @property
    def path(self) -> Path:
        """One folder for each set of settings, so that different demos never share runs."""
        return Path(self.out) / f"{self.data.replace('/', '-')}-{self.minutes:g}-{self.seed}"

    @property
    def steps(self) -> int:
        """Optimizer steps of each model."""
        return max(2, round(STEPS * self.minutes))

    def run(self, say: Callable[[str], None] = print) -> Iterator[Step]:
        """Run the steps; `say` gets what comes next."""
        say(f"training {', '.join(self.models)}, {self.steps} steps of {BATCH} each; then {HIGH} px instead of {SIZE}")
        runs = self.train(say)
        train, test = open_images(self.images("train"), self.path), self.open_test()
        trained: dict[str, Model] = {}
        for name in self.models:
            say(f"{name}: test and few-shot accuracy")
            trained[name] = runs[name].model
            yield self.measure(name, runs[name], train, test)
        yield self.measure_high(runs[f"{self.models[0]}-{HIGH}"])
        n = max(16, min(256, round(9.6 * self.minutes)))
        for name, model in trained.items():
            say(f"{name}: every analysis that applies, on {n} images")
            place = self.path / "look" / name
            rows = look(model, test, place, n=n, seed=self.seed, name=name)
            yield Step(f"look at {name}", tuple(place / r.path for r in rows if r.path))
        for a, b in self.pairs():
            say(f"{a} and {b}: side by side")
            place = self.path / "compare" / f"{a}-{b}"
            models = (trained[a], trained[b])
            some = tuple(COMPARE)  # look has covered what is about one model alone
            rows = compare(*models, test, place, only=some, n=n, seed=self.seed, names=(a, b))
            yield Step(f"compare {a} and {b}", tuple(place / r.path for r in rows if r.path))

    def pairs(self) -> list[tuple[str, str]]:
        """The ViT beside each other model."""
        first, *others = self.models
        return [(first, other) for other in others]

    def study(self) -> Study:
        """What is trained: every model, and the first once more at a higher resolution."""

        def measure(model: str, seed: int) -> Iterator[tuple[str, Measurement]]:
            yield "course", Measurement(name="course", models=(self.training(model),))

        models = (*self.models, f"{self.models[0]}-{HIGH}")
        return Study(
            name="demo", question="Do small models of every family see alike?", source="all three papers",
            axes={"model": models}, fixed={"steps": f"{self.steps} of {BATCH}"}, measure=measure, decides=(), seeds=1,
        )  # fmt: skip

    def images(self, split: str, size: int = SIZE) -> Images:
        """Scenes, or some of other data: no more than are seen in training, and a thousand test images per minute, so
        that a short demo stays short."""
        if self.data.startswith("scenes/"):
            num = {"train": max(512, round(2000 * self.minutes)), "test": max(256, round(100 * self.minutes))}
            return Images(name=self.data, split=split, num=num.get(split, 256), size=size)
        most = {"train": self.steps * BATCH, "test": max(500, round(1000 * self.minutes))}.get(split, 500)
        there = split if split in available_splits(self.data) or split != "val" else "test"
        return Images(name=self.data, split=there, num=most, size=size, seed=self.seed)

    def open_test(self, size: int = SIZE) -> Dataset:
        """The test images; scenes with their masks."""
        return open_images(self.images("test", size), self.path, masks=self.data.startswith("scenes/"))

    def recipe(self, name: str) -> Recipe:
        family = laptop_bit if name == "BiT" else laptop_vit
        short = replace(family(self.data), epochs=None, steps=self.steps, batch=BATCH, seed=self.seed, repeat=True)
        return replace(short, log_every=max(1, self.steps // 50))

    def training(self, name: str) -> Training:
        """One of the models; NAME-48 is NAME fine-tuned at that resolution, with resampled position embeddings."""
        known = name.removesuffix(f"-{HIGH}")
        variant, changes = MODELS[known]
        whole = Training(
            model=variant, images=self.images("train"), recipe=self.recipe(known), seed=self.seed,
            changes=tuple(changes.items()), val=self.images("val"),
        )  # fmt: skip
        if known == name:
            return whole
        short = replace(self.recipe(known), steps=max(2, self.steps // 5), lr=2e-4, size=HIGH)
        train, val = self.images("train", HIGH), self.images("val", HIGH)
        return replace(whole, images=train, val=val, recipe=short, start=whole, changes=())

    def prepare(self) -> None:
        """Make the folder one of studies, before anything else is written to it; that of another thing is refused."""
        Store(self.path).prepare()

    def train(self, say: Callable[[str], None]) -> dict[str, Run]:
        """Train what is not trained yet, one process with one thread for every core."""
        self.prepare()
        store, study = Store(self.path), self.study()
        tasks = with_needs(list(study.plan((self.seed,))[self.seed].values()))
        todo = [t for t in tasks if store.state(t) != "done"]
        for task in todo:
            store.describe(task)
        run_local(store, todo, jobs=min(len(todo), os.cpu_count() or 1) or 1, say=say)
        for task in tasks:
            if store.state(task) != "done":
                raise ValueError(f"The demo could not train {task.key}: {store.reason(task)}")
        return {str(m): Run(store.folder(self.training(str(m))) / "train") for m in study.axes["model"]}

    def measure(self, name: str, run: Run, train: Dataset, test: Dataset) -> Step:
        """Accuracy on the test data, few-shot accuracy of the features, training curves."""
        place, model = self.path / "measure" / name, run.model
        known = train.sample(min(len(train), 2000), seed=self.seed)
        who, seen = identify(model, name=name), test.fingerprint()
        scored = load_or_compute(place / "accuracy.npz", lambda: evaluate(model, test), who, seen)
        few = load_or_compute(
            place / "fewshot.npz",
            lambda: fewshot(extract(model, known), extract(model, test), shots=(1, 5, 10), seeds=5),
            who,
            f"{known.fingerprint()}+{seen}",
        )
        load_or_compute(place / "curves.npz", run.curves, who, "")
        return Step(f"train {name}", tuple(sorted(place.glob("*.npz"))), row_of(name, model, scored, few))

    def measure_high(self, run: Run) -> Step:
        """Accuracy after fine-tuning at a higher resolution."""
        name, test = self.models[0], self.open_test(HIGH)
        title = f"{name} at {HIGH} px"
        place = self.path / "measure" / f"{name}-{HIGH}"
        who = identify(run.model, name=title)
        scored = load_or_compute(place / "accuracy.npz", lambda: evaluate(run.model, test), who, test.fingerprint())
        return Step(f"fine-tune {name} at {HIGH} px", (place / "accuracy.npz",), row_of(title, run.model, scored))


def load_or_compute(path: Path, make: Callable[[], Any], model: ModelId, images: str) -> Any:
    """A result from disk if it is about this model and these images, or computed and saved there.

    A damaged one is set aside.
    """
    try:
        found = Result.load(path) if path.exists() else None
    except ValueError as error:
        log.warning("%s It is set aside as %s and computed again.", error, set_aside(path).name)
        found = None
    if found is not None and found.about.models == (model,) and found.about.images == images:
        return found
    computed = make()
    computed = replace(computed, about=replace(computed.about, models=(model,), images=images))
    computed.save(path)
    return computed


def row_of(name: str, model: Model, scored: Result, few: Result | None = None) -> dict[str, Any]:
    """The model's row of the table."""
    spent = cost(model)
    low, high = scored.interval if isinstance(scored, Classification) else (float("nan"),) * 2
    return {
        "model": name,
        "parameters": spent.parameters,
        "MMAC": round(spent.macs / 1e6, 1),
        "test accuracy": round(float(scored.summary()["top-1"]), 4),
        "95 %": f"{low:.3f} to {high:.3f}",
        "10-shot": None if few is None else round(float(few.summary()["10-shot"]), 4),
    }
