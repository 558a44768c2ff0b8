"""`sl.attribution`: which part of an image a decision comes from, by Grad-CAM or rollout, and whether it is true."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.analysis.attention.rollout import from_head, rollout_of
from sightline.analysis.saliency.cam import cam_layer, grad_cam
from sightline.analysis.saliency.faithfulness import curves, randomized_copy, rank_agreement
from sightline.evals.interval import Ends, known_ends, of_mean
from sightline.evals.prediction import noting_predictions
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.spec import Result

Method = Literal["grad_cam", "rollout", "rollout+identity", "gradient_rollout"]
METHODS = ("grad_cam", "rollout", "rollout+identity", "gradient_rollout")


@dataclass(frozen=True, kw_only=True)
class Attribution(Result):
    """Maps over images, and how far to trust them.

    `deletion` and `insertion`: mean probability of the class while the most important parts are blurred away, or put
    back into a blurred image. A faithful map has a low first and a high second; `..._random` are random orders.
    `agreement_random_weights`: rank correlation with the map of the same model with its weights scrambled. A map that
    hardly changes (near 1) shows the image or the architecture, not what was learned (Adebayo et al. 2018).

    >>> import numpy as np
    >>> r = sl.analysis.Attribution(title="", caption="", maps=np.ones((1, 2, 2)), classes=np.array([3]),
    ...     deletion=np.array([0.1]), insertion=np.array([0.7]), deletion_random=np.array([0.3]),
    ...     insertion_random=np.array([0.3]), agreement_random_weights=np.array([0.1]), image_size=(8, 8))
    >>> round(r.summary()["insertion minus deletion"], 3)
    0.6
    """

    maps: NDArray[np.float32]  # (images, rows, columns)
    classes: NDArray[np.int64]  # (images,), the class that is explained
    deletion: NDArray[np.float64]  # (images,)
    insertion: NDArray[np.float64]
    deletion_random: NDArray[np.float64]
    insertion_random: NDArray[np.float64]
    agreement_random_weights: NDArray[np.float64]
    image_size: tuple[int, int]
    images: NDArray[np.uint8] | None = None  # (images, height, width, 3), small, to show the maps on

    def summary(self) -> dict[str, float]:
        return {
            "deletion": float(self.deletion.mean()),
            "insertion": float(self.insertion.mean()),
            "insertion minus deletion": float((self.insertion - self.deletion).mean()),
            "insertion minus deletion, random order": float((self.insertion_random - self.deletion_random).mean()),
            "agreement with scrambled weights": _mean(self.agreement_random_weights),
        }

    def intervals(self) -> dict[str, Ends]:
        each = {
            "deletion": self.deletion,
            "insertion": self.insertion,
            "insertion minus deletion": self.insertion - self.deletion,
            "insertion minus deletion, random order": self.insertion_random - self.deletion_random,
            "agreement with scrambled weights": self.agreement_random_weights,
        }
        return known_ends({name: of_mean(values, least=-1.0, most=1.0) for name, values in each.items()})


def _mean(values: NDArray[np.float64]) -> float:
    """Of what is defined: a flat map agrees with nothing."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def attribution_maps(s: ObservedModel, images: Tensor, targets: Tensor, method: Method) -> Float[Tensor, "b i j"]:
    """Maps of one batch by a named method."""
    if method == "grad_cam":
        return grad_cam(s, images, targets)
    joint, _ = rollout_of(
        s, images.clone(), targets, identity=method == "rollout+identity", gradient=method == "gradient_rollout"
    )
    return from_head(joint, s).detach()


def attribution(
    model: Model,
    data: Data,
    *,
    method: Method = "grad_cam",
    n: int | None = None,
    batch: int = 8,
    steps: int = 16,
    seed: int = 0,
) -> Attribution:
    """Maps of the predicted class of each image, with deletion and insertion scores and the random-weights check.

    Grad-CAM works on CNN maps and ViT tokens; the rollouts need attention. Maps are kept, so memory grows with the
    small maps of the images, not with the images.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> found = sl.attribution(model, sl.dataset("scenes/objects", num=3, size=32), steps=4)
    >>> found.maps.shape, found.deletion.shape
    ((3, 8, 8), (3,))
    """
    s = observe(model)
    check_method(s, method)
    random_weights = replace(s, model=randomized_copy(s.model, seed))
    random = torch.Generator().manual_seed(seed)
    rows: list[list[Tensor]] = []
    shown: list[NDArray[np.uint8]] = []
    predictions: list[str] = []
    source = ImageSource(data=data, batch=batch, n=n, seed=seed)
    for made in source.batches([s], what=f"attribution by {method}"):
        with noting_predictions(s) as said:
            rows.append(_measured(s, random_weights, made.images[0], method=method, steps=steps, random=random))
        predictions += said[: len(made)]  # of the first pass
        shown.append(source.shown(made, s))
    found = [torch.cat(column).numpy() for column in zip(*rows)]
    where = cam_layer(s) if method == "grad_cam" else f"{len(s.attention_blocks)} blocks"
    return Attribution(
        title=f"Attribution of {s.name} by {method}",
        caption=f"{method} ({where}) for the predicted class of {len(found[0])} images; blurred in {steps} steps.",
        how={
            "n": len(found[0]),
            "method": method,
            "layer": where,
            "steps": steps,
            "seed": seed,
            "replaced by": "blur",
            "predictions": predictions,
        },
        about=source.about(s),
        maps=found[0].astype(np.float32),
        classes=found[1],
        deletion=found[2],
        insertion=found[3],
        deletion_random=found[4],
        insertion_random=found[5],
        agreement_random_weights=found[6],
        image_size=s.image.size,
        images=np.concatenate(shown),
    )


def _measured(
    s: ObservedModel,
    random_weights: ObservedModel,
    images: Tensor,
    *,
    method: Method,
    steps: int,
    random: torch.Generator,
) -> list[Tensor]:
    """Of one batch: maps, classes, curves of the maps and of a random order, agreement with random weights."""
    with evaluation_mode(s, random_weights, gradients=True):
        classes = s.model(images).argmax(1).detach()
        maps = attribution_maps(s, images, classes, method)
        other = attribution_maps(random_weights, images, classes, method)
    chance = torch.rand(maps.shape, generator=random).to(maps)
    with evaluation_mode(s):
        scores = [*curves(s, images, classes, maps, steps), *curves(s, images, classes, chance, steps)]
    return [maps.cpu(), classes.cpu(), *(x.cpu() for x in scores), rank_agreement(maps, other)]


def check_method(s: ObservedModel, method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"method is one of {', '.join(METHODS)}; got {method!r}.")
    if method != "grad_cam" and not s.attention_blocks:
        raise ValueError(f"{s.name} has no attention to roll out; use method='grad_cam'.")
    if not s.classes:
        raise ValueError(f"{s.name} has no classes: there is no decision to attribute.")
