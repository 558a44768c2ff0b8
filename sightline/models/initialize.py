"""Initial values from an explicit random generator, by the rules of the papers' JAX code."""

import math

import torch
from torch import Tensor, nn


def xavier_uniform_(matrix: Tensor, generator: torch.Generator) -> None:
    """Uniform within sqrt(6 / (fan in + fan out)) of a dense kernel."""
    nn.init.xavier_uniform_(matrix, generator=generator)


def lecun_normal_(kernel: Tensor, generator: torch.Generator) -> None:
    """Normal, cut at two standard deviations and rescaled so that its variance is 1 / fan in."""
    fan_in = kernel[0].numel()
    std = math.sqrt(1 / fan_in) / 0.87962566103423978  # std of a unit normal cut at +-2
    nn.init.trunc_normal_(kernel, std=std, a=-2 * std, b=2 * std, generator=generator)
