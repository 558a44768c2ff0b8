"""Dense features: segmentation and object localization from patch tokens."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sightline.evals.feature_table import FeatureTable
from sightline.evals.ground_truth import patch_shares
from sightline.evals.inputs import check_finite
from sightline.evals.probing.ridge import L2, Ridge, apply, check_l2


def grid_tokens(data: FeatureTable | ArrayLike | Tensor) -> Tensor:
    """The patch tokens, without prefix, (n, t, d)."""
    if isinstance(data, FeatureTable):
        name = list(data.layers)[-1]
        x = data.features
        x = x[:, data.prefix.get(name, 0) :] if x.ndim == 3 else x
    else:
        x = torch.as_tensor(data)
    if x.ndim != 3:
        raise ValueError(f"This takes tokens (n, t, d), extracted with tokens='all'; got {tuple(x.shape)}.")
    check_finite(x, "tokens")
    return x


class SegmentationHead:
    """A linear map from each patch token to the classes of its pixels, in closed form; fit / predict / score.

    It learns the share of each class in a patch; scores are upsampled bilinearly to the pixels. `score` is the mean
    intersection over union of the classes that occur in the ground truth or in the prediction.

    >>> import numpy as np, torch
    >>> masks = np.zeros((8, 4, 4), int); masks[:, 2:] = 1
    >>> tokens = torch.randn(8, 4, 3) * 0.1; tokens[:, 2:] += 1
    >>> sl.evals.SegmentationHead((2, 2)).fit(tokens, masks).score(tokens, masks)
    1.0
    """

    def __init__(self, grid: tuple[int, int], *, l2: float = L2):
        check_l2(l2)
        self.grid, self.l2, self.classes = grid, l2, 0

    def fit(self, tokens: FeatureTable | ArrayLike | Tensor, masks: ArrayLike) -> "SegmentationHead":
        x, m = self._tokens(tokens), _masks(masks)
        if len(x) != len(m):
            raise ValueError(f"There are {len(x)} images and {len(m)} masks.")
        self.classes = int(m.max()) + 1
        if len(np.unique(m)) < 2:
            raise ValueError("The masks contain only one class; a classifier needs at least two.")
        shares = torch.from_numpy(patch_shares(m, self.grid, self.classes)).double()
        ridge = Ridge.of(x.flatten(0, 1), 2 * shares.flatten(0, 1) - 1)
        self.weights, self.scaling = ridge.solve(self.l2), ridge.scaling
        return self

    def _tokens(self, tokens: FeatureTable | ArrayLike | Tensor) -> Tensor:
        x = grid_tokens(tokens)
        if x.shape[1] != self.grid[0] * self.grid[1]:
            raise ValueError(f"A grid of {self.grid[0]} x {self.grid[1]} does not have {x.shape[1]} tokens.")
        return x

    def predict(self, tokens: FeatureTable | ArrayLike | Tensor, size: tuple[int, int]) -> NDArray[np.int64]:
        """The class of every pixel of images of this size (n, y, x)."""
        if not self.classes:
            raise ValueError("The head has not been fitted: call .fit(tokens, masks) first.")
        return np.concatenate([self._predict_one(x, size) for x in self._tokens(tokens)])

    def _predict_one(self, x: Tensor, size: tuple[int, int]) -> NDArray[np.int64]:
        scores = torch.cat([*apply(x, self.weights, self.scaling)])
        field = scores.mT.unflatten(1, self.grid)[None].float()
        return F.interpolate(field, size=size, mode="bilinear", align_corners=False).argmax(1).numpy()

    def score(self, tokens: FeatureTable | ArrayLike | Tensor, masks: ArrayLike) -> float:
        return float(np.nanmean(self.per_class(tokens, masks)))

    def per_class(self, tokens: FeatureTable | ArrayLike | Tensor, masks: ArrayLike) -> NDArray[np.float64]:
        """Intersection over union by class; NaN for a class that neither occurs nor is predicted."""
        m = _masks(masks)
        guess = self.predict(tokens, (m.shape[1], m.shape[2]))
        if guess.shape != m.shape:
            raise ValueError(f"There are {len(guess)} images and {len(m)} masks.")
        k = max(self.classes, int(m.max()) + 1)
        return intersection_over_union(guess, m, k)


def _masks(masks: ArrayLike) -> NDArray[np.int64]:
    m = np.asarray(masks)
    if m.ndim != 3 or not np.issubdtype(m.dtype, np.integer) or m.size == 0 or m.min() < 0:
        raise ValueError(f"Masks are class numbers (n, y, x) from 0 up; got {m.dtype} {m.shape}.")
    return m.astype(np.int64)


def intersection_over_union(guess: NDArray[np.int64], truth: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Intersection over union of each class, over all pixels."""
    square = np.bincount((truth * classes + guess).ravel(), minlength=classes * classes).reshape(classes, classes)
    both = np.diag(square)
    either = square.sum(0) + square.sum(1) - both
    return both / np.where(either > 0, either, np.nan)


