"""What each rank of test_parallel.py runs: one or more of the functions `run_...` below, by name."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import torch

import sightline as sl
from sightline.training.parallel import join_processes

torch.set_num_threads(1)
ROOT, WHAT, WORLD = Path(sys.argv[1]), sys.argv[2:], int(os.environ["WORLD_SIZE"])
WAYS = ("ddp", "fsdp") if WORLD > 1 else ("ddp",)
MODELS = {"vit": "vit-nano4", "bit": "bit-nano", "shards": "vit-nano4", "masked": "vit-nano4", "muon": "bit-nano",
          "lejepa": "vit-nano4"}  # fmt: skip


def data(kind: str):
    scenes = sl.dataset("scenes/shape", num=101, size=16)
    if kind != "shards":
        return scenes.split(0.75)
    place = ROOT / f"shards-{WORLD}"
    if int(os.environ["RANK"]) == 0 and not place.exists():
        sl.data.shard(scenes, place, per_shard=20)
    join_processes().barrier()
    return sl.data.Shards(place), None


def train(kind: str, parallel: str, out: str, **changes):
    part, val = data(kind)
    small = {"depth": 2} if MODELS[kind].startswith("vit") else {}
    model = sl.build(MODELS[kind], classes=len(part.classes), size=16, **small)
    settings = {"lr": 1e-3, "batch": 16, "steps": 6, "log_every": 1, "eval_every": 2, "save_every": 3, "clip": 1.0,
                "ema": 0.5, "weight_decay": 0.1, "augment": sl.data.Augment(mixup=0.2)}  # fmt: skip
    settings |= {"masked": {"task": "masked"}, "muon": {"optimizer": "muon"}}.get(kind, {})
    if kind == "lejepa":  # in one pass, and without mixup
        settings |= {"task": "lejepa", "augment": sl.data.Augment(repeats=2)}
        changes["micro"] = None
    evals = changes.pop("evals", ())
    recipe = sl.Recipe(**{**settings, **changes})
    return sl.fit(model, part, recipe, val=val, out=ROOT / out, parallel=parallel, evals=evals)  # type: ignore[arg-type]


def stop(_):
    os.kill(os.getpid(), signal.SIGTERM)
    return {}


def poison(model):
    """One process's weights go bad."""
    if int(os.environ["RANK"]) == 1:
        with torch.no_grad():
            model.head.bias[0] = float("nan")
    return {}


def run_all():
    for way in WAYS:
        for each in MODELS:
            train(each, way, f"{way}-{each}-{WORLD}", micro=4 if way == "fsdp" else None)
        with contextlib.suppress(sl.training.Stopped):
            train("vit", way, f"{way}-cut-{WORLD}", evals=((4, stop),))


def run_resume():
    if WORLD == 1:
        train("vit", "ddp", "fsdp-cut-2")
    else:
        train("vit", "fsdp", "ddp-cut-1")


def run_patience():
    for way in WAYS:
        train("vit", way, f"{way}-patience-{WORLD}", steps=20, lr=1e-12, ema=None, patience=2)


def run_again():
    for way in WAYS:
        train("vit", way, f"{way}-whole")
        with contextlib.suppress(sl.training.Stopped):
            train("vit", way, f"{way}-halves", evals=((4, stop),))
        train("vit", way, f"{way}-halves")


def run_poison():
    try:
        quiet = {"log_every": 50, "eval_every": 100, "clip": None, "ema": None}  # nothing asks for norms
        train("vit", "ddp", "poison", steps=20, save_every=3, evals=((4, poison),), **quiet)
    except sl.training.Diverged as error:
        sys.stdout.write(str(error))
        sys.stdout.flush()
        os._exit(2)


def run_long(out="long"):
    try:
        train("vit", "ddp", out, steps=36)
    except ConnectionError as error:  # as the command line ends
        sys.stdout.write(str(error))
        sys.stdout.flush()
        os._exit(1)


def run_whole():
    run_long("whole")


for what in WHAT:
    globals()[f"run_{what}"]()
