"""Speed and memory of the measuring room: `python -m benchmarks.evals [rounds]`, a few minutes.

Extraction is timed against the bare forward pass on the same batches, in turns batch by batch, so that a busy machine
slows both alike; few-shot at ImageNet's size runs in a process of its own, whose peak memory is its alone.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sightline as sl
from benchmarks.race import high_water, save

BATCH, IMAGES, ROUNDS = 16, 192, 5  # the one image that extraction tries first is no overhead of a dataset


class Turns(sl.data.Arrays):
    """A dataset that runs the bare forward pass on each batch it hands out, before or after the batch is used.

    So both are timed a second apart, and a machine whose speed wanders by a third from minute to minute slows both.
    """

    def batches(self, *args, **settings):
        return Turn(self, super().batches(*args, **settings))

    def bare(self, x: torch.Tensor) -> None:
        start = time.process_time()
        with torch.inference_mode():
            self.model.features(x)
        self.spent += time.process_time() - start


@dataclass
class Turn:
    data: Turns
    inner: Any

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self):
        for i, (x, y) in enumerate(self.inner):
            if i % 2:
                self.data.bare(x)
            yield x, y
            if not i % 2:
                self.data.bare(x)


def overhead(name: str, rounds: int, *, images: int = IMAGES, **settings) -> dict:
    """Extraction over the bare forward pass, on images of the right size: the median of the ratios of each round.

    On one thread, in time of the processor: waiting for a neighbor does not count, nor do threads that spin.
    """
    torch.set_num_threads(1)
    model = sl.build(name, classes=0).eval()
    rng = np.random.default_rng(0)
    data = Turns(rng.integers(0, 255, (images, *model.image.size, 3), dtype=np.uint8), np.zeros(images, np.int64))
    data.model = model
    times: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(rounds + 1):
        data.spent, start = 0.0, time.process_time()
        sl.extract(model, data, batch=BATCH, **settings)
        times["bare"].append(data.spent)
        times["ours"].append(time.process_time() - start - data.spent)
    times = {key: row[1:] for key, row in times.items()}  # the first round warms up
    ratio = statistics.median(b / a for a, b in zip(times["bare"], times["ours"]))
    middle = {key: statistics.median(row) for key, row in times.items()}
    return {**middle, "overhead": ratio - 1, "rounds": times}


def fewshot_at_scale() -> dict:
    """One seed of 25-shot on 1,000 classes of 768-wide features against 50,000 test rows; threads: two."""
    torch.set_num_threads(2)
    random = torch.Generator().manual_seed(0)
    centers = torch.randn(1000, 768, generator=random)
    y, w = torch.arange(26_000) % 1000, torch.arange(50_000) % 1000
    x = centers[y] + 4 * torch.randn(26_000, 768, generator=random)
    z = centers[w] + 4 * torch.randn(50_000, 768, generator=random)
    start, work = time.perf_counter(), time.process_time()
    few = sl.fewshot((x, y), (z, w), shots=(25,), seeds=1)
    spent, work = time.perf_counter() - start, time.process_time() - work
    peak = high_water()
    return {"seconds": spent, "processor_seconds": work, "peak_MiB": peak, "accuracy": float(few.mean[0])}


def bounded_memory(num: int) -> float:
    """Peak MiB of extraction to a file; it must not grow with the number of images."""
    model = sl.build("vit-nano4", classes=0).eval()
    with tempfile.TemporaryDirectory() as folder:
        sl.extract(
            model,
            sl.dataset("scenes/shape", num=num, size=32),
            layers="blocks",
            tokens="all",
            batch=64,
            out=Path(folder) / "features.safetensors",
        )
    return high_water()


def alone(call: str):
    code = f"import json; from benchmarks import evals; print(json.dumps(evals.{call}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def main(rounds: int = ROUNDS) -> None:
    found: dict = {"rounds": rounds, "batch": BATCH}
    for name, images in (("vit-ti16", IMAGES), ("bit-r50x1", IMAGES // 4)):
        found[f"extract, {name}, pooled"] = overhead(name, rounds, images=images)
        found[f"extract, {name}, every block"] = overhead(name, rounds, images=images, layers="blocks", tokens="gap")
    for title, row in found.items():
        if isinstance(row, dict):
            print(f"{title:<34} bare {row['bare']:6.2f} s  ours {row['ours']:6.2f} s  overhead {row['overhead']:+.1%}")
    runs = [alone("fewshot_at_scale()") for _ in range(3)]
    found["25-shot, 1,000 classes, 25,000 x 769, 50,000 test rows"] = runs
    for row in runs:
        spent = f"{row['seconds']:.2f} s ({row['processor_seconds']:.2f} s of the processors)"
        print(f"25-shot at ImageNet's size: {spent}, peak {row['peak_MiB']:.0f} MiB")
    found["peak MiB of extraction to a file, by images"] = {n: alone(f"bounded_memory({n})") for n in (256, 2048)}
    print(found["peak MiB of extraction to a file, by images"])
    save("evals", found)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
