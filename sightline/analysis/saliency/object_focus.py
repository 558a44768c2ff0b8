"""Whether the maps of a model lie on the object: mass against area share, on scenes, whose masks are known (V14)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sightline.analysis.saliency.attribution import METHODS, Method, attribution_maps, check_method
from sightline.data.datasets import Dataset
from sightline.evals.ground_truth import scene_masks
from sightline.evals.interval import Ends, ends, half_width, known_ends, of_mean
from sightline.observe.images import ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.spec import Result


@dataclass(frozen=True, kw_only=True)
class ObjectFocus(Result):
    """Share of each map's mass on the object that a scene is about, beside the object's share of the area.

    >>> import numpy as np
    >>> r = sl.analysis.ObjectFocus(title="", caption="", methods=("rollout",), mass=np.array([[0.6, 0.4]]),
    ...                    area=np.array([0.2, 0.1]))
    >>> r.summary()["rollout: mass minus area"]
    0.35
    """

    methods: tuple[str, ...]
    mass: NDArray[np.float64]  # (methods, images); NaN where a map is empty
    area: NDArray[np.float64]  # (images,)

    def gain(self, method: str) -> tuple[float, float]:
        """Mean of mass minus area over images, and half of its 95 % interval."""
        more = (self.mass - self.area)[self.methods.index(method)]
        more = more[np.isfinite(more)]
        return (float(more.mean()), float(half_width(more))) if len(more) else (np.nan, np.nan)

    def summary(self) -> dict[str, float]:
        numbers = {}
        for method in self.methods:
            mean, half = self.gain(method)
            numbers[f"{method}: mass minus area"] = round(mean, 12)
            numbers[f"{method}: half of its 95 % interval"] = half
        return numbers | {"area of the object": float(self.area.mean())}

    def intervals(self) -> dict[str, Ends]:
        gains = {f"{method}: mass minus area": ends(*self.gain(method)) for method in self.methods}
        return known_ends({**gains, "area of the object": of_mean(self.area, least=0.0, most=1.0)})


def object_focus(
    model: Model,
    data: Dataset,
    *,
    methods: Sequence[Method] | None = None,
    n: int | None = None,
    batch: int = 8,
    seed: int = 0,
) -> ObjectFocus:
    """How much of each map lies on the object, on scenes that are about one object; claim V14: more than its area.

    By default all methods that apply: Grad-CAM, and the three rollouts where there is attention. Maps are of the
    predicted class. Objects that cannot be seen are left out.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> sl.analysis.object_focus(model, sl.dataset("scenes/shape", num=6, size=32), n=4).mass.shape
    (4, 4)
    """
    s = observe(model)
    chosen = tuple(methods) if methods is not None else _applicable(s)
    for method in chosen:
        check_method(s, method)
    if not isinstance(data, Dataset):
        raise ValueError(f"Masks are known of scenes: sl.dataset('scenes/shape'); got a {type(data).__name__}.")
    part = data if n is None or n >= len(data) else data.sample(n, seed=seed)
    inside = torch.from_numpy(scene_masks(part, s.image) > 0)
    seen = inside.flatten(1).any(1).numpy()
    rows, at = [], 0
    for made in ImageSource(data=part, batch=batch).batches([s], what="mass on the object"):
        masks = inside[at : at + len(made)]
        at += len(made)
        with evaluation_mode(s, gradients=True):
            classes = s.model(made.images[0]).argmax(1).detach()
            maps = [attribution_maps(s, made.images[0], classes, method).cpu() for method in chosen]
        rows.append(torch.stack([_share(m, masks) for m in maps]))
    return ObjectFocus(
        title=f"Mass of the maps of {s.name} on the object",
        caption=(
            f"Share of each map on the pixels of the object against its share of the area: {int(seen.sum())} scenes, "
            f"predicted class, {', '.join(chosen)}."
        ),
        how={"n": int(seen.sum()), "seed": seed, "methods": chosen, "left out, not to be seen": int((~seen).sum())},
        about=ImageSource(data=data, batch=batch, n=n, seed=seed).about(s),
        methods=chosen,
        mass=torch.cat(rows, dim=1).numpy()[:, seen],
        area=inside.double().mean((1, 2)).numpy()[seen],
    )


def _applicable(s: ObservedModel) -> tuple[Method, ...]:
    return METHODS if s.attention_blocks else METHODS[:1]  # type: ignore[return-value]


def _share(maps: Tensor, masks: Tensor) -> Tensor:
    """Of the mass of each map, on the object; NaN for an empty map."""
    m = maps.double()
    share = F.adaptive_avg_pool2d(masks.double()[:, None], (m.shape[1], m.shape[2]))[:, 0]
    return (m * share).sum((1, 2)) / m.sum((1, 2)).where(m.sum((1, 2)) > 0, torch.nan)
