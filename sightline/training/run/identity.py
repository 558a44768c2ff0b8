"""What makes a run this run: starting weights, recipe and data, with their fingerprints."""

import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sightline import fingerprints
from sightline.data.datasets import Dataset
from sightline.models.construct import Model
from sightline.spec import from_json, to_json
from sightline.training.recipe import Recipe

PROGRAMS = {"__main__.py": "python -m sightline"}  # as people type what the system calls by a file
MAY_CHANGE = (
    "log_every",
    "save_every",
    "keep_every",
    "tensorboard",
    "track",
    "micro",
    "name",
)  # recipe fields that may differ when a run is resumed


# fields that later versions added, and what they stand for in a record without them
ADDED = {
    "attention": "full",
    "qk_norm": False,
    "unit": "bottleneck",
    "stem": "7x7/2+pool",
    "trivial": False,
    "lookahead": None,
    "sigreg": 0.05,
    "projector": [256, 32],
    "head": None,
    "queries": 50,
    "mask_stride": 4,
    "layout": "plain",
}


def find_difference(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> str:
    """The first field in which two records differ, in words; empty if they are equal."""
    for key in dict.fromkeys((*there, *here)):
        a, b = there.get(key), here.get(key)
        name = f"{prefix}{key}"
        if isinstance(a, dict) and isinstance(b, dict):
            if inner := find_difference(a, b, f"{name}."):
                return inner
        elif a != b and not (prefix == "recipe." and key in MAY_CHANGE):
            what = ": other images, labels or classes" if prefix == "data." and a and b else ""
            return f"{name} is {a} there, {b} here{what}"
    return ""


def comparable(there: Mapping[str, Any], here: Mapping[str, Any]) -> Mapping[str, Any]:
    """`here`, with the fingerprints of `there` if an earlier version recorded them by other rules, and without the
    fields that an earlier version did not have, where they have their defaults."""
    here = without_new_defaults(there, here)
    if there.get("version") == here["version"]:
        return here
    model, weights = here["model"], there.get("model", {}).get("weights")
    return {**here, "data": there.get("data"), "model": {**model, "weights": weights}, "version": there.get("version")}


def without_new_defaults(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
    """`here` without what was added since `there` was written and means what was so before."""
    kept = {k: v for k, v in here.items() if k in there or k not in ADDED or v != ADDED[k]}
    nested = {k: v for k, v in kept.items() if isinstance(v, Mapping) and isinstance(there.get(k), Mapping)}
    return {**kept, **{k: without_new_defaults(there[k], v) for k, v in nested.items()}}


def identity(model: Model, train: Dataset, recipe: Recipe, val: Dataset | None) -> dict[str, Any]:
    """What makes a run this run and no other: starting weights, recipe, data."""
    record = {  # what a user changes comes first, what follows from it (a seed changes the weights) later
        "recipe": asdict(recipe),
        "data": {"train": train.fingerprint(), "val": val.fingerprint() if val is not None else None},
        "model": {"config": asdict(model.config), "image": asdict(model.image), "weights": fingerprint(model)},
        "version": fingerprints.VERSION,
    }
    return from_json(to_json(record))  # as it will be read back


def fingerprint(model: nn.Module) -> str:
    """32 hexadecimal digits of all values of a model, whatever its configuration: a record has that beside it."""
    return fingerprints.of_tensors(model.state_dict())


def environment() -> dict[str, Any]:
    """Versions, machine, commit and command."""
    return {
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "machine": {"system": platform.system(), "processor": platform.machine(), "threads": torch.get_num_threads()},
        "commit": _commit(),
        "command": " ".join([PROGRAMS.get(Path(sys.argv[0]).name, Path(sys.argv[0]).name), *sys.argv[1:]]),
    }


def _commit() -> str | None:
    """The commit of the running code, marked dirty if it was changed since."""
    folder = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()
