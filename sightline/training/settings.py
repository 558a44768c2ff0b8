"""Settings of the form `name=value` for any frozen record, checked against its annotations."""

import ast
import difflib
import types
import typing
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

T = TypeVar("T")
LIST = "a list such as "


def apply_settings(record: T, settings: Iterable[str]) -> T:
    """A copy of a frozen record with `name=value` settings, each checked against the annotation of its field.

    >>> sl.training.apply_settings(sl.models.config("vit-nano4"), ["depth=2", "pool=gap"]).depth
    2
    """
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"Settings are name=value, such as lr=0.01; got {setting!r}.")
        record = _apply(record, name.strip(), text.strip())
    return record


def _apply(record: T, name: str, text: str) -> T:
    head, _, rest = name.partition(".")
    known = [f.name for f in fields(record)]  # type: ignore[arg-type]
    if head not in known:
        near = difflib.get_close_matches(head, known, n=3, cutoff=0.5) or known
        raise ValueError(f"{type(record).__name__} has no field {head!r}; did you mean {', '.join(near)}?")
    if rest:
        inner = getattr(record, head)
        if not is_dataclass(inner):
            raise ValueError(f"{head} is a single value; --set {head}=..., not {name}.")
        return replace(record, **{head: _apply(inner, rest, text)})  # type: ignore[type-var]
    value = parse_value(text, typing.get_type_hints(type(record))[head], name)
    other = getattr(record, "EXCLUSIVE", {}).get(head)
    cleared: dict[str, Any] = {other: None} if other and value is not None else {}
    return replace(record, **{head: value}, **cleared)  # type: ignore[type-var]


def parse_value(text: str, hint: Any, name: str) -> Any:
    """A word of the command line, converted to the annotated type."""
    value: Any = None if text.lower() in ("none", "off") else _literal(text)
    if not matches_type(value, hint):
        listed = (value,) if isinstance(value, str | int | float) else value
        value = listed if matches_type(listed, hint) else value
    if not matches_type(value, hint):
        raise ValueError(f"{name} is {describe_type(hint)}; got {text!r}.")
    return value


def _literal(text: str) -> Any:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def matches_type(value: Any, hint: Any) -> bool:
    """Whether a value has the annotated type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(matches_type(value, one) for one in args)
    if origin is Literal:
        return isinstance(value, str) and value in args
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if args[-1] is ...:
            return all(matches_type(v, args[0]) for v in value)
        return len(args) == len(value) and all(matches_type(v, a) for v, a in zip(value, args))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is hint


def describe_type(hint: Any) -> str:
    """An annotation in plain words."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        words = dict.fromkeys(describe_type(a) for a in args)
        if "a number" in words:
            words.pop("a whole number", None)
        return " or ".join(words)
    if origin is Literal:
        return f"one of {', '.join(args)}"
    if origin is tuple:
        inside = [describe_type(a).removeprefix(LIST) if a is not ... else "..." for a in args]
        return f"{LIST}({', '.join(inside)})"
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", type(None): "none"}
    return plain.get(hint, getattr(hint, "__name__", str(hint)))
