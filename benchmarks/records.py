"""The most accuracy per core-minute, in pieces: `python -m benchmarks.records [FAMILY ...] [--seeds 0 1]`.

Trains every family of the table on CIFAR-10 (`sightline data get cifar10` first), one seed after the other, on one
thread. Core-minutes are processor time of the training itself: data, steps and the looks at 1,000 validation images.
The test set is used once, after training. Takes an hour or two of a core for each family and seed: stop it whenever you
like (SIGTERM or Ctrl-C), or give it `--minutes 30`, and start it again with the same words. What is finished
is in results/records.json.

    --try lr=0.01 --epochs 2     a short run with other settings, to choose them: 2,000 validation images, never the
                                 test set; the numbers of all tries are in results/records-tries.json.
                                 Of the model: --try "model.units=(1,2,2)"
    --figure records.svg         draw what is there: accuracy against core-minutes, beside benchmarks.eighty
"""

import argparse
import ast
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import sightline as sl
from benchmarks.race import RESULTS
from sightline.memory import keep_freed_memory

LOOKS, LOOKS_TO_CHOOSE = 20, 2  # at the validation images, for the curve
SHAPE = "model."  # settings of the model begin with it
VAL, VAL_TO_CHOOSE = "0.02", "0.04"  # of the 50,000 training images
# core-minutes, accuracy, what: recipes before these (docs/log.md), and a reference at a core's 86 GFLOP/s
BEFORE = ((17, 0.816, "bit-nano, laptop_bit"), (40, 0.726, "vit-micro4, laptop_vit"))
AIRBENCH = (56, 0.94, "airbench, from its 0.29 PFLOP")
TICKS = (0.5, 1, 2, 5, 10, 20, 60, 120)


@dataclass(frozen=True)
class Family:
    """A model and the recipe that trains it."""

    model: str
    recipe: Callable[..., sl.Recipe]
    shape: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "bit": Family("bit-basic", sl.recipes.speed_bit),
    "hybrid": Family("r6-vit-nano4", sl.recipes.speed_hybrid, {"pool": "gap"}),
    "vit": Family("vit-nano4", sl.recipes.speed_vit, {"pool": "gap"}),
    "laptop-bit": Family("bit-nano", sl.recipes.laptop_bit),
    "laptop-vit": Family("vit-micro4", sl.recipes.laptop_vit, {"pool": "gap"}),
}


def change_shape(family: Family, changes: Sequence[str]) -> Family:
    """The family with another model, such as `units=(1,2,2)`."""
    pairs = (change.split("=", 1) for change in changes)
    return replace(family, shape={**family.shape, **{name: ast.literal_eval(value) for name, value in pairs}})


@dataclass(frozen=True)
class Place:
    """The data of the runs, where they are kept, and until when they may go on."""

    data: str = "cifar10"
    num: int | None = None  # of scenes
    runs: Path = Path("runs/records")
    results: Path = RESULTS
    until: float = float("inf")

    def read(self, name: str) -> list[dict[str, Any]]:
        """What is finished."""
        file = self.results / f"{name}.json"
        return json.loads(file.read_text())["runs"] if file.exists() else []

    def add(self, name: str, run: dict[str, Any]) -> None:
        """Write it down, complete or not at all."""
        self.results.mkdir(parents=True, exist_ok=True)
        partial = self.results / f".{name}.json"
        partial.write_text(json.dumps({"runs": [*self.read(name), run], "cores": os.cpu_count()}, indent=1) + "\n")
        partial.replace(self.results / f"{name}.json")


def make_recipe(name: str, seed: int, epochs: float | None, changes: Sequence[str] = ()) -> sl.Recipe:
    """The family's recipe with this seed, length and these settings."""
    recipe = FAMILIES[name].recipe("cifar10", **({} if epochs is None else {"epochs": epochs}))
    return replace(recipe.change(changes), seed=seed)


