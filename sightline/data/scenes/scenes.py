"""Synthetic scenes as a dataset: images by index, with their ground truth."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.data.draws import Draws, Ints, hash_key
from sightline.data.errors import BadImage
from sightline.data.images import Pixels
from sightline.data.scenes.parameters import SceneParameters
from sightline.data.scenes.render import Patch, render, render_all, render_one
from sightline.data.scenes.shapes import SHAPES
from sightline.data.scenes.tasks import TASKS
from sightline.data.scenes.textures import TEXTURES
from sightline.data.targets.target import Target, TargetSource, mask_boxes

SPLITS = ("train", "val", "test")
SMALLEST, LARGEST = 16, 512  # pixels of the side


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One image with its ground truth; objects from back to front.

    >>> scene = sl.dataset("scenes/count", split="test", num=8).scene(2)
    >>> len(scene.masks), scene.boxes.shape, sorted(scene.factors)[:3]
    (3, (3, 4), ['angle', 'first', 'haze'])
    """

    pixels: Pixels  # (h, w, 3)
    label: int
    masks: NDArray[np.bool_]  # (k, h, w), visible part of each object
    boxes: NDArray[np.int64]  # (k, 4): left, upper, right, lower of the visible part; all zero if there is none
    visible: NDArray[np.float64]  # (k,), fraction of each object that is not occluded
    target: int  # the object that the label describes, -1 if it describes the whole scene
    factors: dict[str, Any]  # name -> (k, ...): shape, texture, x, y, radius, angle, colors, identity ...


class Scenes(TargetSource):
    """Scenes of one task: any number, deterministic by (seed, index), 16 to 512 pixels, nothing to download.

    Train, val and test never share a scene. A scene is the same at every size. Its objects, each with its shape as the
    class, are the targets of dense tasks.

    >>> d = sl.data.Scenes("shape", split="train", num=1000, size=48)
    >>> d[0][0].shape, d.classes[:3]
    ((48, 48, 3), ('disc', 'square', 'triangle'))
    """

    def __init__(self, task: str, *, split: str = "train", num: int = 10_000, size: int = 32, seed: int = 0):
        if task not in TASKS:
            raise ValueError(f"There is no scenes/{task}; the tasks are {', '.join('scenes/' + t for t in TASKS)}.")
        if split not in SPLITS:
            raise ValueError(f"scenes/{task} has the splits {', '.join(SPLITS)}; got {split}.")
        if not SMALLEST <= size <= LARGEST:
            raise ValueError(f"size={size}: scenes are drawn at {SMALLEST} to {LARGEST} pixels.")
        if num < 1:
            raise ValueError(f"num={num}: expected at least one scene.")
        self.object_classes = SHAPES
        self.task, self.split_name, self.size, self.seed = task, split, size, seed
        self.name = f"scenes/{task}"
        self.labels: Ints = TASKS[task].labels(num)
        self.classes = TASKS[task].classes or tuple(f"individual {i}" for i in range(int(self.labels[-1]) + 1))

    def parameters(self, indices: Ints) -> SceneParameters:
        """The parameters of these scenes."""
        return TASKS[self.task].compose(
            Draws(hash_key(self.seed, self.task, self.split_name), indices), self.labels[indices]
        )

    def image(self, index: int) -> Pixels:
        return self.images(np.array([index]))[0]

    def images(self, indices: Ints) -> Pixels:
        return render(self.parameters(indices), self.size)

    def where(self, index: int) -> str:
        return f"{self.name}[{index}]"

    def target(self, index: int) -> Target:
        return self.image_and_target(index)[1]

    def image_and_target(self, index: int) -> tuple[Pixels, Target]:
        return self._draw_pairs(np.array([index]))[0]

    def images_and_targets(self, indices: Ints) -> list[tuple[Pixels, Target] | BadImage]:
        return [*self._draw_pairs(indices)]

    def _draw_pairs(self, indices: Ints) -> list[tuple[Pixels, Target]]:
        parameters = self.parameters(indices)
        images, patches = render_all(parameters, self.size)
        pairs = []
        for number, pixels in enumerate(images):
            own = [p for p in patches if p.scene == number]
            masks, _ = _masks(own, self.size)
            shown = masks.any((1, 2))  # an object may be hidden, or too small to have a pixel
            shapes = 1 + parameters.objects.shape[number, [p.slot for p in own]]
            pairs.append((pixels, Target(classes=shapes[shown].astype(np.int64), masks=masks[shown])))
        return pairs

    def scene(self, index: int) -> Scene:
        """One image with its ground truth."""
        parameters = self.parameters(np.array([index]))
        pixels, patches = render_one(parameters, self.size)
        masks, visible = _masks(patches, self.size)
        slots = [p.slot for p in patches]
        factors = {f.name: getattr(parameters.objects, f.name)[0, slots] for f in fields(parameters.objects)}
        del factors["present"]
        factors["shape"] = np.array(SHAPES)[factors["shape"]]
        factors["texture"] = np.array(TEXTURES)[factors["texture"]]
        target = slots.index(int(parameters.target[0])) if parameters.target[0] >= 0 else -1
        boxes = mask_boxes(masks)
        return Scene(
            pixels=pixels,
            label=int(self.labels[index]),
            masks=masks,
            boxes=boxes,
            visible=visible,
            target=target,
            factors=factors,
        )


def _masks(patches: list[Patch], size: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """The visible pixels of each object, and the visible fraction: later objects occlude earlier ones."""
    whole = np.zeros((len(patches), size, size), dtype=np.bool_)
    for mask, p in zip(whole, patches):
        side = p.cover.shape[0]
        mask[p.upper : p.upper + side, p.left : p.left + side] = p.cover >= 0.5
    visible = whole.copy()
    covered = np.zeros((size, size), dtype=np.bool_)
    for i in reversed(range(len(patches))):
        visible[i] &= ~covered
        covered |= whole[i]
    return visible, visible.sum((1, 2)) / np.maximum(whole.sum((1, 2)), 1)
