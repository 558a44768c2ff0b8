"""Recipes of our own for the most accuracy per minute on small images: Muon, and images that grow during training."""

from dataclasses import replace
from typing import Any

from sightline.training.recipe import Recipe
from sightline.training.recipes.laptop import small_image_augment

GROWING = ((0, 16), (0.4, 24), (0.75, 32))  # share of training at which each size begins


def speed_vit(data: str = "cifar10", *, epochs: float = 30) -> Recipe:
    """A small ViT from scratch on images of 32 px, for 20 minutes of one core.

        sightline train cifar10 --model vit-nano4 --with pool=gap --recipe speed_vit

    Muon (0.9) for the matrices of the blocks and AdamW for the rest, both at 5e-3, in bfloat16, batch 128, weight
    decay 0.05, warm-up of a twentieth, linear decay, label smoothing 0.1, clip 1; images of 16, then 24, then 32 px,
    shifted by up to an eighth, flipped in every other epoch where that keeps the label. Measured with this command on
    CIFAR-10: 81.8 % of the test images, one seed, in about 19 minutes of one core with bfloat16 instructions; the
    commit is not on record. The model ships as vit-nano4.cifar10-gap. On a CPU without such instructions the command
    line trains in float32.

    >>> r = sl.recipes.speed_vit()
    >>> r.optimizer, r.augment.flip, r.sizes[-1]
    ('muon', 'alternating', (0.75, 32))
    """
    return _speed("speed_vit", data, epochs, lr=5e-3, weight_decay=0.05)


def speed_bit(data: str = "cifar10", *, epochs: float = 20) -> Recipe:
    """A small BiT of basic units from scratch on images of 32 px, for 20 minutes of one core.

        sightline train cifar10 --model bit-basic --recipe speed_bit

    Muon at 0.01, batch 256, weight decay 0.1; else as `speed_vit`. Measured on CIFAR-10 by
    `python -m benchmarks.records bit` at commits aef41a8 and c19725a, three seeds: 89.4 % (89.3 to 89.4) of the test
    images after 20 epochs, 19.8 minutes (19.1 to 20.8) of one core with bfloat16 instructions; 90.4 % (90.0 to 90.6)
    with `evaluate(..., tta="mirror")`.

    >>> sl.recipes.speed_bit("svhn").augment.flip
    False
    """
    return _speed("speed_bit", data, epochs, lr=0.01, weight_decay=0.1, batch=256)


def speed_hybrid(data: str = "cifar10", *, epochs: float = 16) -> Recipe:
    """A small ViT after residual units, from scratch on images of 32 px, for 20 minutes of one core.

        sightline train cifar10 --model r6-vit-nano4 --with pool=gap --recipe speed_hybrid

    As `speed_bit`, in fewer epochs. Not yet measured to its end: docs/log.md.

    >>> sl.recipes.speed_hybrid().batch
    256
    """
    return _speed("speed_hybrid", data, epochs, lr=0.01, weight_decay=0.1, batch=256)


def _speed(name: str, data: str, epochs: float, **settings: Any) -> Recipe:
    augment = small_image_augment(data)
    augment = replace(augment, flip="alternating" if augment.flip else False)
    shared: dict[str, Any] = {
        "optimizer": "muon",
        "momentum": 0.9,
        "batch": 128,
        "warmup": 0.05,
        "decay": "linear",
        "clip": 1.0,
    }
    shared |= {"smoothing": 0.1, "sizes": GROWING, "precision": "bfloat16"}
    return Recipe(name=name, epochs=epochs, augment=augment, **{**shared, **settings})
