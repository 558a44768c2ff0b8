"""Open a model from a name, a path or a module, and name models for tables and pages."""

import importlib.util
import logging
import os
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from sightline.adoption.libraries import from_library
from sightline.adoption.recognition import adopt
from sightline.adoption.wrapper import AdoptionError
from sightline.models.construct import build
from sightline.models.variants import config
from sightline.spec import ImageSpec
from sightline.weights.loading import load
from sightline.weights.published import zoo
from sightline.weights.report import WeightsError

log = logging.getLogger("sightline.observe")
UNTELLING = ("model", "pytorch_model")  # file names that every run or hub folder has: the folder's name says more


def open_model(source: Any, *, size: int | None = None, untrained: bool = True, **changes: Any) -> Any:
    """A model in evaluation mode, from any kind of source.

    `source` is a file of weights, a run or its folder, a state dict, a published name, "FILE.py:FUNCTION" (a function
    without arguments that returns a module), "timm:NAME", "torchvision:NAME[:WEIGHTS]" or "hf:NAME_OR_FOLDER" (with
    their trained weights), a module, which is adopted unless it is ready, or the name of a variant.
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
        raise ValueError(f"A model is a module, a weights file, a run or a published name; got a {type(source)}.")
    name = os.fspath(source)
    file, _, function = name.rpartition(":")
    if file.endswith(".py"):
        return _ready(_call(Path(file), function)).eval()
    if (module := _from_library(name, size)) is not None:
        return module
    if not Path(name).exists() and _is_variant(name):
        if not untrained:
            raise ValueError(_needs_weights(name))
        log.warning("%s is a variant, built untrained with random weights; give weights for a trained model.", name)
        return build(name, **(changes if size is None else {**changes, "size": size})).eval()
    return load(source, size=size)


def _needs_weights(name: str) -> str:
    known = [entry.name for entry in zoo(f"{name}.*")]
    names = f" Weights for it: {', '.join(known)}." if known else " `sightline models --weights` lists trained ones."
    return f"{name} alone is a variant with random weights, and this needs trained ones.{names}"


def _ready(module: Any) -> Any:
    """Our own and adopted models unchanged; any other module is adopted."""
    return module if isinstance(getattr(module, "image", None), ImageSpec) else adopt(module)


def _from_library(name: str, size: int | None) -> Any:
    """A model of another library by name; what is ours as well (a ViT or BiT on the hub) is loaded as ours."""
    if name.startswith("hf:"):
        folder = Path(name.removeprefix("hf:")).expanduser()
        try:
            return load(folder if folder.is_dir() else name, size=size)
        except WeightsError as error:
            return _ready(_adoptable(name, error)).eval()
    module = from_library(name)
    if module is not None and size is not None:
        raise ValueError(f"{name} is used as its library builds it; leave out the size of {size} pixels.")
    return None if module is None else _ready(module).eval()


def _adoptable(name: str, refusal: WeightsError) -> Any:
    """A repository that holds no weights of ours, by transformers; if that fails too, the first reason stands."""
    try:
        return from_library(name)
    except AdoptionError as error:
        raise refusal from error


def _call(file: Path, function: str) -> nn.Module:
    """The module that a function in the user's file returns."""
    if not file.exists():
        raise ValueError(f"There is no {file}; a model as FILE.py:FUNCTION needs a file with a function.")
    module = _run_file(file.resolve(), file.stat().st_mtime_ns)
    if not callable(make := getattr(module, function, None)):
        raise ValueError(f"{file} has no function {function!r}; a model as FILE.py:FUNCTION needs one.")
    try:
        model = make()
    except Exception as error:  # the user's code: of any type
        raise ValueError(_failed(file, error)) from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{function} in {file} must return a module (torch.nn.Module); it returned {model!r:.60}.")
    return model


@cache
def _run_file(file: Path, changed: int) -> Any:
    """The user's file, run once however many of its functions are models; again if it was changed."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} cannot be run as Python.")
    log.warning("Running %s, as asked: its code can do whatever you can.", file)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code: of any type
        raise ValueError(_failed(file, error)) from error
    return module


def _failed(file: Path, error: Exception) -> str:
    """What went wrong in the user's file, and in which of its lines."""
    places = [p.lineno for p in traceback.extract_tb(error.__traceback__) if Path(p.filename) == file.resolve()]
    line = f", line {places[-1]}" if places else ""
    return f"{file.name}{line} failed with {type(error).__name__}: {error}"


def _is_variant(name: str) -> bool:
    try:
        config(name)
    except ValueError:
        return False
    return True


def model_names(sources: Sequence[str]) -> tuple[str, ...]:
    """Display names of models: the published name or variant, file, run folder or function.

    If two would have the same name, as many parent folders are prepended as it takes to distinguish them.

    >>> sl.observe.model_names(["vit-b16.augreg-i21k", "nets.py:small"])
    ('vit-b16.augreg-i21k', 'small')
    """
    parts = [_name_parts(source) for source in sources]
    longest = max(map(len, parts), default=0)
    for length in range(1, longest + 1):
        names = tuple("/".join(p[-length:]) for p in parts)
        if len(set(names)) == len(names):
            return names
    return tuple(f"{p[-1]} ({i})" for i, p in enumerate(parts, 1))  # the same model twice


def _name_parts(source: str) -> tuple[str, ...]:
    """The folders of a source, and its name in the last of them."""
    file, _, function = source.rpartition(":")
    if file.endswith(".py"):
        return (*Path(file).parts[:-1], Path(file).stem, function)
    path = Path(os.path.abspath(source))
    if not path.exists():
        return (source,)
    folders, is_file = path.parts[:-1], path.is_file()
    return folders if is_file and path.stem in UNTELLING else (*folders, path.stem if is_file else path.name)
