"""Parameter groups and optimizers: which parameters are trained, at what rate, and with which decay."""

import fnmatch
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.training.optimization.layers import layer_scales
from sightline.training.recipe import Recipe

MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters that share a learning rate and a weight decay."""

    names: tuple[str, ...]
    scale: float  # times the recipe's rate
    weight_decay: float


def model_name(name: str) -> str:
    """A parameter's name in the model itself, without the prefixes of what is wrapped around it."""
    return name.replace("_orig_mod.", "").removeprefix("module.").removeprefix("model.")


def parameters_by_name(objective: nn.Module) -> dict[str, nn.Parameter]:
    """All parameters of an objective by their names in the model."""
    return {model_name(name): p for name, p in objective.named_parameters()}


def is_kernel(name: str, parameter: Tensor) -> bool:
    """Matrices and filters: what big_vision calls `.*/kernel$`. No tokens, position tables, norms or biases."""
    return parameter.ndim >= 2 and name.endswith("weight")


def is_trained(name: str, recipe: Recipe) -> bool:
    """Whether the recipe trains a parameter of this name."""
    selected = not recipe.trained or any(fnmatch.fnmatchcase(name, glob) for glob in recipe.trained)
    return selected and not any(fnmatch.fnmatchcase(name, glob) for glob in recipe.frozen)


def parameter_groups(objective: nn.Module, recipe: Recipe) -> list[ParameterGroup]:
    """Parameter groups of an objective. Every glob must match: a typo would silently train nothing, or everything."""
    params = parameters_by_name(objective)
    for glob in (*recipe.trained, *recipe.frozen, *(g for g, _ in recipe.lr_scale), *recipe.decayed):
        if glob not in ("kernels", "all") and not fnmatch.filter(params, glob):
            raise ValueError(
                f"{glob!r} matches no parameter of the model; they are called {', '.join(list(params)[:6])} ..."
            )
    scales = layer_scales(objective.model, recipe.layer_decay) if recipe.layer_decay is not None else {}  # type: ignore[arg-type]
    groups: dict[tuple[float, float], list[str]] = {}
    for name, p in params.items():
        if p.requires_grad and is_trained(name, recipe):
            factor = next((float(f) for glob, f in recipe.lr_scale if fnmatch.fnmatchcase(name, glob)), 1.0)
            scale = factor * scales.get(name, 1.0)
            groups.setdefault((scale, _weight_decay(name, p, scale, recipe)), []).append(name)
    if not groups:
        raise ValueError("The recipe freezes every parameter, so there is nothing to train: see frozen and trained.")
    return [ParameterGroup(names=tuple(names), scale=s, weight_decay=d) for (s, d), names in groups.items()]


def _weight_decay(name: str, parameter: Tensor, scale: float, recipe: Recipe) -> float:
    """The decay as torch takes it, p -= lr * decay * p; big_vision's is independent of the peak rate, so divide."""
    globs = recipe.decayed
    selected = "all" in globs or ("kernels" in globs and is_kernel(name, parameter))
    if not recipe.weight_decay or not (selected or any(fnmatch.fnmatchcase(name, glob) for glob in globs)):
        return 0.0
    if recipe.decay_rule == "schedule" and recipe.lr * scale:
        return float(recipe.weight_decay) / (float(recipe.lr) * scale)
    return float(recipe.weight_decay)


def build_optimizer(objective: nn.Module, recipe: Recipe, *, fused: bool = True) -> torch.optim.Optimizer:
    """SGD with momentum or AdamW over the recipe's parameter groups, with its state allocated from the start.

    SGD's weight decay is added to the gradient (L2), as in the BiT paper; AdamW's is decoupled.
    """
    params = parameters_by_name(objective)
    groups = parameter_groups(objective, recipe)
    trained = {name for group in groups for name in group.names}
    for name, p in params.items():
        p.requires_grad_(name in trained)
    listed = [
        {"params": [params[n] for n in g.names], "scale": g.scale, "weight_decay": g.weight_decay, "names": g.names}
        for g in groups
    ]
    optimizer: torch.optim.Optimizer
    if recipe.optimizer == "adamw":
        optimizer = torch.optim.AdamW(listed, lr=float(recipe.lr), betas=recipe.betas, eps=1e-8, fused=fused)
    else:
        optimizer = torch.optim.SGD(listed, lr=float(recipe.lr), momentum=float(recipe.momentum), fused=fused)
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        optimizer.state[p] = {key: torch.zeros_like(p) for key in MOMENTS[recipe.optimizer]}
        if recipe.optimizer == "adamw":
            optimizer.state[p]["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the next step, times each group's scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


@torch.no_grad()
def total_norm(tensors: list[Tensor]) -> Tensor:
    """Euclidean norm over all tensors together; sharded tensors count in full."""
    if not tensors:
        return torch.zeros(())
    total = torch.nn.utils.get_total_norm(tensors, foreach=None)
    return total.full_tensor() if hasattr(total, "full_tensor") else total
