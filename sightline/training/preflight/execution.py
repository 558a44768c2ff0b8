"""How the steps of a run are executed: compiled or not, in which memory layout and precision, by what pays here."""

import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from sightline.models.bit import BiT
from sightline.models.construct import Model, change
from sightline.models.costs import cost
from sightline.models.vit import ViT
from sightline.training.recipe import Recipe
from sightline.training.run.folder import Run

# Measured on one core (docs/log.md): the least gain of each family, what compiling one image size takes, and how fast a
# core trains small models.
GAIN: dict[type, float] = {ViT: 1.1, BiT: 1.15}
COMPILE_SECONDS = 75
OPERATIONS_PER_SECOND = 40e9
MARGIN = 2  # compiling must save this many times what it takes
CHOSEN = ("compile", "layout", "precision")
MULTIPLY = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def select_execution(
    model: Model, recipe: Recipe, *, images: int, folder: str | Path, asked: Collection[str] = ()
) -> tuple[Recipe, str]:
    """The recipe with `compile` and `layout` chosen, and a sentence that says why; fields in `asked` stay.

    bfloat16, where a recipe has it, becomes float32 on a CPU without instructions for it, which would be slower. A run
    that has begun keeps what it began with: all of these decide bits of its sums. `images` is the number of training
    images. The choice does not depend on what else the machine does, so the same command makes the same run.

    >>> import tempfile
    >>> model, recipe = sl.build("vit-nano4", classes=10), sl.Recipe(lr=1e-3, batch=64, steps=100)
    >>> sl.training.select_execution(model, recipe, images=1000, folder=tempfile.mkdtemp())[1]
    'not compiled: 0.26 core-minutes of training are too few for it to pay off'
    """
    there = _recorded(Run(folder))
    if there is not None:
        kept = {k: there.get(k, getattr(recipe, k)) for k in CHOSEN if k not in asked}
        return replace(recipe, **kept), f"{_describe(kept.get('compile', recipe.compile))}, as the run began"
    on_cpu = next(model.parameters()).device.type == "cpu"
    slow = recipe.precision == "bfloat16" and "precision" not in asked and on_cpu and not computes_bfloat16()
    recipe = replace(recipe, precision="float32") if slow else recipe
    compiled, why = _compile_pays(model, recipe, images)
    if "compile" in asked:
        compiled, why = recipe.compile, "as asked for"
    recipe = replace(recipe, compile=compiled)
    if "layout" not in asked and not compiled and _last_channels_pay(model):
        recipe = replace(recipe, layout="channels-last")
        why += "; channels last, which suits a stem that keeps the resolution"
    if slow:
        why += "; in float32, since this CPU has no instructions for bfloat16"
    return recipe, f"{_describe(compiled)}: {why}"


def find_compiler() -> tuple[str | None, tuple[str, ...]]:
    """The C++ compiler that torch.compile would call on a CPU, or None; and the names that were looked for."""
    names = (os.environ["CXX"],) if "CXX" in os.environ else ("g++", "clang++", "c++", "cl")
    return next((found for found in map(shutil.which, names) if found), None), names


def computes_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 that work."""
    known = (getattr(torch.cpu, f"_is_{name}_supported", bool) for name in ("avx512_bf16", "amx_tile"))
    return any(has() for has in known) and survives_bfloat16()


@cache
def survives_bfloat16() -> bool:
    """Whether a product in bfloat16 ends well. Some systems announce matrix units that they do not let anybody use, and
    the process is killed; so a process of its own tries it."""
    if not getattr(torch.cpu, "_is_amx_tile_supported", bool)():
        return True
    return subprocess.run([sys.executable, "-c", MULTIPLY], capture_output=True).returncode == 0


def core_seconds(model: Model, recipe: Recipe, images: int) -> float:
    """Roughly what the training takes on one core, from its multiply-accumulates."""
    steps = recipe.total_steps(images)
    sizes = recipe.sizes or ((0, recipe.size),)
    until = [*(share for share, _ in sizes[1:]), 1.0]
    macs = sum(
        (end - begin) * cost(change(model.config, **({"size": size} if size else {}))).macs
        for (begin, size), end in zip(sizes, until)
    )
    return float(steps * recipe.batch * 6 * macs / OPERATIONS_PER_SECOND)


def _compile_pays(model: Model, recipe: Recipe, images: int) -> tuple[bool, str]:
    """Whether compiling saves more than it takes, and why or why not."""
    gain, alone = GAIN.get(type(model), 1.0), int(os.environ.get("WORLD_SIZE", 1)) == 1
    if gain == 1 or recipe.task != "classify" or not alone or next(model.parameters()).device.type != "cpu":
        return False, "it was not measured for this kind of run"
    if recipe.precision == "bfloat16":  # measured with a ViT, which gained nothing; with a BiT only in float32
        return False, "in bfloat16 it is not known to pay off"
    seconds = core_seconds(model, recipe, images)
    minutes = f"{seconds / 60:.2g} core-minutes"
    if seconds * (1 - 1 / gain) < MARGIN * COMPILE_SECONDS * max(1, len(recipe.sizes)):
        return False, f"{minutes} of training are too few for it to pay off"
    if find_compiler()[0] is None:
        return False, f"it would pay for {minutes}, and there is no C++ compiler"
    if not _compiler_works():
        return False, f"it would pay for {minutes}, and torch.compile does not work here"
    return True, f"it pays for {minutes} (--set compile=false for the plain code)"


def _compiler_works() -> bool:
    """Whether torch can compile anything here: a compiler alone is not enough, it needs Python's headers, too."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(8))
    except Exception:  # of any kind: a run must not fail by a choice that was made for it
        return False
    finally:
        torch.compiler.reset()
    return True


def _last_channels_pay(model: Model) -> bool:
    """Measured: larger maps than those of bit-nano and bit-basic, whose stems halve the resolution."""
    return isinstance(model, BiT) and model.config.stem == "3x3/1" and next(model.parameters()).device.type == "cpu"


def _recorded(run: Run) -> dict[str, Any] | None:
    """The recipe of a run that has begun."""
    return run.about["identity"]["recipe"] if (run.path / "run.json").exists() else None


def _describe(compiled: Any) -> str:
    return "compiled" if compiled else "not compiled"