class BoxProbe:
    """A linear map from an image's features to the box of its object, in closed form; fit / predict / score.

    Takes (n, d), or all tokens (n, t, d), which are concatenated so that their positions matter. Boxes are left, upper,
    right, lower in 0..1, see `sl.evals.scene_boxes`. `score` is the mean intersection over union.

    >>> import torch
    >>> boxes = torch.rand(200, 4).sort(1).values[:, [0, 1, 2, 3]]
    >>> sl.evals.BoxProbe(l2=1e-3).fit(boxes, boxes).score(boxes, boxes) > 0.99
    True
    """

    def __init__(self, *, l2: float = L2):
        check_l2(l2)
        self.l2 = l2
        self.weights: Tensor | None = None

    def fit(self, features: FeatureTable | ArrayLike | Tensor, boxes: ArrayLike | Tensor) -> "BoxProbe":
        x, target = _flat(features), _boxes(boxes)
        if len(x) != len(target):
            raise ValueError(f"There are {len(x)} images and {len(target)} boxes.")
        if len(x) < 2:
            raise ValueError("A box probe needs at least two images.")
        ridge = Ridge.of(x, target)
        self.weights, self.scaling = ridge.solve(self.l2), ridge.scaling
        return self

    def predict(self, features: FeatureTable | ArrayLike | Tensor) -> NDArray[np.float64]:
        """Boxes (n, 4)."""
        if self.weights is None:
            raise ValueError("The probe has not been fitted: call .fit(features, boxes) first.")
        return torch.cat([*apply(_flat(features), self.weights, self.scaling)]).clamp(0, 1).numpy()

    def score(self, features: FeatureTable | ArrayLike | Tensor, boxes: ArrayLike | Tensor) -> float:
        return float(box_overlap(self.predict(features), _boxes(boxes).numpy()).mean())


def _flat(features: FeatureTable | ArrayLike | Tensor) -> Tensor:
    x = features.features if isinstance(features, FeatureTable) else torch.as_tensor(features)
    if x.ndim not in (2, 3):
        raise ValueError(f"A box probe takes (n, d) or (n, t, d); got {tuple(x.shape)}.")
    check_finite(x, "features")
    return x.flatten(1)


def _boxes(boxes: ArrayLike | Tensor) -> Tensor:
    b = torch.as_tensor(boxes, dtype=torch.float64)
    if b.ndim != 2 or b.shape[1] != 4 or not bool(((b >= 0) & (b <= 1)).all()):
        raise ValueError(f"Boxes are (n, 4): left, upper, right, lower in 0..1; got {tuple(b.shape)}.")
    return b


def box_overlap(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union of boxes, row by row; 0 for two empty boxes."""
    low, high = np.maximum(a[:, :2], b[:, :2]), np.minimum(a[:, 2:], b[:, 2:])
    both = np.prod(np.clip(high - low, 0, None), axis=1)
    area = [np.prod(np.clip(x[:, 2:] - x[:, :2], 0, None), axis=1) for x in (a, b)]
    either = area[0] + area[1] - both
    return both / np.where(either > 0, either, np.inf)
