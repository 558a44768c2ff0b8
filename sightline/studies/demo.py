"""The demo: small models of all families trained, measured and analyzed on one dataset in a few minutes."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sightline.analysis.catalog import COMPARE
from sightline.analysis.inspection import compare, look
from sightline.data.arrays import Arrays
from sightline.data.datasets import Dataset
from sightline.data.source import dataset
from sightline.evals.accuracy import Classification, evaluate
from sightline.evals.extraction import extract
from sightline.evals.few_shot import fewshot
from sightline.files import set_aside
from sightline.models.construct import Model, build
from sightline.models.costs import cost
from sightline.observe.identity import identify
from sightline.spec import ModelId, Result
from sightline.training.loop import fit
from sightline.training.recipe import Recipe
from sightline.training.recipes.laptop import laptop_bit, laptop_vit
from sightline.training.run.folder import Run
from sightline.weights.loading import load

log = logging.getLogger("sightline.studies")
SIZE, HIGH, BATCH = 32, 48, 128
STEPS = 50  # of each model, per minute of the demo: about half of its time on two cores
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
        """Run the steps; `say` hears what comes next."""
        train, test = self.images("train"), self.images("test")
        trained: dict[str, Model] = {}
        for name in self.models:
            say(f"{name}: training {MODELS[name][0]} for {self.steps} steps of {BATCH}")
            run = self.train(name, train)
            trained[name] = run.model
            yield self.measure(name, run, train, test)
        say(f"{self.models[0]}: fine-tuning at {HIGH} px what was trained at {SIZE}")
        yield self.fine_tune()
        n = max(16, min(256, round(12.8 * self.minutes)))
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

    def images(self, split: str, size: int = SIZE) -> Dataset:
        """Scenes, for training rendered once into memory; for testing with their masks. Of other data, a thousand test
        images per minute, so that a short demo stays short."""
        if not self.data.startswith("scenes/"):
            whole, most = dataset(self.data, split=split), max(500, round(1000 * self.minutes))
            return whole if split == "train" or len(whole) <= most else whole.sample(most, seed=self.seed)
        num = {"train": max(512, round(2000 * self.minutes)), "test": max(256, round(100 * self.minutes))}[split]
        drawn = dataset(self.data, split=split, num=num, size=size)
        return drawn if split == "test" else in_memory(drawn)

    def recipe(self, name: str) -> Recipe:
        family = laptop_bit if name == "BiT" else laptop_vit
        short = replace(family(self.data), epochs=None, steps=self.steps, batch=BATCH, seed=self.seed, repeat=True)
        return replace(short, log_every=max(1, self.steps // 50))

    def train(self, name: str, train: Dataset) -> Run:
        variant, changes = MODELS[name]
        model = build(variant, classes=len(train.classes), size=SIZE, seed=self.seed, **changes)
        part, val = train.split(0.95, seed=self.seed)
        return fit(model, part, self.recipe(name), val=val, out=self.path / "runs" / name)

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

    def fine_tune(self) -> Step:
        """Fine-tune at a higher resolution, with resampled position embeddings."""
        name = self.models[0]
        train, test = self.images("train", HIGH), self.images("test", HIGH)
        part, val = train.split(0.95, seed=self.seed)
        recipe = replace(self.recipe(name), steps=max(2, self.steps // 5), lr=2e-4, size=HIGH)
        high = load(self.path / "runs" / name, size=HIGH)
        run = fit(high, part, recipe, val=val, out=self.path / "runs" / f"{name}-{HIGH}")
        title = f"{name} at {HIGH} px"
        place = self.path / "measure" / f"{name}-{HIGH}"
        who = identify(run.model, name=title)
        scored = load_or_compute(place / "accuracy.npz", lambda: evaluate(run.model, test), who, test.fingerprint())
        return Step(f"fine-tune {name} at {HIGH} px", (place / "accuracy.npz",), row_of(title, run.model, scored))


def in_memory(data: Dataset) -> Arrays:
    """Render every image once."""
    pixels = np.asarray(data.images(np.arange(len(data))))
    return Arrays(pixels, data.labels, classes=data.classes, name=data.name)


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
