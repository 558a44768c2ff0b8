"""Pre-training of BiT."""

from sightline.training.recipe import Recipe
from sightline.training.recipes.upstream import I1K, I21K, JFT, SEVERAL_LABELS


def bit_upstream(data: str = I1K, *, batch: int = 4096) -> Recipe:
    """BiT pre-training (Kolesnikov et al. 2019, section 3.3): SGD 0.9, rate 0.03 x batch / 256, warm-up of 5,000 steps.

        sightline train imagenet --model bit-r50x1 --recipe bit_upstream

    imagenet (BiT-S) and imagenet21k (BiT-M): 90 epochs, the rate drops after 30, 60 and 80. jft (BiT-L): 40 epochs,
    after 10, 23, 30 and 37. Weight decay 1e-4 in the gradient (L2), no mixup, 224 px. Data with several labels per
    image gets the sigmoid loss and a head bias of -10 (big_vision). Expected: 80.7 % on ImageNet with BiT-M R50x1,
    fine-tuned by `bit_hyperrule` (README of the released code). Time: 9,900 TPUv3-core-days for BiT-L R152x4 (ViT,
    table 2).

    >>> r = sl.recipes.bit_upstream("imagenet")
    >>> r.lr, r.epochs, [round(90 * m) for m in r.milestones]
    (0.48, 90, [30, 60, 80])
    """
    if data not in (I1K, I21K, JFT):
        raise ValueError(
            f"BiT is pre-trained on imagenet, imagenet21k or jft; got {data}. Try --recipe bit_upstream:imagenet."
        )
    epochs, drops = (40, (10, 23, 30, 37)) if data == JFT else (90, (30, 60, 80))  # section 3.3
    return Recipe(
        name="bit_upstream",
        optimizer="sgd",
        lr=0.03 * batch / 256,
        batch=batch,
        epochs=epochs,
        warmup=5_000,
        decay="staircase",
        milestones=tuple(drop / epochs for drop in drops),
        weight_decay=1e-4,
        size=224,
        **({} if data == I1K else SEVERAL_LABELS),
    )