def train(
    family: Family, recipe: sl.Recipe, place: Place, *, val: str, looks: int, out: Path
) -> tuple[sl.Run, list[list[float]]]:
    """One run from start to end, resumed if it was begun, and its curve: core-minutes and validation accuracy."""
    keep_freed_memory()  # as `sightline train` does
    split = sl.training.split_data(place.data, val=val, num=place.num)
    every = max(1, recipe.total_steps(len(split.train)) // looks)
    recipe = replace(recipe, eval_every=every, log_every=every, save_every=every)
    model = sl.build(family.model, classes=len(split.train.classes), seed=recipe.seed, **family.shape)
    clock = CoreClock(out, place.until)
    try:
        run = sl.fit(model, split.train, recipe, val=split.val, out=out, evals=[(every, clock)])
    finally:
        clock.keep()
    return run, [[row["core-minutes"], row["val/accuracy"]] for row in run.rows() if "core-minutes" in row]


class CoreClock:
    """An evaluator that tells the core-minutes of a run, those before it was stopped included; stops it in time.

    After a kill, what came behind the last look is trained again and counted once.
    """

    def __init__(self, out: Path, until: float = float("inf")):
        self.out, self.start, self.until = out, time.process_time(), until
        self.before: float | None = None

    def __call__(self, model: Any = None) -> dict[str, float]:
        if self.before is None:  # by now the log ends where the run resumed
            rows = [row["core-minutes"] for row in sl.Run(self.out).rows() if "core-minutes" in row]
            file = self.out / "core-minutes.json"
            self.before = max([0.0, *rows, *([json.loads(file.read_text())] if file.exists() else [])])
        if model is not None and time.monotonic() > self.until:
            signal.raise_signal(signal.SIGTERM)  # the loop saves and stops
        return {"core-minutes": self.before + (time.process_time() - self.start) / 60}

    def keep(self) -> None:
        """Write it down for the next start."""
        if (self.out / "run.json").exists():
            (self.out / "core-minutes.json").write_text(json.dumps(self()["core-minutes"]))


def describe(name: str, run: sl.Run, curve: list[list[float]]) -> dict[str, Any]:
    """What every finished run says."""
    recipe, about = run.about["identity"]["recipe"], run.about
    command = " ".join(["python -m benchmarks.records", *sys.argv[1:]])
    return {
        **{"family": name, "seed": recipe["seed"], "model": FAMILIES[name].model, **FAMILIES[name].shape},
        **{"recipe": recipe["name"], "epochs": recipe["epochs"], "parameters": about["plan"]["parameters"]},
        **{"core_minutes": curve[-1][0], "val": curve[-1][1], "curve": curve, "command": command},
        **{key: about[key] for key in ("commit", "versions", "machine")},
    }


def make_record(name: str, seed: int, epochs: float | None, place: Place) -> None:
    """One seed of a family, unless it is finished, with its accuracy on the test set."""
    recipe = make_recipe(name, seed, epochs)
    if any((r["family"], r["seed"], r["epochs"]) == (name, seed, recipe.epochs) for r in place.read("records")):
        return
    out = place.runs / f"{name}-{recipe.epochs:g}-{seed}"
    run, curve = train(FAMILIES[name], recipe, place, val=VAL, looks=LOOKS, out=out)
    test = sl.training.split_data(place.data, val=VAL, num=place.num).test
    assert test is not None
    scores = {how or "plain": sl.evaluate(run.model, test, tta=how).top1 for how in (None, "mirror", "shift")}
    place.add("records", {**describe(name, run, curve), "test": scores})
    print_table(place.read("records"))


def try_settings(name: str, seed: int, epochs: float | None, changes: Sequence[str], place: Place) -> None:
    """A run with other settings on other validation images; the test set is not opened."""
    shapes = [change.removeprefix(SHAPE) for change in changes if change.startswith(SHAPE)]
    recipe = make_recipe(name, seed, epochs, [change for change in changes if not change.startswith(SHAPE)])
    family = change_shape(FAMILIES[name], shapes)
    words = ",".join(changes).replace("/", "_") or "as-it-is"
    found = [r for r in place.read("records-tries") if (r["family"], r["seed"], r["epochs"]) == (name, seed, epochs)]
    if any(r["settings"] == list(changes) for r in found):
        return
    out = place.runs / f"try-{name}-{recipe.epochs:g}-{seed}-{words}"
    run, curve = train(family, recipe, place, val=VAL_TO_CHOOSE, looks=LOOKS_TO_CHOOSE, out=out)
    tried = {**describe(name, run, curve), "epochs": epochs, "settings": list(changes)}
    tried["val_loss"] = run.summary()["val/loss"]
    place.add("records-tries", tried)
    print(f"{name} {words}: {tried['val']:.2%}, {tried['val_loss']:.3f} in {tried['core_minutes']:.2f} core-minutes")


def print_table(records: list[dict[str, Any]]) -> None:
    """Mean and spread over the seeds of each family and length."""
    for name, epochs in sorted({(r["family"], r["epochs"]) for r in records}):
        rows = [r for r in records if (r["family"], r["epochs"]) == (name, epochs)]
        test = {how: [r["test"][how] for r in rows] for how in rows[0]["test"]}
        spread = ", ".join(f"{how} {statistics.mean(v):.2%} ({min(v):.2%} to {max(v):.2%})" for how, v in test.items())
        minutes = statistics.mean(r["core_minutes"] for r in rows)
        print(f"{name:<12} {epochs:g} epochs, {minutes:.0f} core-minutes, {len(rows)} seeds: {spread}")


def draw(place: Place, path: Path) -> None:
    """Validation accuracy by core-minutes, a line per seed and a color per family, test accuracy as dots; peers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xscale="log", xlabel="core-minutes", ylabel="accuracy on CIFAR-10 (%)")
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.grid(color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    records = place.read("records")
    for color, name in enumerate(dict.fromkeys(r["family"] for r in records)):
        for i, r in enumerate(r for r in records if r["family"] == name):
            minutes, accuracies = zip(*r["curve"])
            label = f"{r['model']}, {r['recipe']}: validation; test as a dot" if i == 0 else None
            axes.plot(minutes, [100 * a for a in accuracies], color=f"C{color}", linewidth=1.2, label=label)
            axes.plot(r["core_minutes"], 100 * r["test"]["plain"], "o", color=f"C{color}", markersize=5)
    race = place.results / "eighty.json"
    peers = json.loads(race.read_text())["curves"] if race.exists() else {}
    for who in (who for who in peers if peers[who]):
        minutes, accuracies = zip(*peers[who])
        tint, label = ("C0", "the same, a short schedule") if who == "ours" else ("0.4", who)
        axes.plot(minutes, [100 * a for a in accuracies], "--", color=tint, label=label)
    for (minutes, accuracy, what), marker in zip((*BEFORE, AIRBENCH), "sd*"):
        axes.plot(minutes, 100 * accuracy, marker, color="0.4", label=what)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help=f"bit, hybrid and vit if none is given; of {', '.join(FAMILIES)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=float, help="instead of the recipe's own")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="by the clock, then stop")
    parser.add_argument("--try", dest="changes", action="append", metavar="NAME=VALUE", help="with other settings")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--num", type=int, help="of scenes")
    parser.add_argument("--runs", type=Path, default=Place.runs)
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args(words)
    until = time.monotonic() + 60 * asked.minutes
    place = Place(data=asked.data, num=asked.num, runs=asked.runs, results=asked.results, until=until)
    if asked.figure:
        draw(place, asked.figure)
        return
    torch.set_num_threads(1)
    try:
        for seed in asked.seeds:
            for name in asked.families or ("bit", "hybrid", "vit"):
                if time.monotonic() > until:
                    return
                if asked.changes is not None:
                    changes = [change for change in asked.changes if change != "none"]
                    try_settings(name, seed, asked.epochs, changes, place)
                else:
                    make_record(name, seed, asked.epochs, place)
    except sl.training.Stopped as stopped:
        print(stopped)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
