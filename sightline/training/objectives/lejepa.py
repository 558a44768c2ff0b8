"""LeJEPA (Balestriero & LeCun 2025): one embedding for all views of an image, Gaussian embeddings for all images."""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from sightline.data.draws import Draws, generator
from sightline.models.construct import Model
from sightline.models.layers import xavier_uniform_

DIRECTIONS = 256  # drawn anew in every step
KNOTS, REACH = 17, 3.0  # of the integral over t, from -3 to 3 (the paper's choice)


class LeJEPA(nn.Module):
    """LeJEPA around any model: `forward` returns the loss, `.model` is the model itself.

    The batch holds `views` augmented copies of each image in a row (`augment.repeats` of the recipe). A small MLP, the
    projector, takes what the head would read to an embedding z. The loss is (1 - weight) times the mean squared
    distance of each view's embedding from the mean over the views of its image, plus weight times SIGReg, the distance
    of the embeddings of a batch from a standard normal distribution. There is no teacher and no stop-gradient: it is
    SIGReg that makes the same embedding for every image expensive.

    >>> import numpy as np, torch
    >>> from sightline.data.draws import Draws
    >>> objective = sl.training.LeJEPA(sl.build("bit-nano"), views=2)
    >>> loss = objective(torch.rand(8, 3, 32, 32), None, Draws(0, np.arange(8)))
    >>> loss.shape, bool(loss > 0)
    (torch.Size([]), True)
    """

    whole_batch = True  # the loss of a batch is not the mean over its parts

    def __init__(
        self,
        model: Model,
        *,
        views: int = 4,
        weight: float = 0.05,
        projector: tuple[int, int] = (256, 32),
        seed: int = 0,
    ):
        super().__init__()
        if views < 2:
            raise ValueError(f"LeJEPA compares views of an image; got views={views}: --set augment.repeats=4.")
        if not 0 < weight < 1:
            raise ValueError(
                f"sigreg={weight:g}: expected a share above 0 and below 1, such as 0.05; without SIGReg every image "
                "gets the same embedding."
            )
        hidden, out = projector
        if hidden < 1 or out < 2:
            raise ValueError(f"projector={projector}: expected (hidden width, dimensions of the embedding, 2 or more).")
        self.model, self.views, self.weight = model, views, weight
        like = next(model.parameters())
        layers: list[nn.Module] = []
        for before, after in ((_width(model), hidden), (hidden, hidden)):
            layers += [nn.Linear(before, after), nn.LayerNorm(after), nn.GELU()]
        self.projector = nn.Sequential(*layers, nn.Linear(hidden, out))
        self.initialize(torch.Generator().manual_seed(seed))
        self.projector.to(device=like.device, dtype=like.dtype)

    @torch.no_grad()
    def initialize(self, random: torch.Generator) -> None:
        """Xavier kernels, biases zero."""
        for dense in (m for m in self.projector if isinstance(m, nn.Linear)):
            xavier_uniform_(dense.weight, random)
            nn.init.zeros_(dense.bias)

    @property
    def unused(self) -> tuple[str, ...]:
        """Globs of the model's parameters that this loss does not use."""
        return tuple(f"{name}.*" for name in ("head", "head_distill") if _has_parameters(self.model, name))

    def represent(self, images: Tensor) -> Float[Tensor, "b d"]:
        """What the loss trains of each image: the input of the head."""
        return self.model.features(images).pooled

    def embed(self, features: Float[Tensor, "b d"]) -> Float[Tensor, "b e"]:
        """The embeddings of what `represent` gives."""
        return self.projector(features).float()

    def forward(self, images: Tensor, labels: Tensor | None, draws: Draws) -> Float[Tensor, ""]:
        """The loss of a batch; `labels` are ignored."""
        if len(images) % self.views:
            raise ValueError(f"{len(images)} images are not {self.views} views of each: give a multiple of them.")
        embeddings = self.embed(self.represent(images)).unflatten(0, (-1, self.views))
        directions = draw_directions(embeddings.shape[-1], DIRECTIONS, draws.key).to(embeddings)
        with torch.autocast(images.device.type, enabled=False):  # a statistic in bfloat16 would be mostly rounding
            apart = (embeddings - embeddings.mean(1, keepdim=True)).square().mean()
            return (1 - self.weight) * apart + self.weight * sigreg(embeddings.transpose(0, 1), directions)


def draw_directions(width: int, count: int, key: int) -> Float[Tensor, "d m"]:
    """Unit vectors in random directions; every process draws the same."""
    drawn = generator(key, "directions").standard_normal((width, count))
    return torch.from_numpy(drawn / np.linalg.norm(drawn, axis=0))


def sigreg(
    embeddings: Float[Tensor, "v n d"],
    directions: Float[Tensor, "d m"],
    *,
    knots: int = KNOTS,
    reach: float = REACH,
) -> Float[Tensor, ""]:
    """Sketched isotropic Gaussian regularization: the mean over views and directions of the Epps-Pulley statistic

        n times the integral over t of |mean of exp(i t x) - exp(-t^2 / 2)|^2 exp(-t^2 / 2)

    of the n embeddings projected on one direction, by the trapezoidal rule with `knots` from 0 to `reach`, doubled.
    Under a standard normal distribution its mean is sqrt(2 pi) - sqrt(2 pi / 3), about 1.06, whatever n is; where all
    embeddings are zero it is 0.41 n. Under DDP and FSDP the n embeddings are those of all processes.

    >>> import torch
    >>> random = torch.Generator().manual_seed(0)
    >>> directions = torch.eye(8)
    >>> float(sl.training.sigreg(torch.zeros(1, 100, 8), directions)) > 40
    True
    >>> float(sl.training.sigreg(torch.randn(1, 100, 8, generator=random), directions)) < 3
    True
    """
    t = torch.linspace(0, reach, knots, dtype=embeddings.dtype, device=embeddings.device)
    normal = torch.exp(-t.square() / 2)
    weights = normal * 2 * reach / (knots - 1)
    weights[[0, -1]] /= 2
    angles = (embeddings @ directions)[..., None] * t
    means = torch.stack([angles.cos().mean(1), angles.sin().mean(1)])  # the empirical characteristic function
    count = embeddings.shape[1]
    if dist.is_initialized() and (size := dist.get_world_size()) > 1:
        means, count = _SumOverProcesses.apply(means) / size, count * size
    distance = (means[0] - normal).square() + means[1].square()
    return count * (distance @ weights).mean()


class _SumOverProcesses(torch.autograd.Function):
    """The sum of what all processes hold; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _SumOverProcesses.forward(ctx, grad)


def _width(model: Model) -> int:
    """Dimensions of what the head reads."""
    return int(getattr(model, "encoder_config", model.config).width)


def _has_parameters(model: nn.Module, name: str) -> bool:
    part = getattr(model, name, None)
    return part is not None and any(True for _ in part.parameters())
