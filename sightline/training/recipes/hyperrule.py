"""The BiT-HyperRule (BiT paper, section 3.3): settings from the number of images and their size."""

from typing import Literal

from sightline.data.augment.augment import Augment
from sightline.training.optimization.schedule import learning_rate
from sightline.training.recipe import Recipe

Form = Literal["paper", "released"]
SMALL, LARGE = 20_000, 500_000  # images: fewer than the first is a small task, at least the second a large one
FEW_PIXELS = 96 * 96

# warm-up, three drops, end (big_transfer, bit_hyperrule.py)
RELEASED = ((100, 200, 300, 400, 500), (500, 3_000, 6_000, 9_000, 10_000), (500, 6_000, 12_000, 18_000, 20_000))


def bit_hyperrule(
    num_images: int,
    image_area: int,
    *,
    form: Form = "paper",
    largest: bool = False,
    flip: bool = True,
    crop: bool = True,
) -> Recipe:
    """BiT-HyperRule: SGD 0.9, rate 0.003, batch 512, no decay, mixup 0.1 with 20,000 images or more, zero head.

        sightline tune cifar10 --model bit-r50x1.i21k --recipe bit_hyperrule

    Expected: CIFAR-10 97.4 %, CIFAR-100 86.6 % with BiT-M R50x1 (README of the released code, median of 5).
    `form="paper"` drops the rate at 30, 60 and 90 % and crops 384 of 448 px, or 480 of 512 for the `largest` model
    (R152x4); `form="released"` is the published code: small tasks drop at 40, 60 and 80 %, and large images are always
    cropped to 480 of 512. The paper names no warm-up; both forms use the code's. `flip` and `crop` are off where a
    flipped or cropped image has another label (appendix F). Data with fewer images than the batch is repeated in it.

    >>> r = sl.training.bit_hyperrule(50_000, 32 * 32)
    >>> r.steps, r.milestones, r.size, r.augment.mixup
    (10000, (3000, 6000, 9000), 128, 0.1)
    """
    _check(num_images, image_area, form)
    warmup, *drops, steps = RELEASED[_task_size(num_images)]
    if form == "paper":
        drops = [round(share * steps) for share in (0.3, 0.6, 0.9)]  # section 3.3
    before, size = bit_hyperrule_sizes(image_area, form=form, largest=largest)
    side = size / before if crop else None
    mixup = 0.1 if num_images >= SMALL else 0.0  # section 3.3
    return Recipe(
        name="bit_hyperrule",
        optimizer="sgd",
        lr=0.003,
        batch=512,
        steps=steps,
        warmup=warmup,
        decay="staircase",
        milestones=tuple(drops),
        size=size,
        augment=Augment(crop_area=None, crop_side=side, flip=flip, mixup=mixup),
        repeat=True,
    )


def bit_hyperrule_sizes(image_area: int, *, form: Form = "paper", largest: bool = False) -> tuple[int, int]:
    """The size to which BiT resizes an image of this area, and the size of its training crops. Tests use whole images
    at the second size.

    >>> sl.training.bit_hyperrule_sizes(95 * 96), sl.training.bit_hyperrule_sizes(96 * 96)
    ((160, 128), (448, 384))
    >>> sl.training.bit_hyperrule_sizes(96 * 96, form="released")
    (512, 480)
    """
    if image_area < FEW_PIXELS:
        return 160, 128
    return (512, 480) if largest or form == "released" else (448, 384)  # the paper's footnote: R152x4 takes 480


def bit_hyperrule_lr(step: int, num_images: int, *, lr: float = 0.003, form: Form = "released") -> float | None:
    """The rule's learning rate at a step counted from 0, None after the end of training, as in the released code.

    >>> [sl.training.bit_hyperrule_lr(step, 19_999) for step in (0, 50, 100, 500)]
    [0.0, 0.0015, 0.003, None]
    """
    recipe = bit_hyperrule(num_images, 1, form=form)
    if step >= recipe.total_steps(num_images):
        return None
    steps = recipe.total_steps(num_images)
    factor = learning_rate(recipe, step, steps=steps, warmup=int(recipe.warmup)) / recipe.lr
    return lr * factor


def _task_size(num_images: int) -> int:
    return (num_images >= SMALL) + (num_images >= LARGE)


def _check(num_images: int, image_area: int, form: str) -> None:
    if num_images < 1 or image_area < 1:
        raise ValueError(
            f"bit_hyperrule takes the number of training images and the area of one; got {num_images}, {image_area}."
        )
    if form not in ("paper", "released"):
        raise ValueError(f"form={form!r}: expected paper or released.")
