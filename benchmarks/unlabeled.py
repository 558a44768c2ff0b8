"""LeJEPA against masked prediction after equal processor time, over training seeds: `python -m benchmarks.unlabeled`.

vit-nano4 on CIFAR-10 at 24 px by `laptop_lejepa` and `laptop_masked` (mean colors), one thread. The speed of both is
measured first, in turns; their steps then take the same time. About nine core-minutes for three seeds of 75 seconds.
"""

import argparse
import math
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import torch

import sightline as sl
from benchmarks.race import save
from sightline.memory import keep_freed_memory

TRIES, EVERY = 3, 4  # speed: rounds in turns, and steps between two looks at the clock
SHOTS, DRAWS, LABELED, TESTED = (10, 25), 10, 2_000, 1_000
T = {1: math.inf, 2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantile of Student's t, by seeds
RECIPES = {"lejepa": sl.recipes.laptop_lejepa, "masked": sl.recipes.laptop_masked}


def recipe(kind: str, *, steps: int, seed: int) -> sl.Recipe:
    r = RECIPES[kind]()
    return r.change([f"steps={steps}", f"seed={seed}", *(["target=color"] if kind == "masked" else [])])


def train(kind: str, images: sl.Dataset, *, steps: int, seed: int, evals: Any = ()) -> tuple[Any, float]:
    """The trained model, and the processor time that training took."""
    model = sl.build("vit-nano4", classes=10, size=24, seed=seed)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as out:
        sl.fit(model, images, recipe(kind, steps=steps, seed=seed), out=out, evals=evals)
    return model, time.process_time() - began


def step_seconds(images: sl.Dataset) -> dict[str, float]:
    """Processor time of a step of each, the contestants in turns."""
    found: dict[str, list[float]] = {kind: [] for kind in RECIPES}
    for _ in range(TRIES):
        for kind, seconds in found.items():
            clock: list[float] = []

            def look(model: Any, clock: list[float] = clock) -> dict[str, float]:
                clock.append(time.process_time())
                return {}

            train(kind, images, steps=3 * EVERY, seed=99, evals=((EVERY, look),))
            seconds += list(np.diff(clock) / EVERY)
    return {kind: statistics.median(seconds) for kind, seconds in found.items()}


def judge(model: Any, labeled: sl.Dataset, test: sl.Dataset) -> dict[str, float]:
    """Few-shot and neighbor accuracy of what the head reads, and of the mean of the patches."""
    tables = [sl.extract(model, d, tokens="all") for d in (labeled, test)]
    found: dict[str, float] = {}
    for name, tokens in (("head", "cls"), ("patches", "gap")):
        a, b = (t.reduce(tokens) for t in tables)
        few = sl.fewshot(a, b, shots=SHOTS, seeds=DRAWS)
        features = torch.from_numpy(np.asarray(b["features"]))
        found |= {f"{name}, {shots} shots": float(mean) for shots, mean in zip(SHOTS, few.mean)}
        found[f"{name}, neighbors"] = sl.evals.neighbor_accuracy(features, test.labels)
        found[f"{name}, rank"] = sl.evals.effective_rank(features)
    return found


def difference(rows: list[dict[str, Any]], what: str, of: str) -> tuple[float, float]:
    """LeJEPA minus masked prediction, paired by seed: mean and half of its 95 % interval, in points. LeJEPA is read
    where its loss reads (the head); masked prediction at `of`."""
    pairs = [100 * (r["lejepa"][f"head, {what}"] - r["masked"][f"{of}, {what}"]) for r in rows]
    spread = statistics.stdev(pairs) if len(pairs) > 1 else math.inf
    return statistics.mean(pairs), T[len(pairs)] * spread / math.sqrt(len(pairs))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=75)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    images, test = sl.dataset("cifar10"), sl.dataset("cifar10", split="test").sample(TESTED)
    labeled = images.sample(LABELED, seed=1)
    speed = step_seconds(images)
    steps = {kind: round(asked.seconds / seconds) for kind, seconds in speed.items()}
    print("seconds a step", speed, "steps", steps, flush=True)
    rows: list[dict[str, Any]] = []
    for seed in range(asked.seeds):
        row: dict[str, Any] = {"seed": seed}
        row["untrained"] = judge(sl.build("vit-nano4", classes=10, size=24, seed=seed), labeled, test)
        for kind in RECIPES:
            model, seconds = train(kind, images, steps=steps[kind], seed=seed)
            row[kind] = {"seconds": seconds, **judge(model, labeled, test)}
        rows.append(row)
        print(row, flush=True)
        save("unlabeled", {"seconds a step": speed, "steps": steps, "rows": rows})
    gaps = {
        f"{what}, masked prediction read at the {of}": difference(rows, what, of)
        for what in (*(f"{s} shots" for s in SHOTS), "neighbors")
        for of in ("head", "patches")
    }
    for name, (mean, half) in gaps.items():
        print(f"LeJEPA ahead by {mean:.1f} points ± {half:.1f}: {name}")
    save("unlabeled", {"seconds a step": speed, "steps": steps, "rows": rows, "ahead": gaps})


if __name__ == "__main__":
    main()
