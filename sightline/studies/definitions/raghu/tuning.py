"""What fine-tuning changes, and what models of two sizes share (Raghu et al., figures G.1 and G.2)."""

from collections.abc import Iterator
from dataclasses import replace

from sightline.studies.definitions.settings import CIFAR_TEST, LR, SIZE, STEPS, recipe, similarity, thirds
from sightline.studies.definitions.vit.data import MUCH, train
from sightline.studies.engine.specs import Images, Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study

NEAR, FAR = ("shape", "texture"), ("cells", "aerial")  # single objects as in CIFAR-10; microscope and satellite
IMAGES = 8000
TUNED = STEPS // 3


def tune(task: str, seed: int) -> Training:
    start = train("ViT", MUCH, seed)
    images = Images(name=f"scenes/{task}", num=IMAGES, size=SIZE, seed=seed)
    short = recipe("ViT", images.name, seed=seed + 1000, steps=TUNED, lr=LR["ViT"] / 5)
    return replace(start, images=images, recipe=short, start=start, changes=())


def measure(task: str, seed: int) -> Iterator[tuple[str, Measurement]]:
    """CKA is computed on the images of pre-training, the same for every task."""
    before = train("ViT", MUCH, seed)
    if task == "none":
        yield "to large", similarity(before, train("large ViT", MUCH, seed), CIFAR_TEST)
        yield "to other seed", similarity(before, train("ViT", MUCH, seed + 1), CIFAR_TEST)
    else:
        yield "before and after", similarity(tune(task, seed), before, CIFAR_TEST)


def mean(s: SeedNumbers, tasks: tuple[str, ...]) -> tuple[float, float]:
    """CKA before and after tuning, lowest and top third of the blocks, mean over tasks."""
    found = [thirds(s("before and after", task=task)["blocks"]) for task in tasks]
    return sum(low for low, _ in found) / len(found), sum(top for _, top in found) / len(found)


def sizes(s: SeedNumbers) -> float:
    low, top = thirds(s("to large", task="none")["blocks"])
    return low - top


STUDY = Study(
    name="tuning",
    question="Which blocks does fine-tuning change?",
    source="Raghu et al., figures G.1 and G.2",
    axes={"task": ("none", *NEAR, *FAR)},
    fixed={
        "start": "the ViT of the study data, trained on all of CIFAR-10",
        "tasks": "scenes, 8,000 images each, 500 steps of 64; near: shape, texture; far: cells, aerial",
        "images": "CKA on 1,024 test images of CIFAR-10",
    },
    scale="ViT of 0.2 million parameters, CIFAR-10 to tasks of scenes, 500 steps",
    measure=measure,
    decides=(
        Decides(
            claim="C23",
            source="Raghu et al., figures G.1 and G.2",
            statement="Lower blocks survive fine-tuning and are alike across sizes; far tasks change upper ones more.",
            paper="the first 4 or 5 of 12 blocks survive all of seven tasks",
            questions=(
                Question(
                    what="CKA before and after tuning, lowest third", of=lambda s: mean(s, NEAR + FAR)[0], bound=0.9
                ),
                Question(
                    what="CKA before and after tuning, lowest minus top third",
                    of=lambda s: mean(s, NEAR + FAR)[0] - mean(s, NEAR + FAR)[1],
                ),
                Question(
                    what="CKA before and after tuning, top third, near minus far tasks",
                    of=lambda s: mean(s, NEAR)[1] - mean(s, FAR)[1],
                ),
                Question(what="CKA of two sizes, lowest minus top third", of=sizes),
            ),
            null=Question(
                what="CKA with another seed, lowest third",
                of=lambda s: thirds(s("to other seed", task="none")["blocks"])[0],
                bound=0.9,
            ),
            control=Question(
                what="CKA before and after tuning minus that with another seed, lowest third",
                of=lambda s: mean(s, NEAR + FAR)[0] - thirds(s("to other seed", task="none")["blocks"])[0],
            ),
        ),
    ),
)
