"""Optimizers by name: which parameters learn, how fast, and which of them decay."""

import fnmatch
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.training.recipe import Recipe
from sightline.training.trainable import layer_scales

STATES = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters that share a rate and a decay."""

    names: tuple[str, ...]
    scale: float  # times the recipe's rate
    weight_decay: float


def own_name(name: str) -> str:
    """A parameter's name in the model itself, whatever is wrapped around it."""
    return name.replace("_orig_mod.", "").removeprefix("module.").removeprefix("model.")


def named(module: nn.Module) -> dict[str, nn.Parameter]:
    """All parameters of a task by their own names."""
    return {own_name(name): p for name, p in module.named_parameters()}


def is_kernel(name: str, parameter: Tensor) -> bool:
    """Matrices and filters: what big_vision calls `.*/kernel$`. No tokens, position tables, norms or biases."""
    return parameter.ndim >= 2 and name.endswith("weight")


def learns(name: str, recipe: Recipe) -> bool:
    """Whether the recipe trains a parameter of this name."""
    chosen = not recipe.trained or any(fnmatch.fnmatchcase(name, glob) for glob in recipe.trained)
    return chosen and not any(fnmatch.fnmatchcase(name, glob) for glob in recipe.frozen)


def groups(module: nn.Module, recipe: Recipe) -> list[Group]:
    """Parameter groups of a task. Every glob must match something: a typo would silently train nothing or all."""
    params = named(module)
    for glob in (*recipe.trained, *recipe.frozen, *(g for g, _ in recipe.lr_scale), *recipe.decayed):
        if glob not in ("kernels", "all") and not fnmatch.filter(params, glob):
            raise ValueError(
                f"{glob!r} matches no parameter of the model; they are called {', '.join(list(params)[:6])} ..."
            )
    scales = layer_scales(module.model, recipe.layer_decay) if recipe.layer_decay is not None else {}  # type: ignore[arg-type]
    found: dict[tuple[float, float], list[str]] = {}
    for name, p in params.items():
        if p.requires_grad and learns(name, recipe):
            own = next((float(f) for glob, f in recipe.lr_scale if fnmatch.fnmatchcase(name, glob)), 1.0)
            scale = own * scales.get(name, 1.0)
            found.setdefault((scale, _decay_of(name, p, scale, recipe)), []).append(name)
    if not found:
        raise ValueError("The recipe freezes every parameter, so there is nothing to train: see frozen and trained.")
    return [Group(names=tuple(names), scale=s, weight_decay=d) for (s, d), names in found.items()]


def _decay_of(name: str, parameter: Tensor, scale: float, recipe: Recipe) -> float:
    """The decay as torch takes it, p -= lr * decay * p; big_vision's does not follow the rate, so it is divided."""
    globs = recipe.decayed
    chosen = "all" in globs or ("kernels" in globs and is_kernel(name, parameter))
    if not recipe.weight_decay or not (chosen or any(fnmatch.fnmatchcase(name, glob) for glob in globs)):
        return 0.0
    if recipe.decay_rule == "schedule" and recipe.lr * scale:
        return float(recipe.weight_decay) / (float(recipe.lr) * scale)
    return float(recipe.weight_decay)


def optimizer(module: nn.Module, recipe: Recipe, *, fused: bool = True) -> torch.optim.Optimizer:
    """SGD with momentum or AdamW over the recipe's groups, its state there from the start.

    SGD's weight decay goes into the gradient (L2), as the BiT paper trains; AdamW's is decoupled from it.
    """
    params = named(module)
    parts = groups(module, recipe)
    chosen = {name for part in parts for name in part.names}
    for name, p in params.items():
        p.requires_grad_(name in chosen)
    listed = [
        {"params": [params[n] for n in g.names], "scale": g.scale, "weight_decay": g.weight_decay, "names": g.names}
        for g in parts
    ]
    made: torch.optim.Optimizer
    if recipe.optimizer == "adamw":
        made = torch.optim.AdamW(listed, lr=float(recipe.lr), betas=recipe.betas, eps=1e-8, fused=fused)
    else:
        made = torch.optim.SGD(listed, lr=float(recipe.lr), momentum=float(recipe.momentum), fused=fused)
    for p in (p for group in made.param_groups for p in group["params"]):
        made.state[p] = {key: torch.zeros_like(p) for key in STATES[recipe.optimizer]}
        if recipe.optimizer == "adamw":
            made.state[p]["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
    return made


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the next step, times each group's scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


@torch.no_grad()
def norm(tensors: list[Tensor]) -> Tensor:
    """Euclidean norm of all tensors together; of sharded ones, of the whole."""
    if not tensors:
        return torch.zeros(())
    total = torch.nn.utils.get_total_norm(tensors, foreach=None)
    return total.full_tensor() if hasattr(total, "full_tensor") else total


class Average:
    """Polyak average of a model's parameters: average = keep * average + (1 - keep) * parameter, after each step."""

    def __init__(self, model: nn.Module, keep: float):
        self.keep = keep
        self.values = {own_name(n): p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, params: Mapping[str, Tensor]) -> None:
        values = list(self.values.values())
        torch._foreach_lerp_(values, [params[n].detach() for n in self.values], 1 - self.keep)

    @contextmanager
    def in_place_of(self, params: Mapping[str, nn.Parameter]) -> Iterator[None]:
        """The model holds the average meanwhile."""
        self._swap(params)
        try:
            yield
        finally:
            self._swap(params)

    @torch.no_grad()
    def _swap(self, params: Mapping[str, nn.Parameter]) -> None:
        for name, value in self.values.items():
            kept = params[name].detach().clone()
            params[name].copy_(value)
            value.copy_(kept)
