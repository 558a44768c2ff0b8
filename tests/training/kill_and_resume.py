"""Train in a child process, kill it, resume; run by test_never_lost.py in a process of its own, which may fork."""

import hashlib
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

import sightline as sl

torch.set_num_threads(1)
ROOT, KILLS = Path(sys.argv[1]), int(sys.argv[2])


def train(out: Path, workers: int) -> None:
    data, val = sl.dataset("scenes/shape", num=96, size=16).split(0.75)
    model = sl.build("vit-nano4", classes=len(data.classes), size=16, depth=2, dropout=0.1, drop_path=0.1)
    recipe = sl.Recipe(
        **{"lr": 1e-3, "batch": 16, "micro": 8, "steps": 40, "warmup": 4, "clip": 1.0, "ema": 0.9, "weight_decay": 0.1},
        **{"save_every": 3, "eval_every": 5, "log_every": 1, "augment": sl.data.Augment(mixup=0.2)},
        **{"loss": "sigmoid", "head_bias": -2.3},  # set at the very start, and only there
    )
    sl.fit(model, data, recipe, val=val, out=out, workers=workers)


def deadly(name: str, count: int) -> None:
    """os.fsync or os.replace kill the process when they are called the so-manieth time: inside a write."""
    real, seen = getattr(os, name), []

    def call(*args, **settings):
        seen.append(name)
        if len(seen) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **settings)

    setattr(os, name, call)


def attempt(out: Path, *, workers: int = 0, trap: tuple[str, int] | None = None, delay: float | None = None) -> int:
    child = os.fork()
    if child == 0:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (until the child dies)
        try:
            if trap:
                deadly(*trap)
            train(out, workers)
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            os._exit(1)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)  # a child that has ended stays known until it is waited for
    return os.waitpid(child, 0)[1]


def outcome(out: Path) -> tuple[str, list]:
    rows = [{k: r[k] for k in ("step", "train/loss", "val/loss", "val/accuracy") if k in r} for r in sl.Run(out).rows()]
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(), rows


def main() -> None:
    begun = time.monotonic()
    assert attempt(ROOT / "whole") == 0
    length, expected = time.monotonic() - begun, outcome(ROOT / "whole")
    for count in (1, 2):  # the first checkpoint: its weights, its state
        assert os.WIFSIGNALED(attempt(ROOT / "first", trap=("fsync", count)))
        assert (ROOT / "first/state").is_dir() == (count == 2)
        assert attempt(ROOT / "first") == 0
        assert outcome(ROOT / "first") == expected
        shutil.rmtree(ROOT / "first")
    chance, killed = random.Random(0), 0
    while killed < KILLS:
        inside = chance.random() < 0.5
        trap = (chance.choice(["fsync", "replace"]), chance.randint(1, 4)) if inside else None
        delay = None if inside else chance.uniform(0.05, length / 2)
        status = attempt(ROOT / "killed", workers=chance.choice([0, 0, 1, 2]), trap=trap, delay=delay)
        if os.WIFSIGNALED(status):
            killed += 1
            continue
        assert status == 0, "the run failed by itself"
        assert outcome(ROOT / "killed") == expected  # it came to its end between two kills: begin anew
        shutil.rmtree(ROOT / "killed")
    assert attempt(ROOT / "killed") == 0
    assert outcome(ROOT / "killed") == expected
    print(f"{killed} kills, the same bytes")


main()
