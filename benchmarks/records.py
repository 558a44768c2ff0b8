"""The most accuracy per core-minute: `python -m benchmarks.records [FAMILY ...] [--seeds 0 1 2] [--epochs N]`.

Trains every family of the table on CIFAR-10 (`sightline data get cifar10` first), one seed after the other, on one
thread. Core-minutes are processor time of the training itself: data, steps and the looks at 1,000 validation images.
The test set is used once, after training. Takes an hour or two of a core for each family and seed; stop it whenever you
like (SIGTERM or Ctrl-C) and start it again with the same words. What is finished is in results/records.json.
"""

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import sightline as sl
from benchmarks.race import RESULTS, save

LOOKS = 20  # at the validation images, for the curve


@dataclass(frozen=True)
class Family:
    """A model and the recipe that trains it."""

    model: str
    recipe: Callable[..., sl.Recipe]
    shape: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "bit": Family("bit-basic", sl.recipes.speed_bit),
    "hybrid": Family("conv-vit-micro4", sl.recipes.speed_hybrid, {"pool": "gap"}),
    "vit": Family("vit-micro4", sl.recipes.speed_vit, {"pool": "gap"}),
    "laptop-bit": Family("bit-nano", sl.recipes.laptop_bit),
    "laptop-vit": Family("vit-micro4", sl.recipes.laptop_vit, {"pool": "gap"}),
}


def train(name: str, seed: int, epochs: float | None, folder: Path) -> dict[str, Any]:
    """One run from start to end, resumed if it was begun; its curve and its accuracy on the test set."""
    family = FAMILIES[name]
    recipe = replace(family.recipe("cifar10", **({} if epochs is None else {"epochs": epochs})), seed=seed)
    split = sl.training.split_data("cifar10", val="0.02")
    every = max(1, recipe.total_steps(len(split.train)) // LOOKS)
    recipe = replace(recipe, eval_every=every, log_every=every, save_every=every)
    model = sl.build(family.model, classes=10, seed=seed, **family.shape)
    out = folder / f"{name}-{recipe.epochs:g}-{seed}"
    clock = CoreClock(out)
    try:
        run = sl.fit(model, split.train, recipe, val=split.val, out=out, evals=[(every, clock)])
    finally:
        clock.keep()
    curve = [[row["core-minutes"], row["val/accuracy"]] for row in run.rows() if "core-minutes" in row]
    scores = {how or "plain": sl.evaluate(run.model, split.test, tta=how).top1 for how in (None, "mirror", "shift")}
    about = {key: run.about[key] for key in ("commit", "versions", "machine")}
    return {
        **{"family": name, "seed": seed, "model": family.model, **family.shape, "recipe": recipe.name},
        **{"epochs": recipe.epochs, "parameters": sum(p.numel() for p in model.parameters())},
        **{"core_minutes": curve[-1][0], "val": curve[-1][1], "test": scores, "curve": curve, **about},
    }


class CoreClock:
    """An evaluator that tells the core-minutes of a run, those before it was stopped included.

    After a kill, what came behind the last look is trained again and counted once.
    """

    def __init__(self, out: Path):
        self.out, self.start, self.before = out, time.process_time(), None

    def __call__(self, _: Any = None) -> dict[str, float]:
        if self.before is None:  # by now the log ends where the run resumed
            rows = [row["core-minutes"] for row in sl.Run(self.out).rows() if "core-minutes" in row]
            file = self.out / "core-minutes.json"
            self.before = max([0.0, *rows, *([json.loads(file.read_text())] if file.exists() else [])])
        return {"core-minutes": self.before + (time.process_time() - self.start) / 60}

    def keep(self) -> None:
        """Write it down for the next start."""
        if (self.out / "run.json").exists():
            (self.out / "core-minutes.json").write_text(json.dumps(self()["core-minutes"]))


def read_records() -> list[dict[str, Any]]:
    """What is finished."""
    file = RESULTS / "records.json"
    return json.loads(file.read_text())["runs"] if file.exists() else []


def print_table(records: list[dict[str, Any]]) -> None:
    """Mean and spread over the seeds of each family and length."""
    for name, epochs in sorted({(r["family"], r["epochs"]) for r in records}):
        rows = [r for r in records if (r["family"], r["epochs"]) == (name, epochs)]
        test = {how: [r["test"][how] for r in rows] for how in rows[0]["test"]}
        spread = ", ".join(f"{how} {statistics.mean(v):.2%} ({min(v):.2%} to {max(v):.2%})" for how, v in test.items())
        minutes = statistics.mean(r["core_minutes"] for r in rows)
        print(f"{name:<12} {epochs:g} epochs, {minutes:.0f} core-minutes, {len(rows)} seeds: {spread}")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("families", nargs="*", default=["bit", "hybrid", "vit"], help=", ".join(FAMILIES))
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    words.add_argument("--epochs", type=float, help="instead of the recipe's own")
    words.add_argument("--folder", type=Path, default=Path("runs/records"))
    asked = words.parse_args()
    torch.set_num_threads(1)
    for seed in asked.seeds:
        for name in asked.families:
            epochs = asked.epochs if asked.epochs is not None else FAMILIES[name].recipe("cifar10").epochs
            if any((r["family"], r["seed"], r["epochs"]) == (name, seed, epochs) for r in read_records()):
                continue
            try:
                done = train(name, seed, asked.epochs, asked.folder)
            except sl.training.Stopped as stopped:
                print(stopped)
                return
            save("records", {"runs": [*read_records(), done], "cores": os.cpu_count()})
            print_table(read_records())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
