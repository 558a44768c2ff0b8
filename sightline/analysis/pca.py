"""An image on its way through a network: the principal components of the features of every cell, block by block."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.evals.interval import Ends, known_ends, of_mean
from sightline.evals.prediction import noting_predictions
from sightline.evals.probing.ridge import threads
from sightline.models.taps import record
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.selection import as_tokens
from sightline.spec import About, Result

SIDE = 16  # cells along an axis that are kept of a larger map


@dataclass(frozen=True, kw_only=True)
class FeaturePCA(Result):
    """Features of every cell after each block, as bytes of their first principal components; the first three are an
    image, and the cosine of two cells says how alike the network finds them.

    >>> import numpy as np
    >>> r = sl.analysis.FeaturePCA(title="", caption="", images=np.zeros((1, 4, 4, 3), np.uint8), layers=("a",),
    ...                  features=np.array([[[[127, 0], [0, 127]]]], np.int8), grids=((1, 2),), explained=np.ones(1))
    >>> r.alike(0, 0, 0).tolist()
    [1.0, 0.0]
    """

    images: NDArray[np.uint8]  # (n, height, width, 3)
    features: NDArray[np.int8]  # (n, layers, cells of the largest, components)
    layers: tuple[str, ...]
    grids: tuple[tuple[int, int], ...]  # of each layer; the cells after it are 0
    explained: NDArray[np.float64]  # (layers,), share of the variance that the components hold

    def cells(self, image: int, layer: int) -> NDArray[np.float64]:
        """(cells, components) of one image at one layer."""
        count = self.grids[layer][0] * self.grids[layer][1]
        return self.features[image, layer, :count].astype(np.float64)

    def alike(self, image: int, layer: int, cell: int) -> NDArray[np.float64]:
        """Cosine of one cell with all cells of its image."""
        x = self.cells(image, layer)
        unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
        return np.asarray(unit @ unit[cell], dtype=np.float64)

    def summary(self) -> dict[str, float]:
        """How alike the cells of one image are to one another, at the first and the last layer."""
        return {name: float(values.mean()) for name, values in self._cosines().items()}

    def intervals(self) -> dict[str, Ends]:
        return known_ends({name: of_mean(values, least=-1.0, most=1.0) for name, values in self._cosines().items()})

    def change(self) -> Ends:
        """Interval of last minus first layer: how much more alike the cells of an image become, image by image."""
        cosines = list(self._cosines().values())
        return of_mean(cosines[-1] - cosines[0], least=-2.0, most=2.0)

    def _cosines(self) -> dict[str, NDArray[np.float64]]:
        """For each image the mean cosine of two of its cells, at the first and the last layer."""
        found = {}
        for i in (0, len(self.layers) - 1):
            units = [self.cells(p, i) for p in range(len(self.images))]
            units = [u / np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-9) for u in units]
            found[f"{self.layers[i]}: cosine of cells of one image"] = np.array([(u @ u.T).mean() for u in units])
        return found


def feature_pca(model: Model, data: Data, *, n: int = 4, components: int = 12, seed: int = 0) -> FeaturePCA:
    """What every block of any model makes of `n` images, small enough for a page.

    Principal components are those of all cells of these images at one layer, centered. Maps of more than 16 x 16
    cells are averaged down. Two models on the same images can be watched side by side.

    >>> found = sl.feature_pca(sl.build("bit-nano", classes=0), sl.dataset("scenes/shape", num=2, size=32), n=2)
    >>> found.features.shape[0], found.grids[-1]
    (2, (4, 4))
    """
    s = observe(model)
    names = [p.path for p in s.block_outputs]
    kept: dict[str, list[Tensor]] = {name: [] for name in names}
    seen: list[NDArray[np.uint8]] = []
    images = ImageSource(data=data, batch=1, n=n, seed=seed)
    with evaluation_mode(s), noting_predictions(s) as said:
        for made in images.batches([s], what="features by block"):
            with record(s.model, *names) as tape:
                s.model(made.images[0])
            for name in names:
                kept[name].append(_map(s, name, tape[name]))
            seen.append(images.shown(made, s, 224))
    how = {"n": len(seen), "components": components, "seed": seed, "predictions": said}
    maps = {k: torch.cat(v) for k, v in kept.items()}
    return _result(s, maps, np.concatenate(seen), how=how, about=images.about(s))


def _map(s: ObservedModel, name: str, value: Tensor) -> Float[Tensor, "b d y x"]:
    if value.ndim != 4:
        layer = as_tokens(value, s, name)
        value = layer.tokens[:, layer.prefix :].mT.unflatten(2, s.grid)
    return F.adaptive_avg_pool2d(value.float(), (min(SIDE, value.shape[2]), min(SIDE, value.shape[3]))).cpu()


def principal(cells: Float[Tensor, "m d"], count: int) -> tuple[Float[Tensor, "m k"], float]:
    """The first components of centered rows, padded with zeros to `count`, and the share of the variance they hold."""
    x = cells.double() - cells.double().mean(0)
    with threads(1):
        u, values, _ = torch.linalg.svd(x, full_matrices=False)
    k = min(count, len(values))
    out = u[:, :k] * values[:k]
    sign = out.gather(0, out.abs().argmax(0, keepdim=True)).sign()  # a component has no sign of its own
    total = values.square().sum()
    share = (values[:k].square().sum() / total).item() if total > 0 else float("nan")
    return F.pad(out * sign, (0, count - k)), share


def _result(
    s: ObservedModel, maps: dict[str, Tensor], images: NDArray[np.uint8], *, how: dict[str, Any], about: About
) -> FeaturePCA:
    components = how["components"]
    grids = tuple((m.shape[2], m.shape[3]) for m in maps.values())
    most = max(y * x for y, x in grids)
    rows, shares = [], []
    for m in maps.values():
        cells, share = principal(m.flatten(2).mT.flatten(0, 1), components)
        cells = (cells / cells.abs().max().clamp(min=1e-12) * 127).round().to(torch.int8)
        cells = cells.unflatten(0, (len(m), -1))
        rows.append(F.pad(cells, (0, 0, 0, most - cells.shape[1])))
        shares.append(share)
    return FeaturePCA(
        title=f"Images on their way through {s.name}",
        caption=f"The first {components} principal components of every cell after each of {len(maps)} blocks, "
        f"{len(images)} images.",
        how=how,
        about=about,
        images=images,
        features=torch.stack(rows, 1).numpy(),
        layers=tuple(maps),
        grids=grids,
        explained=np.array(shares),
    )
