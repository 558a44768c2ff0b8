"""Speed of training: `python -m benchmarks.training loop | sixty`.

loop   the whole loop (data, clip, logging) against the bare forward, backward and step on batches made beforehand, a
       few minutes; both take turns within one run, every eight steps.
sixty  time to 60 % on CIFAR-10 (`sightline data get cifar10` first) against timm's training script with its defaults,
       on the very same module; both processes take turns of some seconds, and a clock runs for each in its turns only.
"""

import importlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import sightline as sl
from benchmarks.race import matmul_speed, save

BATCH, SEGMENT, ROUNDS = 128, 8, 40
GOAL, TURN, BUDGET = 0.60, 10.0, 1500.0  # accuracy, seconds of a turn, seconds of own time


def loop_overhead(name: str) -> dict:
    """Ours and bare in turns: the median over rounds of their ratio."""
    rng = np.random.default_rng(0)
    data = sl.data.Arrays(rng.integers(0, 256, (20_000, 32, 32, 3), dtype=np.uint8), np.arange(20_000) % 10)
    recipe = replace(sl.recipes.laptop_vit("cifar10"), epochs=None, steps=SEGMENT * (ROUNDS + 1), batch=BATCH,
                     save_every=10**6, log_every=50)  # fmt: skip
    bare = Bare(name, data, recipe)
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    clock = [0.0]

    def turn(_) -> dict[str, float]:
        times["ours"].append(time.perf_counter() - clock[0])
        start = time.perf_counter()
        bare.steps(SEGMENT)
        times["bare"].append(time.perf_counter() - start)
        clock[0] = time.perf_counter()
        return {}

    with tempfile.TemporaryDirectory() as folder:
        sl.fit(sl.build(name, classes=10), data, recipe, out=Path(folder) / "run", evals=[(SEGMENT, turn)])
    ours, plain = times["ours"][1:], times["bare"][1:]  # the first turn holds the start
    macs = 3 * sl.cost(name, size=32).macs * BATCH * SEGMENT
    return {
        "overhead": statistics.median(a / b for a, b in zip(ours, plain)) - 1,
        "images_per_second": BATCH * SEGMENT / statistics.median(ours),
        "of_matmul_speed": 2 * macs / statistics.median(ours) / matmul_speed(),
        "rounds": times,
    }


class Bare:
    """Forward, backward, step; nothing else."""

    def __init__(self, name: str, data: sl.Dataset, recipe: sl.Recipe):
        self.model = sl.build(name, classes=10).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
        batches = data.batches(self.model.image, batch=recipe.batch, train=recipe.augment)
        self.batches = [pair for pair, _ in zip(batches, range(8))]

    def steps(self, count: int) -> None:
        for i in range(count):
            images, labels = self.batches[i % len(self.batches)]
            torch.nn.functional.cross_entropy(self.model(images), labels, label_smoothing=0.1).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def ours(name: str, epochs: float) -> None:
    """A short recipe with rising resolution; prints the test accuracy now and then."""
    train, test = (sl.dataset("cifar10", split=split) for split in ("train", "test"))
    family = sl.recipes.laptop_bit if name.startswith("bit") else sl.recipes.laptop_vit
    recipe = replace(family("cifar10"), epochs=epochs, sizes=((0, 16), (0.4, 24), (0.75, 32)))
    every = max(1, recipe.total_steps(len(train)) // 8)
    with tempfile.TemporaryDirectory() as folder:
        sl.fit(sl.build(name, classes=10), train, recipe, out=Path(folder) / "run", evals=[(every, told(test))])


def told(test: sl.Dataset):
    def tell(model) -> dict[str, float]:
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in test.batches(model.image, batch=500))
        print(right / len(test), flush=True)
        return {}

    return torch.inference_mode()(tell)


