"""How much data each family needs (ViT, figures 3 and 4; BiT, figure 5; Raghu et al., figures 4, 12 and 13a)."""

from collections.abc import Iterator
from dataclasses import replace

from sightline.studies.definitions.settings import (
    CIFAR,
    CIFAR_TEST,
    GUESS,
    LEARN,
    SIZE,
    TEST,
    accuracy,
    distances,
    few_shot,
    probes,
    similarity,
    thirds,
    training,
    untrained,
)
from sightline.studies.engine.specs import Images, Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study

LITTLE, SOME, MUCH = 1000, 7000, 50_000
FAMILIES = ("ViT", "BiT", "hybrid", "large ViT", "large BiT")
OTHER = Images(name="fashion-mnist", num=2000, size=SIZE)  # a task that nothing was trained on
OTHER_TEST = Images(name="fashion-mnist", split="test", num=2000, size=SIZE)


def train(family: str, images: int, seed: int) -> Training:
    """The same number of steps whatever the number of images; every seed has a subset of its own."""
    part = CIFAR if images == MUCH else replace(CIFAR, num=images, seed=seed)
    return training(family, part, seed=seed)


def measure(family: str, images: int, seed: int) -> Iterator[tuple[str, Measurement]]:
    if images == SOME and family not in ("ViT", "BiT"):  # the extremes decide
        return
    model = train(family, images, seed)
    yield "accuracy", accuracy(model, CIFAR_TEST)
    yield "few-shot", few_shot(model, OTHER, OTHER_TEST)
    yield "probes", probes(model, LEARN, TEST)
    if family.endswith("ViT"):
        yield "distances", distances(model, CIFAR_TEST)
        if images != MUCH:
            yield "to full data", similarity(model, train(family, MUCH, seed), CIFAR_TEST)
    if images == MUCH and family.endswith("ViT"):
        yield "to other seed", similarity(model, train(family, MUCH, seed + 1), CIFAR_TEST)
        yield "untrained", accuracy(untrained(model), CIFAR_TEST)
        yield "untrained distances", distances(untrained(model), CIFAR_TEST)
        yield "untrained to full data", similarity(untrained(model), model, CIFAR_TEST)


def five_shot(s: SeedNumbers, family: str, images: int) -> float:
    found = s("few-shot", family=family, images=images)
    return float(found["accuracy"][found["shots"].index(5)] if 5 in found["shots"] else found["accuracy"][-1])


def gap(s: SeedNumbers, images: int) -> float:
    """Accuracy, BiT minus ViT."""
    return s.accuracy(family="BiT", images=images) - s.accuracy(family="ViT", images=images)


def last_gain(s: SeedNumbers, family: str) -> float:
    return five_shot(s, family, MUCH) - five_shot(s, family, SOME)


def size_gain(s: SeedNumbers, family: str, images: int) -> float:
    """Accuracy, large model minus small one."""
    return s.accuracy(family=f"large {family}", images=images) - s.accuracy(family=family, images=images)


def nearest(s: SeedNumbers, images: int, name: str = "distances") -> float:
    """Distance of the most local head of the two lowest blocks, in units of uniform attention."""
    return min(min(row) for row in s(name, family="large ViT", images=images)["heads"][:2])


def low_minus_top(s: SeedNumbers, family: str, name: str = "to full data", images: int = LITTLE) -> float:
    low, top = thirds(s(name, family=family, images=images)["blocks"])
    return low - top


def top(s: SeedNumbers, family: str) -> float:
    return thirds(s("to full data", family=family, images=LITTLE)["blocks"])[1]


