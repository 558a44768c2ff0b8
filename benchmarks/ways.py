"""Ways to run the same training step: `python -m benchmarks.ways [rounds] [MODEL ...]`, ten minutes or more.

Plain, channels last and compiled (torch.compile), in turns, batch 64, with what compiling took. With OMP_NUM_THREADS=1
in processor time (of this process and the compiler's). `sightline.training.preflight.execution` chooses by these
numbers. Results of other models are kept.
"""

import json
import os
import resource
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace

import torch

import sightline as sl
from benchmarks.race import RESULTS, clock, save
from sightline.training.parallel import ProcessGroup
from sightline.training.train_state import TrainState

MODELS, BATCH = ("vit-nano4", "vit-micro4", "bit-nano", "bit-basic", "bit-micro"), 64


def children() -> float:
    """Seconds of the processor of processes that have ended: the compiler."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def step(name: str, **settings: object) -> Callable[[], object]:
    """One optimizer step of a recipe with these settings."""
    recipe = replace(sl.Recipe(lr=1e-3, batch=BATCH, steps=1), **settings)  # type: ignore[arg-type]
    state = TrainState(sl.build(name, classes=10), recipe, ProcessGroup())
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.arange(BATCH) % 10
    return lambda: state.train_step(images, labels, step=0, rate=1e-3)


def measure(name: str, rounds: int) -> dict:
    ways = {"plain": step(name), "compiled": step(name, compile=True)}
    if name.startswith("bit"):
        ways["channels last"] = step(name, layout="channels-last")
    now, first = clock(), {}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for way, run in ways.items():
        start = now() + children()
        run()
        first[way] = now() + children() - start
    for _ in range(rounds):
        for way, run in ways.items():
            start = now()
            run()
            times[way].append(now() - start)
    faster = {w: statistics.median(a / b for a, b in zip(times["plain"], t)) for w, t in times.items()}
    ratios = ", ".join(f"{way} {ratio:.2f}" for way, ratio in faster.items())
    print(f"{name}: faster than plain by {ratios}; compiling took {first['compiled']:.0f} s", flush=True)
    return {"faster_than_plain": faster, "first_step_seconds": first, "seconds": times, "batch": BATCH}


def main(rounds: int = 7, models: tuple[str, ...] = MODELS) -> None:
    file = RESULTS / "ways.json"
    found = json.loads(file.read_text())["models"] if file.exists() else {}
    for name in models:
        found[name] = {**measure(name, rounds), "threads": torch.get_num_threads(), "load": os.getloadavg()[0]}
        save("ways", {"models": found})


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]), *((tuple(sys.argv[2:]),) if sys.argv[2:] else ()))
