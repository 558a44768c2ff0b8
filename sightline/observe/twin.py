"""The untrained twin of a model: the same architecture with initial values."""

import copy
from dataclasses import replace

import torch
from torch import nn

from sightline.data.draws import hash_key
from sightline.observe.model import ObservedModel, place

TOKEN_STD = 0.02  # of class tokens and position embeddings, as ViT, DeiT and timm initialize them


def untrained(s: ObservedModel, *, seed: int = 0, number: int = 0) -> ObservedModel:
    """The same architecture, initialized as before training; what it shows, training did not teach.

    A model of Sightline's is initialized by its own rules. Of another library's, every module that can reset itself
    does; parameters outside of such modules are tokens and position embeddings, drawn from a normal distribution, and
    scales (vectors), which keep their values. Twins of two models of one architecture need different numbers.
    """
    device, dtype = place(s.model)
    model = copy.deepcopy(s.model).to(device="cpu", dtype=torch.float32)
    key = hash_key(seed, "untrained", number) >> 1
    initialize = getattr(model, "initialize", None)
    if callable(initialize):
        initialize(torch.Generator().manual_seed(key))
    else:
        reset(model, key)
    return replace(s, model=model.to(device=device, dtype=dtype), given_name=f"{s.name}, untrained")


def reset(model: nn.Module, key: int) -> None:
    """Initial values by the modules' own rules, which draw from the global random state: it is put back afterwards."""
    own = {id(p) for m in model.modules() if hasattr(m, "reset_parameters") for p in m.parameters(recurse=False)}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(key)
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()  # type: ignore[operator]
        for p in model.parameters():
            if id(p) not in own and p.ndim > 1:  # a scale has one dimension
                p.normal_(std=TOKEN_STD)