def middle(s: SeedNumbers, family: str, images: int) -> float:
    """Probe of the middle block."""
    curves = s("probes", family=family, images=images)["curves"]
    curve = curves.get("mean of patches") or curves["mean of the map"]
    return float(curve[len(curve) // 2])


STUDY = Study(
    name="data",
    question="Does a ViT need more data than a CNN, and what does it learn from more?",
    source="ViT, figures 3 and 4; BiT, figure 5; Raghu et al., figures 4, 12 and 13a",
    axes={"family": FAMILIES, "images": (LITTLE, SOME, MUCH)},
    fixed={
        "images": "CIFAR-10 at 24 px, another subset for every seed; tested on 10,000",
        "steps": "1,500 of 64 for every model and number of images",
        "models": "vit-nano4, bit-nano, r8-vit-nano4; large: vit-micro4, bit-nano with two units a stage",
        "left out": "7,000 images for all but the small ViT and BiT: the extremes decide",
    },
    scale="ViT, BiT and hybrid of 0.2 to 0.8 million parameters; 1,000 to 50,000 images of CIFAR-10, 1,500 steps",
    measure=measure,
    decides=(
        Decides(
            claim="V1",
            source="ViT, figure 3",
            statement="With little training data a ResNet is better than a ViT, with much the ViT is better.",
            paper="ImageNet: L/16 76.5 < B/16 77.9; JFT: 87.1 > 84.2, above BiT",
            questions=(
                Question(what="accuracy with 1,000 images, BiT minus ViT", of=lambda s: gap(s, LITTLE)),
                Question(what="accuracy with 50,000 images, BiT minus ViT", of=lambda s: gap(s, MUCH), side="below"),
            ),
            null=Question(
                what="accuracy with 1,000 images, ViT minus the same ViT of another seed",
                of=lambda s: s.accuracy(family="ViT", images=LITTLE) - s.next().accuracy(family="ViT", images=LITTLE),
                noise=True,
            ),
            control=Question(
                what="accuracy with 50,000 images, ViT minus its untrained twin",
                of=lambda s: (
                    s.accuracy(family="ViT", images=MUCH) - s("untrained", family="ViT", images=MUCH)["accuracy"]
                ),
            ),
        ),
        Decides(
            claim="V2",
            source="ViT, figure 4",
            statement="In few-shot accuracy ResNets lead after little data and level off sooner; ViTs overtake them.",
            paper="ViT-B/32 below R50 at 9M images, above from 90M",
            questions=(
                Question(
                    what="5-shot accuracy on another task after 1,000 images, BiT minus ViT",
                    of=lambda s: five_shot(s, "BiT", LITTLE) - five_shot(s, "ViT", LITTLE),
                ),
                Question(
                    what="5-shot accuracy on another task after 50,000 images, BiT minus ViT",
                    of=lambda s: five_shot(s, "BiT", MUCH) - five_shot(s, "ViT", MUCH),
                    side="below",
                ),
                Question(
                    what="gain in 5-shot accuracy from 7,000 to 50,000 images, ViT minus BiT",
                    of=lambda s: last_gain(s, "ViT") - last_gain(s, "BiT"),
                ),
            ),
            null=Question(
                what="5-shot accuracy after 1,000 images, BiT minus the same BiT of another seed",
                of=lambda s: five_shot(s, "BiT", LITTLE) - five_shot(s.next(), "BiT", LITTLE),
                noise=True,
            ),
            control=Question(
                what="accuracy of the BiT on its own task, 50,000 minus 1,000 images",
                of=lambda s: s.accuracy(family="BiT", images=MUCH) - s.accuracy(family="BiT", images=LITTLE),
            ),
        ),
        Decides(
            claim="C6",
            source="Raghu et al., figure 4",
            statement="Trained on little data, a large ViT has no local heads in its lowest blocks.",
            paper="ViT-L/16 and H/14 on ImageNet against JFT; not B/32",
            questions=(
                Question(
                    what="distance of the most local head of the two lowest blocks, 1,000 minus 50,000 images",
                    of=lambda s: nearest(s, LITTLE) - nearest(s, MUCH),
                ),
            ),
            null=Question(
                what="distance of that head, 50,000 images minus another seed",
                of=lambda s: nearest(s, MUCH) - nearest(s.next(), MUCH),
                noise=True,
            ),
            control=Question(
                what="distance of that head, untrained minus 50,000 images",
                of=lambda s: nearest(s, MUCH, "untrained distances") - nearest(s, MUCH),
            ),
        ),
        Decides(
            claim="C20",
            source="Raghu et al., figure 12",
            statement="With less data the lower blocks stay and the upper ones change, more so in larger models.",
            paper="3 % of JFT is enough for the lowest blocks",
            questions=(
                Question(
                    what="CKA with the full-data twin, lowest minus top third of the blocks, ViT",
                    of=lambda s: low_minus_top(s, "ViT"),
                ),
                Question(
                    what="CKA with the full-data twin, lowest minus top third of the blocks, large ViT",
                    of=lambda s: low_minus_top(s, "large ViT"),
                ),
                Question(
                    what="CKA with the full-data twin, top third, small minus large ViT",
                    of=lambda s: top(s, "ViT") - top(s, "large ViT"),
                ),
            ),
            null=Question(
                what="CKA with the full-data twin, top third, small ViT minus that of another seed",
                of=lambda s: top(s, "ViT") - top(s.next(), "ViT"),
                noise=True,
            ),
            control=Question(
                what="CKA of the full-data ViT with another seed, minus with its untrained twin, top third",
                of=lambda s: (
                    thirds(s("to other seed", family="ViT", images=MUCH)["blocks"])[1]
                    - thirds(s("untrained to full data", family="ViT", images=MUCH)["blocks"])[1]
                ),
            ),
        ),
        Decides(
            claim="C21",
            source="Raghu et al., figure 13a",
            statement="Models trained on much data have better representations in their middle layers.",
            paper="about 30 points for L/16 and H/14",
            questions=(
                Question(
                    what="probe of the middle block, 50,000 minus 1,000 images, ViT",
                    of=lambda s: middle(s, "ViT", MUCH) - middle(s, "ViT", LITTLE),
                ),
                Question(
                    what="probe of the middle block, 50,000 minus 1,000 images, large ViT",
                    of=lambda s: middle(s, "large ViT", MUCH) - middle(s, "large ViT", LITTLE),
                ),
            ),
            null=Question(
                what="probe of the middle block, 50,000 images minus another seed",
                of=lambda s: middle(s, "ViT", MUCH) - middle(s.next(), "ViT", MUCH),
                noise=True,
            ),
            control=Question(
                what="probe of the middle block, 50,000 images, ViT", of=lambda s: middle(s, "ViT", MUCH), bound=GUESS
            ),
        ),
        Decides(
            claim="B1",
            source="BiT, figure 5",
            statement="Larger models gain from more data, smaller ones little.",
            paper="R50x1 can lose from ImageNet-21k to JFT; R152x4 gains",
            questions=(
                Question(
                    what="large minus small BiT, at 50,000 minus at 1,000 images",
                    of=lambda s: size_gain(s, "BiT", MUCH) - size_gain(s, "BiT", LITTLE),
                ),
                Question(
                    what="large minus small ViT, at 50,000 minus at 1,000 images",
                    of=lambda s: size_gain(s, "ViT", MUCH) - size_gain(s, "ViT", LITTLE),
                ),
            ),
            null=Question(
                what="gain of the larger BiT at 50,000 images, minus that of another seed",
                of=lambda s: size_gain(s, "BiT", MUCH) - size_gain(s.next(), "BiT", MUCH),
                noise=True,
            ),
            control=Question(
                what="accuracy of the large BiT, 50,000 minus 1,000 images",
                of=lambda s: (
                    s.accuracy(family="large BiT", images=MUCH) - s.accuracy(family="large BiT", images=LITTLE)
                ),
            ),
        ),
    ),
)
