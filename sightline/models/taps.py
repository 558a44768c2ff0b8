"""Record tensors by module path: one model, observed, never a second "hooked" copy of it."""

import difflib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class Tap(nn.Module):
    """A named point in the computation: it returns its input unchanged and has no state."""

    @property
    def watched(self) -> bool:
        """Whether it is being recorded: only then do layers compute what the fast path skips (attention weights)."""
        return bool(self._forward_hooks)

    def forward(self, x: Tensor) -> Tensor:
        return x


def is_watched(module: nn.Module) -> bool:
    """Whether this module or one inside it has hooks, from `record` or from elsewhere."""
    return any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in module.modules()
    )


def paths(model: nn.Module, pattern: str) -> list[str]:
    """Module paths that match a glob, in the order of the model; `*` matches within one component, `**` across dots.

    Bare containers (ModuleList) have no output and are left out.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> paths(model, "blocks.[01].attn.probs")
    ['blocks.0.attn.probs', 'blocks.1.attn.probs']
    """
    return _matching(_runnable(model), pattern)


def _runnable(model: nn.Module) -> dict[str, nn.Module]:
    """Every submodule that has an output, by path."""
    found = {name: m for name, m in model.named_modules() if type(m).forward is not nn.Module.forward}
    return {name: m for name, m in found.items() if name}


def _matching(runnable: dict[str, nn.Module], pattern: str) -> list[str]:
    if pattern in runnable:  # a plain path, the common case
        return [pattern]
    matcher = re.compile(_regex(pattern))
    return [name for name in runnable if matcher.fullmatch(name)]


def _regex(pattern: str) -> str:
    """Glob to regular expression, character by character; brackets are kept as character classes."""
    pieces = re.findall(r"\*\*|\*|\?|\[[^\]]*\]|.", pattern)
    special = {"**": r".*", "*": r"[^.]*", "?": r"[^.]"}
    is_class = re.compile(r"\[.+\]")
    return "".join(special.get(p) or (p.replace("[!", "[^") if is_class.fullmatch(p) else re.escape(p)) for p in pieces)


@contextmanager
def record(
    model: nn.Module, *patterns: str, keep: Callable[[str, Tensor], Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Record the outputs of the modules at these paths while the context is open.

    The tape maps each path to the output of the latest call. If `keep` is given, `keep(path, tensor)` is called inside
    the hook and its return value is stored instead: reduce there to save memory. Gradients flow through recorded
    tensors. A pattern that matches nothing, or a module that never ran (a compiled model runs none of them), raises
    ValueError. The hooks are always removed.

    >>> import torch
    >>> model = sl.build("vit-nano4", classes=10)
    >>> with sl.record(model, "blocks.*.attn.probs") as tape:
    ...     logits = model(torch.zeros(1, 3, 32, 32))
    >>> tape["blocks.5.attn.probs"].shape
    torch.Size([1, 4, 65, 65])
    """
    modules = _runnable(model)
    names = _expand(model, modules, patterns)
    tape: dict[str, Any] = {}

    def hook(name: str) -> Callable[..., None]:
        def store(module: nn.Module, inputs: Any, output: Any) -> None:
            value = first_tensor(name, output)
            tape[name] = value if keep is None else keep(name, value)

        return store

    handles = []
    try:
        for name in names:
            handles.append(modules[name].register_forward_hook(hook(name)))
        yield tape
    finally:
        for handle in handles:
            handle.remove()
    silent = [name for name in names if name not in tape]
    if silent:
        raise ValueError(
            f"Nothing was recorded at {', '.join(silent[:4])}{' ...' if len(silent) > 4 else ''}: the module did not "
            "run. Call the model inside the context, and record the plain model, not a compiled one."
        )


def _expand(model: nn.Module, runnable: dict[str, nn.Module], patterns: tuple[str, ...]) -> list[str]:
    if not patterns:
        raise ValueError('record needs at least one module path, such as "blocks.*.attn.probs".')
    names: dict[str, None] = {}
    for pattern in patterns:
        found = _matching(runnable, pattern)
        if not found:
            close = difflib.get_close_matches(pattern.replace("*", "0"), runnable, n=3, cutoff=0.3)
            raise ValueError(
                f"No module of {type(model).__name__} matches {pattern!r}. Closest: {', '.join(close) or 'none'}."
            )
        names.update(dict.fromkeys(found))
    return list(names)


def first_tensor(name: str, output: Any) -> Tensor:
    """The first tensor of an output: models of other libraries return tuples and dataclass-like dicts."""
    if isinstance(output, Tensor):
        return output
    parts = output.values() if hasattr(output, "values") else output if isinstance(output, tuple | list) else ()
    for part in parts:
        if isinstance(part, Tensor):
            return part
    raise ValueError(f"The output of {name} is a {type(output).__name__} without a tensor: record a module inside it.")
