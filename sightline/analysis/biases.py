"""Which inductive biases a model has, measured: locality, equivariance, invariance, order.

Equivariant: the output moves along with the input. Invariant: it stays. One of the sources mixes the two up and calls a
CNN equivariant because of max pooling; here convolution is equivariant and pooling partly invariant.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.analysis.equivariance import permute_patches, shift_image, shifted_maps
from sightline.analysis.receptive_fields import field_batches, spatial_layers
from sightline.evals.interval import Ends, known_ends, over_groups, without_each
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.sharing import digest, shared, sharing
from sightline.spec import Result

# component: entities, relations, inductive bias, invariance (Battaglia et al. 2018, table 1)
RELATIONAL_BIASES = {
    "fully connected": ("units", "all-to-all", "weak", "-"),
    "convolutional": ("grid elements", "local", "locality", "spatial translation"),
    "recurrent": ("timesteps", "sequential", "sequentiality", "time translation"),
    "graph network": ("nodes", "edges", "arbitrary", "node, edge permutations"),
}


@dataclass(frozen=True, kw_only=True)
class InductiveBias(Result):
    """What is built into a model, as numbers; errors are relative, 0 means that the property holds exactly.

    >>> r = sl.analysis.InductiveBias(title="", caption="", locality_first=0.9, locality_last=0.2, equivariance=0.0,
    ...                    equivariance_off_grid=0.1, invariance=0.5, permutation=1.0, permutation_pooled=0.7)
    >>> r.summary()["equivariance error"]
    0.0
    >>> r.relational["convolutional"]  # entities, relations, bias, invariance
    ('grid elements', 'local', 'locality', 'spatial translation')
    """

    locality_first: float  # mass of the receptive field of the first block within an eighth of the image's width
    locality_last: float  # the same of the last block
    equivariance: float  # feature map against shifted image, shift of one cell, away from the border
    equivariance_off_grid: float  # the same by half a cell each way, maps compared without moving: 0 is impossible
    invariance: float  # pooled features against shifted image
    permutation: float  # tokens after permuting the patches, against permuted tokens; NaN without patches
    permutation_pooled: float  # pooled features after permuting the patches: 0 where order is not seen
    relational: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(RELATIONAL_BIASES))  # for reference
    per_image: NDArray[np.float64] = field(default_factory=lambda: np.zeros((7, 0, 2)))  # (numbers of the summary,
    # images, 2): mass near the cell and in all; squared error and squared size. NaN for images that were not looked at

    def summary(self) -> dict[str, float]:
        return {
            "locality of the first block": self.locality_first,
            "locality of the last block": self.locality_last,
            "equivariance error": self.equivariance,
            "change of the map by half a cell": self.equivariance_off_grid,
            "invariance error": self.invariance,
            "permutation error of tokens": self.permutation,
            "permutation error of pooled features": self.permutation_pooled,
        }

    def intervals(self) -> dict[str, Ends]:
        found = {}
        for name, each in zip(self.summary(), self.per_image):
            known = each[np.isfinite(each).all(1)]
            ratio = _share if name.startswith("locality") else _root_share
            if len(known):
                found[name] = over_groups(ratio, (known.mean(0), without_each(known)), least=0.0)
        return known_ends(found)


def _share(sums: NDArray) -> float:
    return float(sums[0] / sums[1])


def _root_share(sums: NDArray) -> float:
    return float(np.sqrt(np.maximum(sums[0] / sums[1], 0)))


def inductive_bias(model: Model, data: Data, *, n: int = 16, seed: int = 0) -> InductiveBias:
    """Measure the priors of a model on images: none of the numbers is read off its architecture.

    >>> report = sl.analysis.inductive_bias(sl.build("bit-nano", classes=0), sl.dataset("scenes/shape", num=4,
    ...     size=32), n=4)
    >>> report.locality_first > report.locality_last, report.invariance < report.permutation_pooled
    (True, True)
    """
    s = observe(model)
    source = ImageSource(data=data, batch=n, n=n, seed=seed)
    with evaluation_mode(s), sharing():
        images = torch.cat([b.images[0] for b in source.batches([s])])
        cell = (round(s.patch[0]), round(s.patch[1]))
        half = (max(1, cell[0] // 2), max(1, cell[1] // 2))
        border = min(1, (min(s.grid) - 3) // 2)
        none = torch.full((len(images), 2), torch.nan, dtype=torch.float64)
        wide = min(s.grid) > 2
        moved = squares(*shifted_maps(_maps(s), images, shift=cell, border=max(border, 0))) if wide else none
        off = squares(_maps(s)(shift_image(images, half)), _maps(s)(images))
        stays = squares(_pooled(s)(shift_image(images, cell)), _pooled(s)(images))
        tokens, pooled = permutation_change(s, images, cell, seed) or (none, none)
    near = localities(s, images.detach().clone(), n=min(n, 8), seed=seed)
    each = np.stack([*(pad_images(m, len(images)) for m in near), *(m.numpy() for m in (moved, off, stays))])
    each = np.concatenate([each, np.stack([tokens.numpy(), pooled.numpy()])])
    errors = [_root_share(rows.sum(0)) for rows in each[2:]]
    return InductiveBias(
        title=f"Priors of {s.name}",
        caption=(
            f"Locality, shift and permutation behavior of {s.name}, measured on {len(images)} images; shifts by one "
            f"cell of {cell[0]} x {cell[1]} pixels around the border."
        ),
        how={"n": len(images), "seed": seed, "shift": cell, "border": border},
        about=source.about(s),
        locality_first=_share(near[0].sum(0)),
        locality_last=_share(near[-1].sum(0)),
        equivariance=errors[0],
        equivariance_off_grid=errors[1],
        invariance=errors[2],
        permutation=errors[3],
        permutation_pooled=errors[4],
        per_image=each,
    )


def squares(got: Tensor, expected: Tensor) -> Float[Tensor, "b 2"]:
    """Of each image, the squared error and the squared size of what was expected."""
    pair = (got - expected).double(), expected.double()
    return torch.stack([x.flatten(1).square().sum(1) for x in pair], 1).cpu()


def pad_images(rows: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Rows of the first images, NaN for the others."""
    return np.concatenate([rows, np.full((count - len(rows), rows.shape[1]), np.nan)])


