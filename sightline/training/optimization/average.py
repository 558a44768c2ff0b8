"""Polyak averaging of the weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sightline.training.optimization.optimizer import model_name


class PolyakAverage:
    """Moving average of a model's parameters: average = decay * average + (1 - decay) * parameter, after each step."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.values = {model_name(n): p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, params: Mapping[str, Tensor]) -> None:
        values = list(self.values.values())
        torch._foreach_lerp_(values, [params[n].detach() for n in self.values], 1 - self.decay)

    @contextmanager
    def swap_into(self, params: Mapping[str, nn.Parameter]) -> Iterator[None]:
        """The model holds the average inside the `with` block."""
        self._swap(params)
        try:
            yield
        finally:
            self._swap(params)

    @torch.no_grad()
    def _swap(self, params: Mapping[str, nn.Parameter]) -> None:
        for name, value in self.values.items():
            held = params[name].detach().clone()
            params[name].copy_(value)
            value.copy_(held)
