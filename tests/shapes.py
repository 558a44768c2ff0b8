"""The runtime check of the tests: shapes in signatures, and nothing else (plain types are the type checker's job)."""

import typing

from beartype import beartype
from jaxtyping import AbstractArray


def _is_shape(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_is_shape(part) for part in typing.get_args(hint))


def check(function):
    """beartype on those annotations that speak of arrays: a user's mistake must reach our own message."""
    hints = getattr(function, "__annotations__", {})
    function.__annotations__ = {name: hint for name, hint in hints.items() if _is_shape(hint)}
    return beartype(function)
