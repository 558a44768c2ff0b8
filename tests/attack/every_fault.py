"""Make each write, rename and sync of training, look, report, extract and a study fail, one after the other.

    python -m tests.attack.every_fault [COMMAND ...]        all of them by default; `make attack` runs it

After each fault the same command must end with the same bytes. Prints a table; exits 1 if anything differs.
"""

import logging
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

import sightline as sl
from tests.attack import small_study
from tests.attack.faults import KINDS, Faults, content
from tests.training.tiny import data, model, recipe


def train(out: Path) -> None:
    sl.fit(model(depth=1), data(32)[0], recipe(steps=2, save_every=1), out=out)


def look(out: Path) -> None:
    sl.look(model(depth=1), data(32)[0], out, only=["patch-filters", "feature-pca"], n=8)


def report(out: Path) -> None:
    mass = sl.analysis.ObjectMass(title="Mass", caption="", mass=np.array([0.6, 0.5]), area=np.array([0.2, 0.1]))
    sl.write_report([mass], out)


def extract(out: Path) -> None:
    sl.extract(model(depth=1), data(32)[0], out=out / "features.safetensors", batch=8)


def study(out: Path) -> None:
    small_study.run_here(out)


COMMANDS = {command.__name__: command for command in (train, look, report, extract, study)}


def undisturbed(command, out: Path) -> tuple[dict[str, bytes], list[tuple[str, int]]]:
    """What the command leaves behind, and every place where it may fail."""
    with Faults() as clean:
        command(out)
    return content(out), [(kind, n) for kind in KINDS for n in range(1, clean.calls[kind] + 1)]


def attempt(command, place: tuple[str, int], out: Path, expected: dict[str, bytes]) -> str:
    """What is wrong after a fault there and a second run; nothing, as it should be."""
    try:
        with Faults(place):
            command(out)
        return "the fault went unnoticed"
    except (OSError, ValueError):
        if list(out.rglob("*.partial")):
            return "a partial file is left"
    command(out)
    found = content(out)
    shutil.rmtree(out)
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    return f"other bytes: {', '.join(wrong)}" if wrong else ""


def main(names: list[str]) -> bool:
    """Whether every command survives a fault at every place."""
    logging.disable(logging.WARNING)
    fine = True
    for name in names or COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            expected, places = undisturbed(COMMANDS[name], Path(folder) / "whole")
            wrong = {}
            for place in places:
                if what := attempt(COMMANDS[name], place, Path(folder) / str(len(wrong)), expected):
                    wrong[place] = what
        print(f"{name:8} {len(places):5} faults, {len(wrong)} with another end", flush=True)
        for (kind, n), what in wrong.items():
            print(f"         {kind} {n}: {what}", flush=True)
        fine &= not wrong
    return fine


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:]))
