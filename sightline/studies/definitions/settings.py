"""What all studies share: small models, their recipes, and the images. A better recipe is put here, once."""

from dataclasses import replace
from typing import Any

from sightline.studies.engine.specs import Images, Measurement, Training
from sightline.training.recipe import Recipe
from sightline.training.recipes.laptop import laptop_bit, laptop_lejepa, laptop_masked, laptop_vit

SIZE = 24  # pixels: 6 x 6 patches of 4
BATCH, STEPS = 64, 1500
GUESS = 0.1  # accuracy of a guess among the ten classes of CIFAR-10
FIGURE = "shown as a figure, without a number"  # what the paper prints of some claims
LR = {"ViT": 1.5e-3, "BiT": 0.05}  # half of the laptop recipes' batch: about the root of it for AdamW, half for SGD

# about 8 and 11 million MACs an image, and twice to four times as many
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("vit-nano4", {}),
    "BiT": ("bit-nano", {}),
    "hybrid": ("r8-vit-nano4", {}),
    "Mixer": ("mixer-nano4", {}),
    "large ViT": ("vit-micro4", {}),
    "large BiT": ("bit-nano", {"units": (2, 2, 2)}),
}

CIFAR = Images(name="cifar10", size=SIZE)
CIFAR_TEST = Images(name="cifar10", split="test", size=SIZE)
LEARN = replace(CIFAR, num=5000, seed=1)  # for probes, and 2,000 images to score them
TEST = replace(CIFAR_TEST, num=2000)


def recipe(family: str, data: str, *, seed: int, **fields: Any) -> Recipe:
    """The recipe of a family. One pass per step, whatever memory is free: how a batch is split decides last bits."""
    bit = family.endswith("BiT")
    whole = laptop_bit(data) if bit else laptop_vit(data)
    given = {"epochs": None, "steps": STEPS, "batch": BATCH, "lr": LR["BiT" if bit else "ViT"], **fields}
    made = replace(whole, seed=seed, repeat=True, eval_every=given["steps"], **given)
    return replace(made, micro=made.batch)


def masked_recipe(data: str, *, seed: int, **fields: Any) -> Recipe:
    """Masked patch prediction."""
    given = {"epochs": None, "steps": STEPS, "batch": BATCH, **fields}
    made = replace(laptop_masked(data), seed=seed, repeat=True, **given)
    return replace(made, micro=made.batch)


def lejepa_recipe(data: str, *, seed: int, **fields: Any) -> Recipe:
    """LeJEPA, as many views in a step as other recipes have images."""
    given = {"epochs": None, "steps": STEPS, "batch": BATCH, "lr": LR["ViT"], **fields}
    made = replace(laptop_lejepa(data), seed=seed, repeat=True, **given)
    return replace(made, micro=made.batch)


def training(
    family: str, images: Images, *, seed: int, changes: dict[str, Any] | None = None, **fields: Any
) -> Training:
    """A model of one of the families, trained from scratch; `fields` change its recipe."""
    name, own = MODELS[family]
    return Training(
        model=name,
        images=images,
        recipe=recipe(family, images.name, seed=seed, **fields),
        seed=seed,
        changes=tuple(sorted({**own, **(changes or {})}.items())),
    )


def untrained(t: Training) -> Training:
    """The twin that was initialized alike and never trained."""
    return replace(t, recipe=None, start=None, val=None)


def accuracy(t: Training, test: Images, **options: Any) -> Measurement:
    return Measurement(name="accuracy", models=(t,), images=(test,), options=tuple(options.items()))


def few_shot(t: Training, learn: Images, test: Images) -> Measurement:
    options = (("shots", (1, 5, 10)), ("draws", 10))
    return Measurement(name="few-shot", models=(t,), images=(learn, test), options=options)


def probes(t: Training, learn: Images, test: Images, **options: Any) -> Measurement:
    usual = (("probe_shots", 50), ("draws", 2), *options.items())
    return Measurement(name="probes", models=(t,), images=(learn, test), options=usual)


def distances(t: Training, images: Images) -> Measurement:
    return Measurement(name="distances", models=(t,), images=(images,), options=(("n", 512),))


def similarity(a: Training, b: Training, images: Images, **options: Any) -> Measurement:
    usual = (("n", 1024), *options.items())
    return Measurement(name="similarity", models=(a, b), images=(images,), options=usual)


def thirds(blocks: list[float]) -> tuple[float, float]:
    """Mean over the lowest and over the top third of the blocks."""
    count = max(1, len(blocks) // 3)
    return sum(blocks[:count]) / count, sum(blocks[-count:]) / count
