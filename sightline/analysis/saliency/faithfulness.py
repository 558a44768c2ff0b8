"""Whether a map tells the truth: deletion and insertion, scrambled weights, and the mass that lies on the object."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.analysis.embeddings import spearman
from sightline.evals.interval import Ends, known_ends, of_mean, over_groups, wilson, without_each
from sightline.observe.model import ObservedModel
from sightline.sharing import digest, shared
from sightline.spec import Result

BLUR = 8  # a blurred image has lost all detail finer than an eighth of its side


def blur(images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """The image without its content: averaged over large cells and spread out again."""
    small = F.adaptive_avg_pool2d(images, (min(BLUR, images.shape[2]), min(BLUR, images.shape[3])))
    for _ in range(2):
        small = F.avg_pool2d(F.pad(small, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return F.interpolate(small, size=images.shape[2:], mode="bilinear")


def curves(
    s: ObservedModel,
    images: Float[Tensor, "b c y x"],
    classes: Int[Tensor, " b"],
    maps: Float[Tensor, "b i j"],
    steps: int = 16,
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """Deletion and insertion: mean probability of the class over `steps` shares of the cells, best first.

    Every curve begins and ends with the whole and the blurred image, and an order is an order, whichever map it comes
    from: what several methods ask for is computed once where analyses share.
    """
    if isinstance(steps, bool) or steps < 1:
        raise ValueError(f"steps is a whole number from 1 up; got {steps!r}.")
    rank = maps.flatten(1).argsort(1, descending=True).argsort(1).view_as(maps)
    key = (s.model, digest(images), digest(classes))
    ends = shared(("whole and blurred", *key), lambda: probabilities(s, (images, blur(images)), classes))
    between = shared(("by rank", *key, digest(rank), steps), lambda: between_ends(s, images, classes, rank, steps))
    deletion, insertion = ends.sum(0) + between
    return deletion / (steps + 1), insertion / (steps + 1)


def between_ends(s: ObservedModel, images: Tensor, classes: Tensor, rank: Tensor, steps: int) -> Float[Tensor, "2 b"]:
    """Sums of the probability in images that are blurred in part: most important cells first, and last."""
    cells, base = rank[0].numel(), blur(images)
    sums = torch.zeros(2, len(images), dtype=torch.float64)
    for step in range(1, steps):
        taken = (rank < round(cells * step / steps)).to(images)[:, None]
        mask = F.interpolate(taken, size=images.shape[2:], mode="nearest")
        mixed = (
            images * (1 - m) + base * m for m in (mask, 1 - mask)
        )  # deletion blurs what is taken, insertion all else
        sums += probabilities(s, mixed, classes)
    return sums


def probabilities(s: ObservedModel, versions: Iterable[Tensor], classes: Tensor) -> Float[Tensor, "v b"]:
    """The probability of each image's class in several versions of the images."""
    found = [s.model(images).softmax(-1).gather(1, classes[:, None])[:, 0].double().cpu() for images in versions]
    return torch.stack(found)


def randomized_copy(model: nn.Module, seed: int = 0) -> nn.Module:
    """The same model with the values of every parameter in random order: same statistics, nothing learned."""
    twin = copy.deepcopy(model)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in twin.parameters():
            order = torch.randperm(p.numel(), generator=random).to(p.device)
            p.copy_(p.flatten()[order].view_as(p))
    return twin


def rank_agreement(maps: Float[Tensor, "b i j"], others: Float[Tensor, "b i j"]) -> Float[Tensor, " b"]:
    """Rank correlation of two maps of each image; NaN where one of them is flat."""
    return torch.tensor([spearman(a.flatten().cpu(), b.flatten().cpu()) for a, b in zip(maps, others)])


@dataclass(frozen=True, kw_only=True)
class ObjectMass(Result):
    """Share of a map's mass that lies on the object, against the object's share of the area (V14).

    >>> import numpy as np
    >>> r = sl.analysis.ObjectMass(title="", caption="", mass=np.array([0.6, 0.4]), area=np.array([0.2, 0.2]))
    >>> r.summary()["mass over area"]
    2.5
    """

    mass: NDArray[np.float64]  # (images,)
    area: NDArray[np.float64]

    def summary(self) -> dict[str, float]:
        return {
            "mass on the object": float(self.mass.mean()),
            "area of the object": float(self.area.mean()),
            "mass over area": float(self.mass.mean() / self.area.mean()),
            "images where mass exceeds area": float((self.mass > self.area).mean()),
        }

    def intervals(self) -> dict[str, Ends]:
        both = np.stack([self.mass, self.area], 1)
        return known_ends(
            {
                "mass on the object": of_mean(self.mass, least=0.0, most=1.0),
                "area of the object": of_mean(self.area, least=0.0, most=1.0),
                "mass over area": over_groups(lambda x: x[0] / x[1], (both.mean(0), without_each(both)), least=0.0),
                "images where mass exceeds area": wilson(int((self.mass > self.area).sum()), len(self.mass)),
            }
        )


def object_mass(maps: Float[Any, "b i j"], masks: Bool[Any, "b y x"]) -> ObjectMass:
    """How much of each map lies on the object, whose pixels are given by masks.

    >>> import numpy as np
    >>> mask = np.zeros((1, 4, 4), bool); mask[0, :2, :2] = True
    >>> found = sl.analysis.object_mass(np.array([[[1.0, 0.0], [0.0, 0.0]]]), mask)
    >>> found.mass.tolist(), found.area.tolist()
    ([1.0], [0.25])
    """
    m, inside = torch.as_tensor(np.asarray(maps)), torch.as_tensor(np.asarray(masks))
    if m.ndim != 3 or inside.ndim != 3 or len(m) != len(inside):
        raise ValueError(f"Maps (b, i, j) and masks (b, y, x) of the same images; got {m.shape} and {inside.shape}.")
    if not (m.double().sum((1, 2)) > 0).all():
        raise ValueError("A map without any mass lies nowhere.")
    share = F.adaptive_avg_pool2d(inside.double()[:, None], (m.shape[1], m.shape[2]))[
        :, 0
    ]  # of each cell that is object
    mass = (m.double() * share).sum((1, 2)) / m.double().sum((1, 2))
    return ObjectMass(
        title="Mass on the object",
        caption=f"Share of the map on the object's pixels against its share of the area, {len(m)} images.",
        how={"n": len(m)},
        mass=mass.numpy(),
        area=inside.double().mean((1, 2)).numpy(),
    )
