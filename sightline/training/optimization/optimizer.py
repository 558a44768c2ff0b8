"""Parameter groups and optimizers: which parameters are trained, at what rate, and with which decay."""

import fnmatch
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.training.optimization.layers import block_paths, layer_scales
from sightline.training.optimization.muon import Muon
from sightline.training.recipe import Recipe

ADAMW_MOMENTS, MOMENTUM = ("exp_avg", "exp_avg_sq"), ("momentum_buffer",)
SLOW, BACK = "slow", 0.5  # Lookahead's weights, and how far they follow (Zhang et al. 2019, their usual alpha)


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters that share a learning rate and a weight decay."""

    names: tuple[str, ...]
    scale: float  # times the recipe's rate
    weight_decay: float
    orthogonal: bool = False  # takes Muon's step


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
    matrices = hidden_matrices(objective.model) if recipe.optimizer == "muon" else frozenset()  # type: ignore[arg-type]
    groups: dict[tuple[float, float, bool], list[str]] = {}
    for name, p in params.items():
        if p.requires_grad and is_trained(name, recipe):
            factor = next((float(f) for glob, f in recipe.lr_scale if fnmatch.fnmatchcase(name, glob)), 1.0)
            scale = factor * scales.get(name, 1.0)
            key = (scale, _weight_decay(name, p, scale, recipe), name in matrices)
            groups.setdefault(key, []).append(name)
    if not groups:
        raise ValueError("The recipe freezes every parameter, so there is nothing to train: see frozen and trained.")
    if recipe.optimizer == "muon" and not any(orthogonal for *_, orthogonal in groups):
        raise ValueError(
            "Muon orthogonalizes the matrices of the blocks, and the recipe trains none of them: "
            "--set optimizer=adamw, or see frozen and trained."
        )
    return [
        ParameterGroup(names=tuple(names), scale=s, weight_decay=d, orthogonal=o) for (s, d, o), names in groups.items()
    ]


def hidden_matrices(model: nn.Module) -> frozenset[str]:
    """The kernels inside encoder blocks and residual units: not those that read pixels or give logits."""
    inside = tuple(f"{path}." for path in block_paths(model))
    return frozenset(n for n, p in model.named_parameters() if n.startswith(inside) and is_kernel(n, p))


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
    """The recipe's optimizer over its parameter groups, with its state allocated from the start.

    SGD's weight decay is added to the gradient (L2), as in the BiT paper; that of AdamW and Muon is decoupled.
    """
    params = parameters_by_name(objective)
    groups = parameter_groups(objective, recipe)
    trained = {name for group in groups for name in group.names}
    for name, p in params.items():
        p.requires_grad_(name in trained)
    listed = [{**vars(g), "params": [params[n] for n in g.names]} for g in groups]
    optimizer: torch.optim.Optimizer
    lr, momentum = float(recipe.lr), float(recipe.momentum)
    match recipe.optimizer:
        case "adamw":
            optimizer = torch.optim.AdamW(listed, lr=lr, betas=recipe.betas, eps=1e-8, fused=fused)
        case "muon":
            optimizer = Muon(listed, lr=lr, momentum=momentum, betas=recipe.betas, fused=fused)
        case "sgd":
            optimizer = torch.optim.SGD(listed, lr=lr, momentum=momentum, fused=fused)
    for group in optimizer.param_groups:
        for p in group["params"]:
            optimizer.state[p] = _initial_state(p, adam=recipe.optimizer != "sgd" and not group["orthogonal"])
            if recipe.lookahead is not None:
                optimizer.state[p][SLOW] = p.detach().clone()
    return optimizer


@torch.no_grad()
def look_back(optimizer: torch.optim.Optimizer) -> None:
    """Lookahead: the slow weights go half of the way to the weights, which continue from there."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.copy_(optimizer.state[p][SLOW].lerp_(p, BACK))


def _initial_state(parameter: Tensor, *, adam: bool) -> dict[str, Tensor]:
    state = {key: torch.zeros_like(parameter) for key in (ADAMW_MOMENTS if adam else MOMENTUM)}
    return state | ({"step": torch.zeros((), dtype=torch.float32, device=parameter.device)} if adam else {})


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
