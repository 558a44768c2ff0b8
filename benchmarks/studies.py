"""The engine of studies: what a run costs beyond its training, and whether memory stays flat over many runs.

    python -m benchmarks.studies [RUNS]

Trainings of a few steps of vit-nano4 at 24 px, one after another in one worker process of the engine, against the same
steps in a bare loop; processor time. Results go to benchmarks/results/studies.json. Targets: at most 0.5 s of one core
per run beyond training, memory flat.
"""

import json
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch

import sightline as sl
from sightline.studies.engine.local import run_local
from sightline.studies.engine.store import Store

RUNS, STEPS, BATCH = 100, 4, 16
IMAGES = sl.studies.Images(name="scenes/shape", num=256, size=24)
RESULTS = Path(__file__).parent / "results" / "studies.json"


def training(seed: int) -> sl.studies.Training:
    recipe = sl.Recipe(lr=1e-3, batch=BATCH, steps=STEPS, micro=BATCH, seed=seed)
    return sl.studies.Training(model="vit-nano4", images=IMAGES, recipe=recipe, seed=seed)


def bare(repeats: int = 20) -> float:
    """Processor seconds of the steps alone."""
    torch.set_num_threads(1)
    model = sl.build("vit-nano4", classes=10, size=24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, labels = torch.randn(BATCH, 3, 24, 24), torch.zeros(BATCH, dtype=torch.long)

    def steps() -> float:
        start = time.process_time()
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return time.process_time() - start

    return min(steps() for _ in range(repeats))


def engine(runs: int) -> tuple[float, int]:
    """Processor seconds of one worker that does so many runs, and its peak memory in KiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "out")
        store.prepare()
        tasks = [training(seed) for seed in range(runs)]
        for task in tasks:
            store.describe(task)
        assert run_local(store, tasks, jobs=1)
        assert all(store.state(task) == "done" for task in tasks)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss


def main(runs: int) -> None:
    few = max(2, runs // 10)
    (short, small), (long, large) = engine(few), engine(runs)
    each, alone = (long - short) / (runs - few), bare()  # the difference leaves out what a worker costs to start
    table = {
        "runs": runs,
        "steps of a run": STEPS,
        "processor seconds of a run": round(each, 3),
        "of its steps alone": round(alone, 3),
        "beyond them": round(each - alone, 3),
        f"peak MiB after {few} runs": round(small / 1024),
        f"peak MiB after {runs} runs": round(large / 1024),
    }
    for name, value in table.items():
        print(f"{name:<28} {value}")
    about = {"python": platform.python_version(), "torch": torch.__version__}
    RESULTS.write_text(json.dumps({**about, **table}, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
