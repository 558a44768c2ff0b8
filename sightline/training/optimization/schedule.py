"""The learning rate of each step: warm-up times decay, as the papers' code computes it."""

import math

from sightline.training.recipe import Recipe


def learning_rate(recipe: Recipe, step: int, *, steps: int, warmup: int = 0) -> float:
    """The learning rate of optimizer step `step`, counted from 0, in a training of `steps` steps.

    The warm-up factor min(1, step / warmup) multiplies the decay. So step 0 of a training with warm-up has rate 0, as
    in the code of both papers: it moves no weight, but the optimizer's moments start there. Cosine and linear run from
    `lr` at the end of warm-up to `end_lr` at `steps`, which the last step just fails to reach. A staircase drops after
    its milestones: step == milestone still has the old rate (big_transfer tests `milestone < step`).

    >>> r = sl.Recipe(lr=0.1, batch=8, steps=110, decay="cosine")
    >>> [round(sl.training.learning_rate(r, s, steps=110, warmup=10), 4) for s in (0, 5, 10, 60, 110)]
    [0.0, 0.05, 0.1, 0.05, 0.0]
    """
    lr = rate_without_warmup(recipe, step, steps=steps, warmup=warmup)
    return lr * min(1.0, step / warmup) if warmup else lr


def rate_without_warmup(recipe: Recipe, step: int, *, steps: int, warmup: int = 0) -> float:
    """The decay alone, without the warm-up factor."""
    lr, end = float(recipe.lr), float(recipe.end_lr)
    progress = min(1.0, max(0.0, (step - warmup) / max(1, steps - warmup)))
    match recipe.decay:
        case "cosine":
            return end + (lr - end) * (1 + math.cos(math.pi * progress)) / 2
        case "linear":
            return end + (lr - end) * (1 - progress)
        case "staircase":
            return lr * float(recipe.factor) ** sum(m < step for m in milestone_steps(recipe, steps))
        case _:
            return lr


def milestone_steps(recipe: Recipe, steps: int) -> tuple[int, ...]:
    """The milestones of a staircase in steps; those given as shares of training are converted."""
    return tuple(round(m * steps) if m < 1 else int(m) for m in recipe.milestones)
