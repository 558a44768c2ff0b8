"""The runtime check of the tests: shapes in signatures, and nothing else (plain types are the type checker's job)."""

import dataclasses
import functools
import typing
from importlib.machinery import SourceFileLoader

import jaxtyping
from beartype import beartype
from jaxtyping import AbstractArray
from jaxtyping._import_hook import _JaxtypingLoader


def _is_shape(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_is_shape(part) for part in typing.get_args(hint))


def check(function):
    """beartype on those annotations that speak of arrays: a user's mistake must reach our own message."""
    hints = getattr(function, "__annotations__", {})
    function.__annotations__ = {name: hint for name, hint in hints.items() if _is_shape(hint)}
    return beartype(function)


def has_shapes(function_or_class) -> bool:
    """Whether a signature speaks of arrays, or is still text, which jaxtyping evaluates."""
    if isinstance(function_or_class, type) and not dataclasses.is_dataclass(function_or_class):
        return False  # jaxtyping looks at the generated `__init__` of dataclasses only
    hints = getattr(function_or_class, "__annotations__", {}).values()
    return any(isinstance(hint, str) or _is_shape(hint) for hint in hints)


def check_only_shapes() -> None:
    """Let jaxtyping's import hook wrap the functions that have a shape to check, one in fifteen, and leave the others.

    Around every call of every function its wrapper costs a quarter of the suite. Files that do not mention jaxtyping,
    eight of nine, have no shapes: they are compiled as they are.
    """
    whole = jaxtyping.jaxtyped

    @functools.wraps(whole)
    def jaxtyped(*given, **options):
        if given:
            return whole(*given, **options)
        return lambda thing: whole(thing, **options) if has_shapes(thing) else thing

    rewrite = _JaxtypingLoader.source_to_code

    def source_to_code(loader, data, path, **options):
        has_any = b"jaxtyping" in data
        return (rewrite if has_any else SourceFileLoader.source_to_code)(loader, data, path, **options)

    jaxtyping.jaxtyped = jaxtyped
    _JaxtypingLoader.source_to_code = source_to_code
