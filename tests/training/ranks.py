"""What test_parallel.py trains, in its own process or in each of several: one or more of the functions `run_...`."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import torch

import sightline as sl
from sightline.training.parallel import join_processes

RANK, WORLD = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
WAYS = ("ddp", "fsdp") if WORLD > 1 else ("ddp",)
# ViTs whose blocks are shards, a ResNet; both optimizers, every task, and images from a folder of shards
MODELS = {"vit": "vit-nano4", "bit-muon": "bit-nano", "masked-shards": "vit-nano4", "lejepa": "vit-nano4"}


def data(kind: str, root: Path):
    scenes = sl.dataset("scenes/shape", num=101, size=16)
    if "shards" not in kind:
        return scenes.split(0.75)
    place = root / f"shards-{WORLD}"
    if RANK == 0 and not place.exists():
        sl.data.shard(scenes, place, per_shard=20)
    join_processes().barrier()
    return sl.data.Shards(place), None


def train(kind: str, parallel: str, out: Path, **changes):
    part, val = data(kind, out.parent)
    small = {"depth": 2} if MODELS[kind].startswith("vit") else {}
    model = sl.build(MODELS[kind], classes=len(part.classes), size=16, **small)
    settings = {"lr": 1e-3, "batch": 16, "steps": 4, "log_every": 1, "eval_every": 2, "save_every": 3, "clip": 1.0,
                "ema": 0.5, "weight_decay": 0.1, "augment": sl.data.Augment(mixup=0.2)}  # fmt: skip
    settings |= {"masked-shards": {"task": "masked"}, "bit-muon": {"optimizer": "muon", "lookahead": 2}}.get(kind, {})
    if kind == "lejepa":  # in one pass, and without mixup
        settings |= {"task": "lejepa", "augment": sl.data.Augment(repeats=2)}
        changes["micro"] = None
    evals = changes.pop("evals", ())
    recipe = sl.Recipe(**{**settings, **changes})
    return sl.fit(model, part, recipe, val=val, out=out, parallel=parallel, evals=evals)  # type: ignore[arg-type]


def stop(_):
    os.kill(os.getpid(), signal.SIGTERM)
    return {}


def poison(model):
    """One process's weights go bad."""
    if RANK == 1:
        with torch.no_grad():
            model.head.bias[0] = float("nan")
    return {}


def die(_):
    """One process is gone."""
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


def run_all(root: Path):
    for way in WAYS:
        for each in MODELS:
            train(each, way, root / f"{way}-{each}-{WORLD}", micro=8 if way == "fsdp" else None)
        with contextlib.suppress(sl.training.Stopped):
            train("vit", way, root / f"{way}-cut-{WORLD}", evals=((2, stop),))


def run_resume(root: Path):
    """What other processes began."""
    if WORLD == 1:
        train("vit", "ddp", root / "fsdp-cut-2")
    else:
        train("vit", "fsdp", root / "ddp-cut-1")


def run_patience(root: Path):
    for way in WAYS:
        train("vit", way, root / f"{way}-patience-{WORLD}", steps=20, lr=1e-12, ema=None, patience=1)


def run_again(root: Path):
    for way in WAYS:
        train("vit", way, root / f"{way}-whole")
        with contextlib.suppress(sl.training.Stopped):
            train("vit", way, root / f"{way}-halves", evals=((2, stop),))
        train("vit", way, root / f"{way}-halves")


def run_poison(root: Path):
    quiet = {"log_every": 50, "eval_every": 100, "clip": None, "ema": None}  # nothing asks for norms
    try:
        train("vit", "ddp", root / "poison", steps=20, save_every=3, evals=((4, poison),), **quiet)
    except sl.training.Diverged as error:
        (root / f"poison-{RANK}.txt").write_text(str(error))


def run_whole(root: Path):
    train("vit", "ddp", root / "long-whole", steps=16)


def run_killed(root: Path):
    try:
        train("vit", "ddp", root / "long-killed", steps=16, evals=((7, die),))
    except ConnectionError as error:  # as the command line ends
        sys.stdout.write(str(error))
        sys.stdout.flush()
        os._exit(1)


def run_after_the_kill(root: Path):
    train("vit", "ddp", root / "long-killed", steps=16)


def main(root: Path, words: tuple[str, ...], place: dict[str, str], said: Path) -> None:
    """A process of its own, as torchrun starts it; what it prints goes to a file."""
    global RANK, WORLD, WAYS
    os.environ |= place
    RANK, WORLD, WAYS = int(place["RANK"]), int(place["WORLD_SIZE"]), ("ddp", "fsdp")
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    for what in words:
        globals()[f"run_{what}"](root)
