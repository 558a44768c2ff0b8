"""The numeric self-check: fixed pictures, made from nothing but their size, and what a model says about them."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sightline.models import checks
from sightline.models.build import Model
from sightline.weights.header import Probes
from sightline.weights.report import WeightsError

# Largest difference that another machine may make, relative to the largest output. Measured between one and two
# threads and between batch sizes: below 3e-6 in float32 for every variant up to vit-l16 and bit-r101x1.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}
PICTURES = 3


def pictures(size: tuple[int, int], channels: int = 3) -> Float[Tensor, "3 c y x"]:
    """Three pictures in [-1, 1]: waves, a chequered disc on a slope, and noise from a counter. No file, no generator.

    >>> pictures((32, 48)).shape
    torch.Size([3, 3, 32, 48])
    """
    y = torch.linspace(-1, 1, size[0], dtype=torch.float64)[:, None]
    x = torch.linspace(-1, 1, size[1], dtype=torch.float64)[None, :]
    c = torch.arange(channels, dtype=torch.float64)[:, None, None]
    waves = torch.sin(3.0 * x * (c + 1) + 2.0 * y) * torch.cos(5.0 * y - c)
    squares = (torch.floor(6 * x) + torch.floor(6 * y)) % 2 * 2 - 1
    disc = torch.where(x**2 + y**2 < 0.5, squares, 0.7 * x - 0.3 * y).expand(channels, -1, -1) * (
        1 - 0.2 * c / channels
    )
    count = torch.arange(channels * size[0] * size[1], dtype=torch.int64).reshape(channels, *size)
    noise = ((count * 1_103_515_245 + 12_345) // 65_536 % 2_048).double() / 1_023.5 - 1  # a linear congruence: integers
    return torch.stack([waves, disc.expand_as(noise), noise])


@torch.no_grad()
def outputs(model: Model) -> dict[str, np.ndarray]:
    """Pooled features and logits of the probe pictures, in the model's own precision."""
    first = next(model.parameters())
    size = checks.pair(model.config.size)
    batch = pictures(size, model.config.channels).to(device=first.device, dtype=first.dtype)
    training = model.training
    model.eval()
    said: dict[str, Tensor] = {}
    handle = model.pooled.register_forward_hook(lambda module, inputs, output: said.update(pooled=output))
    try:
        logits = model(batch)
    finally:
        handle.remove()
        model.train(training)
    if model.config.classes:
        said["logits"] = logits
    exact = torch.float64 if first.dtype == torch.float64 else torch.float32
    return {name: value.to(exact).cpu().numpy() for name, value in said.items()}


def ask(model: Model) -> Probes:
    """The probes to save with a model."""
    said = outputs(model)
    if not all(np.isfinite(value).all() for value in said.values()):
        raise WeightsError("The model puts out NaN or infinite values for the probe pictures: its weights are broken.")
    return Probes(outputs=said, tolerance=TOLERANCE.get(next(model.parameters()).dtype, 1e-4))


def replay(model: Model, probes: Probes) -> float:
    """Ask again and compare: the largest relative difference, or WeightsError where it passes the tolerance."""
    worst = 0.0
    for name, now in outputs(model).items():
        then = probes.outputs.get(name)
        if then is None or then.shape != now.shape:
            raise WeightsError(f"The file's probe outputs for {name} do not fit its model: damaged, or --no-verify.")
        scale = float(np.abs(then).max(initial=0.0))
        difference = float(np.abs(now - then).max(initial=0.0)) / max(scale, 1e-6)
        if not difference <= probes.tolerance:
            raise WeightsError(
                f"The model does not say what it said when it was saved: {name} of the probe pictures differ by "
                f"{difference:.1e} of their size, tolerance {probes.tolerance:.0e}. The file or its configuration was "
                "changed; verify=False (--no-verify) loads it all the same."
            )
        worst = max(worst, difference)
    return worst
