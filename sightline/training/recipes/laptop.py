"""Recipes of our own that train small models well on two cores."""

from sightline.data.augment.augment import Augment
from sightline.data.named.suites import suite
from sightline.training.recipe import Recipe

# meant for about half an hour on two cores with the micro models; docs/log.md says what was measured
EPOCHS = {"cifar10": 30, "fashion-mnist": 20}
MIRROR_IS_WRONG = ("mnist", "svhn")  # a mirrored digit is no digit; suites of scenes and VTAB state it for their tasks


def laptop_vit(data: str = "cifar10", *, epochs: float | None = None) -> Recipe:
    """A small ViT from scratch on two cores, for scenes, CIFAR-10, Fashion-MNIST and their like.

        sightline train cifar10 --model vit-micro4 --recipe laptop_vit

    AdamW 2e-3, batch 128, weight decay 0.05, warm-up of a tenth, cosine, label smoothing 0.1, clip 1; images shifted by
    up to an eighth, flipped where that keeps the label. For long trainings try stronger
    augmentation: --set augment.mixup=0.2 --set augment.randaugment=2,5. Measured on CIFAR-10: 72.6 % after 24 epochs of
    --with pool=gap --set "sizes=((0,16),(0.4,24),(0.75,32))", about 40 minutes of one core.

    >>> r = sl.recipes.laptop_vit("scenes/layout")
    >>> r.augment.flip, r.augment.shift
    (False, 0.125)
    """
    return Recipe(
        name="laptop_vit",
        lr=2e-3,
        batch=128,
        epochs=_epochs(data, epochs),
        warmup=0.1,
        weight_decay=0.05,
        smoothing=0.1,
        clip=1.0,
        augment=small_image_augment(data),
    )


def laptop_bit(data: str = "cifar10", *, epochs: float | None = None) -> Recipe:
    """A small BiT from scratch on two cores, for scenes, CIFAR-10, Fashion-MNIST and their like.

        sightline train cifar10 --model bit-nano --recipe laptop_bit

    SGD 0.9 at 0.1 for batch 128, L2 decay 5e-4 on kernels, warm-up of a tenth, cosine, label smoothing 0.1; images
    shifted by up to an eighth, flipped where that keeps the label. Measured on CIFAR-10: 63.8 % after 3
    epochs, 81.6 % after 16, 17 minutes of one core, both from 16 to 32 px.

    >>> sl.recipes.laptop_bit("mnist").augment.flip
    False
    """
    return Recipe(
        name="laptop_bit",
        optimizer="sgd",
        lr=0.1,
        batch=128,
        epochs=_epochs(data, epochs),
        warmup=0.1,
        weight_decay=5e-4,
        smoothing=0.1,
        clip=1.0,
        augment=small_image_augment(data),
    )


def laptop_masked(data: str = "cifar10", *, epochs: float | None = None) -> Recipe:
    """Masked patch prediction with a small ViT on two cores; fine-tune with `laptop_vit` afterwards.

        sightline train cifar10 --model vit-micro4 --recipe laptop_masked --out runs/masked
        sightline tune cifar10 --model runs/masked --recipe laptop_vit

    The paper's corruption and its 4 x 4 colors; --set target=color, their mean, takes less than half the time.
    Measured with it on CIFAR-10 at 24 px, vit-nano4: 10 epochs, 10 minutes of one core; then 4,900 labels and 30 epochs
    give 54.7 %, without it 49.6 %.

    >>> r = sl.recipes.laptop_masked()
    >>> r.task, r.target, r.corrupt
    ('masked', 'color-4x4', 0.5)
    """
    return Recipe(
        name="laptop_masked",
        task="masked",
        lr=1e-3,
        batch=128,
        epochs=_epochs(data, epochs),
        warmup=0.1,
        weight_decay=0.05,
        clip=1.0,
        target="color-4x4",
        augment=small_image_augment(data),
    )