def _features(s: ObservedModel, x: Tensor) -> Any:
    """The features of images; those of the same images are computed once."""
    return shared(("features", s.model, digest(x)), lambda: s.model.features(x))  # type: ignore[operator]


def _maps(s: ObservedModel) -> Callable[[Tensor], Tensor]:
    return lambda x: _features(s, x).map


def _pooled(s: ObservedModel) -> Callable[[Tensor], Tensor]:
    return lambda x: _features(s, x).pooled


def localities(s: ObservedModel, images: Tensor, *, n: int, seed: int) -> list[NDArray[np.float64]]:
    """Mass of the receptive fields of the first and the last block within an eighth of the image's width, and in all:
    (images, 2) each."""
    names = spatial_layers(s, "blocks")
    source = ImageSource(data=images, batch=max(1, min(8, n // 4)), n=n, seed=seed)
    ends = names[0], names[-1]
    made = list(field_batches(s, source, names, wanted=ends))
    maps = [torch.cat([batch.fields[name] for batch in made]) for name in ends]
    near = [within(m, made[0].cells[name].center, s.image.size[1] / 8) for m, name in zip(maps, ends)]
    return [torch.stack([inside, m.sum((1, 2))], 1).numpy() for inside, m in zip(near, maps)]


def within(fields: Float[Tensor, "b y x"], center: tuple[float, ...], radius: float) -> Float[Tensor, " b"]:
    """Mass of receptive fields within a radius of their cell's center."""
    y = torch.arange(fields.shape[1]) + 0.5 - center[0]
    x = torch.arange(fields.shape[2]) + 0.5 - center[1]
    return fields[:, torch.hypot(y[:, None], x[None, :]) <= radius].sum(1)


def permutation_change(
    s: ObservedModel, images: Tensor, cell: tuple[int, int], seed: int
) -> tuple[Tensor, Tensor] | None:
    """`squares` of the change of tokens (against permuted tokens) and of pooled features when patches change places."""
    if any(size != c * g for size, c, g in zip(images.shape[2:], cell, s.grid)):  # cells that do not tile the image
        return None
    mixed, order = permute_patches(images, cell, seed=seed)
    before, after = _features(s, images), _features(s, mixed)
    return squares(after.tokens, before.tokens[:, order]), squares(after.pooled, before.pooled)
