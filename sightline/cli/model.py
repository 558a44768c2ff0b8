"""MODEL on the command line: weights, somebody's own module, or a variant's name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import click

import sightline as sl


def open_model(name: str, size: int | None = None, **changes: Any) -> Any:
    """A file of weights, a run folder, a zoo name, FILE.py:FUNCTION that makes a model, or a variant, untrained."""
    file, _, function = name.rpartition(":")
    if file.endswith(".py"):
        return run_user_file(Path(file), function)
    if not Path(name).exists() and buildable(name):
        click.echo(
            f"note: {name} is a variant, built untrained with random weights; give a weights file for trained ones.",
            err=True,
        )
        return sl.build(name, **(changes if size is None else {**changes, "size": size})).eval()
    return sl.load(name, size=size)


def run_user_file(file: Path, function: str) -> Any:
    """The module that a function of the user's own file returns, adopted unless it is one of ours."""
    spec = importlib.util.spec_from_file_location(file.stem, file) if file.exists() else None
    if spec is None or spec.loader is None:
        raise ValueError(f"There is no {file}; MODEL as FILE.py:FUNCTION wants a file with a function.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(make := getattr(module, function, None)):
        raise ValueError(f"{file} has no function {function!r}; MODEL as FILE.py:FUNCTION wants one without arguments.")
    model = make()
    return model if isinstance(model, sl.models.ViT | sl.models.BiT) else sl.adopt(model)


def display_name(name: str) -> str:
    """What a report calls a model: its name, its file's, its run folder's, or that of the function which makes it."""
    file, _, function = name.rpartition(":")
    if file.endswith(".py"):
        return function
    return name if name in sl.models.names() else Path(name).name.removesuffix(Path(name).suffix) or name


def buildable(name: str) -> bool:
    try:
        sl.models.config(name)
    except ValueError:
        return False
    return True
