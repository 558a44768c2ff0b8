"""Options that several verbs share, and the types of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
FOLDER = click.Path(file_okay=False)


def combine_options(*options: Decorator) -> Decorator:
    """Combine options into one decorator, in the order of the help."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


class Numbers(click.ParamType):
    """Whole numbers separated by commas; also "all" if the option allows it."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not parts or not all(part.isdecimal() or part == "all" for part in parts):
            self.fail(f"expected whole numbers such as 1,5,10; got {value!r}.", param, ctx)
        return tuple(part if part == "all" else int(part) for part in parts)


class Words(click.ParamType):
    """Words separated by commas."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        return tuple(part.strip() for part in value.split(",") if part.strip())


class Penalty(click.ParamType):
    """A number, or the word sweep."""

    name = "number|sweep"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        try:
            return "sweep" if value == "sweep" else float(value)
        except ValueError:
            self.fail(f"expected a number or sweep; got {value!r}.", param, ctx)


class Size(click.ParamType):
    """A side in pixels, or HEIGHTxWIDTH."""

    name = "pixels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | tuple[int, int]:
        sides = str(value).lower().split("x")
        if len(sides) > 2 or not all(side.strip().isdigit() for side in sides):
            self.fail(f"expected a number of pixels or HEIGHTxWIDTH; got {value!r}. Try --size 384.", param, ctx)
        numbers = [int(side) for side in sides]
        return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


batch_option = click.option("--batch", default=64, show_default=True, help="Images per batch.")
workers_option = click.option("--workers", default=0, show_default=True, help="Number of processes that decode images.")
save_option = click.option("--save", type=click.Path(dir_okay=False), help="Save the result to this file (.npz).")
num_option = click.option(
    "--num", type=int, help="Number of images, drawn at random; by default all, and 2000 of scenes/NAME."
)
size_option = click.option("--size", type=int, help="Image size in pixels; position embeddings are resampled to it.")
source_split_option = click.option("--split", help="Split of DATA; by default test, else val, else everything.")
held_out_option = click.option("--split", help="Split to evaluate on; by default test, else val, else everything.")
