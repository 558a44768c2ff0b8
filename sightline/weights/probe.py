"""The numeric self-check: fixed probe images, computed from their size alone, and a model's outputs for them."""

import copy

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sightline.models import checks
from sightline.models.construct import Model
from sightline.weights.containers.header import Probes
from sightline.weights.report import WeightsError

# How much the outputs may differ on another machine depends on the model. It is estimated by how much they change when
# the images are brightened by `NUDGE`. In float32, for vit-nano4 to vit-b32, bit-r50x1 and r26-vit-s32 at three scales
# of weights, that was 0.5 to 3 times the rounding error against float64; a wrong GELU changed the outputs of the ViTs
# by at least 1.5e-4.
NUDGE = {torch.float64: 1e-14, torch.float32: 1e-6}
FLOOR = {torch.float64: 1e-11, torch.float32: 1e-5}
MARGIN, CEILING = 10.0, 0.2


def make_images(size: tuple[int, int], channels: int = 3) -> Float[Tensor, "3 c y x"]:
    """Three images in [-1, 1]: waves, a checkered disc on a gradient, and noise from a counter. No file, no generator.

    >>> make_images((32, 48)).shape
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
    noise = ((count * 1_103_515_245 + 12_345) // 65_536 % 2_048).double() / 1_023.5 - 1  # an integer congruence
    return torch.stack([waves, disc.expand_as(noise), noise])


@torch.no_grad()
def outputs(model: Model, nudge: float = 0.0) -> dict[str, np.ndarray]:
    """Pooled features and logits of the probe images, in the model's own precision but at least float32.

    Half precision is too coarse to detect a wrong GELU, and on some processors its kernels do not run at all.
    """
    if next(model.parameters()).dtype not in NUDGE:
        model = copy.deepcopy(model).float()
    first = next(model.parameters())
    size = checks.pair(model.config.size)
    batch = (make_images(size, model.config.channels) * (1 + nudge)).to(device=first.device, dtype=first.dtype)
    training = model.training
    model.eval()
    recorded: dict[str, Tensor] = {}
    handle = model.pooled.register_forward_hook(lambda module, inputs, output: recorded.update(pooled=output))
    try:
        logits = model(batch)
    finally:
        handle.remove()
        model.train(training)
    if model.config.classes:
        recorded["logits"] = logits
    return {name: value.cpu().numpy() for name, value in recorded.items()}


def make_probes(model: Model) -> Probes:
    """The probe outputs to save with a model, and a tolerance from its own sensitivity."""
    recorded = outputs(model)
    if not all(np.isfinite(value).all() for value in recorded.values()):
        raise WeightsError("The model's outputs for the probe images are NaN or infinite: its weights are broken.")
    dtype = next(model.parameters()).dtype
    dtype = dtype if dtype in NUDGE else torch.float32
    nudged = outputs(model, NUDGE[dtype])
    change = max(relative_difference(now, recorded[name]) for name, now in nudged.items())
    return Probes(outputs=recorded, tolerance=min(max(MARGIN * change, FLOOR[dtype]), CEILING))


def relative_difference(now: np.ndarray, then: np.ndarray) -> float:
    """The largest difference, relative to the largest value."""
    return float(np.abs(now - then).max(initial=0.0)) / max(float(np.abs(then).max(initial=0.0)), 1e-6)


def replay(model: Model, probes: Probes) -> float:
    """Recompute the probe outputs; returns the largest relative difference, or WeightsError if it is too large."""
    worst = 0.0
    for name, now in outputs(model).items():
        then = probes.outputs.get(name)
        if then is None or then.shape != now.shape:
            raise WeightsError(
                f"The file's probe outputs for {name} do not match its model: damaged; --no-verify skips this check."
            )
        difference = relative_difference(now, then)
        if not difference <= probes.tolerance:
            raise WeightsError(
                f"The model's outputs are not those from when it was saved: {name} of the probe images differ by "
                f"{difference:.1e} of their size, tolerance {probes.tolerance:.0e}. The file or its configuration was "
                "changed; verify=False (--no-verify) loads it anyway."
            )
        worst = max(worst, difference)
    return worst
