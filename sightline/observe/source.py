"""A model by its name or its place, and what to call it: one function for everything that a user may have."""

import importlib.util
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sightline.adoption.recognition import adopt
from sightline.models.construct import build
from sightline.models.variants import config
from sightline.spec import ImageSpec
from sightline.weights.loading import load

log = logging.getLogger("sightline.observe")
UNTELLING = ("model", "pytorch_model")  # files that every run or hub folder has: the folder's name says more


def open_model(source: Any, *, size: int | None = None, untrained: bool = True, **changes: Any) -> Any:
    """A model in evaluation mode from whatever a user has.

    `source` is a file of weights, a run or its folder, a state dict, a published name, "FILE.py:FUNCTION" (a function
    without arguments that returns a module), a module, which is adopted unless it is ready, or the name of a variant.
    A variant is built with random weights and `changes` to its configuration, and a warning is logged; with
    `untrained=False` it is refused. `size` is the side of the images, for variants and for weights.

    >>> sl.observe.open_model("vit-nano4", size=16, classes=5).config.classes
    5
    """
    if isinstance(source, nn.Module):
        return _ready(source)
    if isinstance(source, Mapping):
        return load(source, size=size)
    if not isinstance(source, str | os.PathLike):
        raise ValueError(f"A model is a module, a file of weights, a run or a published name; got a {type(source)}.")
    name = os.fspath(source)
    file, _, function = name.rpartition(":")
    if file.endswith(".py"):
        return _ready(_call(Path(file), function))
    if untrained and not Path(name).exists() and _is_variant(name):
        log.warning("%s is a variant, built untrained with random weights; give weights for a trained model.", name)
        return build(name, **(changes if size is None else {**changes, "size": size})).eval()
    return load(source, size=size)


def _ready(module: Any) -> Any:
    """A module of ours or an adopted one as it is; any other is adopted."""
    return module if isinstance(getattr(module, "image", None), ImageSpec) else adopt(module)


def _call(file: Path, function: str) -> nn.Module:
    """The module that a function of the user's own file returns."""
    spec = importlib.util.spec_from_file_location(file.stem, file) if file.exists() else None
    if spec is None or spec.loader is None:
        raise ValueError(f"There is no {file}; a model as FILE.py:FUNCTION needs a file with a function.")
    log.warning(
        "Running %s, as asked: its code can do whatever you can. The model is what %s() returns.", file, function
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(make := getattr(module, function, None)):
        raise ValueError(f"{file} has no function {function!r}; a model as FILE.py:FUNCTION needs one.")
    if not isinstance(model := make(), nn.Module):
        raise ValueError(f"{function} in {file} returns a {type(model).__name__}; expected a module (torch.nn.Module).")
    return model


def _is_variant(name: str) -> bool:
    try:
        config(name)
    except ValueError:
        return False
    return True


def model_names(sources: Sequence[str]) -> tuple[str, ...]:
    """What to call models in tables and on a page: by published name or variant, file, run folder or function.

    Where two would have the same name, as many folders are put before it as it takes to tell them apart.

    >>> sl.observe.model_names(["vit-b16.augreg-i21k", "nets.py:small"])
    ('vit-b16.augreg-i21k', 'small')
    """
    parts = [_name_parts(source) for source in sources]
    longest = max(map(len, parts), default=0)
    for length in range(1, longest + 1):
        names = tuple("/".join(p[-length:]) for p in parts)
        if len(set(names)) == len(names):
            return names
    return tuple(f"{p[-1]} ({i})" for i, p in enumerate(parts, 1))  # one model twice


def _name_parts(source: str) -> tuple[str, ...]:
    """The folders of a source and the name that it has in the last of them."""
    file, _, function = source.rpartition(":")
    if file.endswith(".py"):
        return (*Path(file).parts[:-1], Path(file).stem, function)
    path = Path(os.path.abspath(source))
    if not path.exists():
        return (source,)
    folders, is_file = path.parts[:-1], path.is_file()
    return folders if is_file and path.stem in UNTELLING else (*folders, path.stem if is_file else path.name)