def laptop_lejepa(data: str = "cifar10", *, epochs: float | None = None) -> Recipe:
    """LeJEPA with a small ViT, BiT or hybrid on two cores: learning from views of images, without labels.

        sightline train photos/ --model vit-micro4 --recipe laptop_lejepa --out runs/lejepa
        sightline tune cifar10 --model runs/lejepa --recipe laptop_vit

    AdamW 2e-3, batches of 128 views: two crops of a fifth to all of the area of each of 64 images, mirrored, with other
    brightness, contrast and saturation; SIGReg's share of the loss 0.05. An epoch sees as many views as there are
    images, so every image every other epoch. Mirrored also where that changes the label: no label is learned. Measured
    on CIFAR-10 at 24 px with vit-nano4, 88 seconds of one core: 28.6 % by nearest neighbors, masked prediction in 70
    seconds 23.0 %, untrained 26.2 %; longer runs are to come.

    >>> r = sl.recipes.laptop_lejepa()
    >>> r.task, r.views, r.sigreg
    ('lejepa', 2, 0.05)
    """
    views = Augment(crop_area=(0.2, 1.0), flip=True, jitter=(0.4, 0.4, 0.4, 0.0), repeats=2)
    return Recipe(
        name="laptop_lejepa",
        task="lejepa",
        lr=2e-3,
        batch=128,
        epochs=_epochs(data, epochs),
        warmup=0.1,
        weight_decay=0.05,
        clip=1.0,
        augment=views,
    )


def laptop_tune(*, num_images: int | None = None, lr: float = 0.01) -> Recipe:
    """Fine-tuning on up to 20,000 images on two cores, at the model's own image size: the default of `tune` there.

        sightline tune pets/ --model deit-tiny.npz --recipe laptop_tune --out runs/pets

    As `vit_finetune` (SGD 0.9, cosine, clip 1, no decay, warm-up of a fifth), with batches of 64: 120 steps, or five
    epochs where these are more. Measured: DeiT-Tiny on 20 photographs of each of 37 breeds of pets, 88.6 % of 370 test
    photographs, 10 minutes of one core.

    >>> r = sl.recipes.laptop_tune(num_images=740)
    >>> r.steps, r.batch, r.size
    (120, 64, None)
    """
    return Recipe(
        name="laptop_tune",
        optimizer="sgd",
        lr=lr,
        batch=64,
        steps=max(120, 5 * (num_images or 0) // 64),
        warmup=0.2,
        decay="cosine",
        clip=1.0,
        repeat=True,
    )


def laptop_dense(data: str = "scenes/count", *, epochs: float | None = None) -> Recipe:
    """Segmentation or detection with masks on two cores: the default of `--task segment` and `--task detect`.

        sightline train scenes/cells --size 64 --model vit-nano8 --recipe laptop_dense --task detect --out runs/cells

    AdamW 2e-3, batch 32, weight decay 0.05, warm-up of a twentieth, cosine, clip 1; images flipped, masks along with
    them. A linear head segments, 20 queries detect, with masks at every second pixel.

    >>> r = sl.recipes.laptop_dense()
    >>> r.task, r.queries, r.augment.flip
    ('segment', 20, True)
    """
    return Recipe(
        name="laptop_dense",
        task="segment",
        lr=2e-3,
        batch=32,
        epochs=_epochs(data, epochs),
        warmup=0.05,
        weight_decay=0.05,
        clip=1.0,
        queries=20,
        mask_stride=2,
        augment=Augment(crop_area=None),
    )


def _epochs(data: str, epochs: float | None) -> float:
    return epochs if epochs is not None else EPOCHS.get(data, 20)


def small_image_augment(data: str) -> Augment:
    """Shifts and flips where they keep the label; crops of a few percent would leave nothing of a 32 px image."""
    tasks = {task.source: task for task in (*suite("vtab"), *suite("scenes-vtab"))}
    task = tasks.get(data)
    flip = data not in MIRROR_IS_WRONG and (task is None or task.flip)
    shift = 0.125 if task is None or task.crop else 0.0
    return Augment(crop_area=None, flip=flip, shift=shift)