def peer(name: str, epochs: float) -> None:
    """timm's train.py with its defaults (1.0.x), on its own transforms, loader, optimizer and scheduler.

    SGD 0.9 at 0.1 per 256, decay 2e-5, cosine over 300 epochs with five of warm-up, smoothing 0.1, random crops of 8 to
    100 %, color jitter 0.4. The module is ours, the loader has two processes.
    """
    importlib.import_module("tests.peers")  # declares what timm's import of torchvision misses beside the CPU build
    timm_data, timm_optim, timm_scheduler = (
        importlib.import_module(f"timm.{m}") for m in ("data", "optim", "scheduler")
    )
    train, test = (sl.dataset("cifar10", split=split) for split in ("train", "test"))

    class ImageSource(torch.utils.data.Dataset):
        transform = None

        def __len__(self):
            return len(train)

        def __getitem__(self, index):
            pixels, label = train[index]
            return self.transform(Image.fromarray(pixels)), label

    model = sl.build(name, classes=10)
    how = {"is_training": True, "use_prefetcher": False, "num_workers": 2, "interpolation": "random", "hflip": 0.5}
    how |= {"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3), "color_jitter": 0.4}
    how |= {"mean": model.image.mean, "std": model.image.std}
    loader = timm_data.create_loader(ImageSource(), (3, 32, 32), 128, **how)
    optimizer = timm_optim.create_optimizer_v2(model, opt="sgd", lr=0.1 * 128 / 256, momentum=0.9, weight_decay=2e-5)
    scheduler, _ = timm_scheduler.create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=300, warmup_epochs=5, warmup_lr=1e-5
    )
    tell = told(test)
    for epoch in range(300):
        scheduler.step(epoch)
        model.train()
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        tell(model)


class Contestant:
    """A process that runs in its turns only, and the accuracies that it told by its own clock."""

    def __init__(self, who: str, name: str, epochs: float):
        command = [sys.executable, "-m", "benchmarks.training", who, name, str(epochs)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                        start_new_session=True)  # fmt: skip
        os.set_blocking(self.process.stdout.fileno(), False)
        self.send(signal.SIGSTOP)
        self.clock, self.told = 0.0, []

    def send(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    @property
    def over(self) -> bool:
        ended = self.process.poll() is not None
        return ended or self.clock > BUDGET or any(a >= GOAL for _, a in self.told)

    def turn(self) -> None:
        self.send(signal.SIGCONT)
        start = time.monotonic()
        while time.monotonic() - start < TURN and not self.over:
            time.sleep(0.2)
            for line in self.process.stdout or ():
                self.told.append((self.clock + time.monotonic() - start, float(line)))
        self.clock += time.monotonic() - start
        if self.process.poll() is None:
            self.send(signal.SIGKILL if self.over else signal.SIGSTOP)

    def reached(self) -> float | None:
        return next((t for t, a in self.told if a >= GOAL), None)


def sixty(name: str = "bit-nano", epochs: float = 4.0) -> dict:
    """Both in turns until each has reached the goal or spent its budget."""
    both = {"ours": Contestant("ours", name, epochs), "timm": Contestant("peer", name, 300)}
    while not all(c.over for c in both.values()):
        for contestant in both.values():
            if not contestant.over:
                contestant.turn()
    times = {who: c.reached() for who, c in both.items()}
    if times["ours"] and (times["timm"] or both["timm"].clock > BUDGET):
        ratio = (times["timm"] or both["timm"].clock) / times["ours"]
        print(f"{name} to {GOAL:.0%}: ours {times['ours']:.0f} s, timm {times['timm'] or 'not within'} "
              f"{'' if times['timm'] else round(both['timm'].clock)} s: {ratio:.2f}x")  # fmt: skip
    return {"model": name, "seconds": times, "told": {who: c.told for who, c in both.items()}}


def main(what: str, *words: str) -> None:
    match what:
        case "ours" | "peer":
            torch.set_num_threads(2)
            {"ours": ours, "peer": peer}[what](words[0], float(words[1]))
        case "loop":
            found = {name: loop_overhead(name) for name in words or ("vit-nano4", "vit-micro4", "bit-nano")}
            for name, row in found.items():
                speed = f"{row['images_per_second']:,.0f} images/s, {row['of_matmul_speed']:.2f} of matmul speed"
                print(f"{name:<12} loop {row['overhead']:+.1%} over forward, backward, step; {speed}")
            save("training-loop", found)
        case "sixty":
            name = words[0] if words else "bit-nano"
            save(f"training-sixty-{name}", sixty(name, float(words[1]) if len(words) > 1 else 4.0))
        case _:
            raise SystemExit("python -m benchmarks.training loop | sixty [model] [epochs]")


if __name__ == "__main__":
    main(*sys.argv[1:] or ("loop",))
