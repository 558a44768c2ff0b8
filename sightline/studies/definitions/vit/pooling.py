"""Class token or mean of the patches (ViT, figure 9; Raghu et al., figures 10, 11 and D.4)."""

from collections.abc import Iterator

from sightline.studies.definitions.settings import (
    CIFAR,
    CIFAR_TEST,
    FIGURE,
    GUESS,
    LEARN,
    LR,
    TEST,
    accuracy,
    probes,
    similarity,
    training,
    untrained,
)
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study, seed_null

RATES = tuple(LR["ViT"] * factor for factor in (1, 2, 1 / 2, 1 / 4))
USUAL = RATES[0]  # the rate at which representations are compared
POINT = 0.01


def train(pool: str, rate: float, seed: int) -> Training:
    changes = {} if pool == "cls" else {"pool": pool}
    return training("ViT", CIFAR, seed=seed, changes=changes, lr=rate)


def measure(pool: str, rate: float, seed: int) -> Iterator[tuple[str, Measurement]]:
    model = train(pool, rate, seed)
    yield "accuracy", accuracy(model, CIFAR_TEST)
    if rate != USUAL:
        return
    yield "own patch", own_patch(model)
    yield "untrained own patch", own_patch(untrained(model))
    yield "places", Measurement(name="places", models=(model,), images=(CIFAR_TEST,), options=(("n", 1024),))
    yield "probes", probes(model, LEARN, TEST)
    tokens = (("probe_shots", 50),)
    yield "top tokens", Measurement(name="top tokens", models=(model,), images=(LEARN, TEST), options=tokens)
    if pool == "cls":
        yield "to gap", similarity(model, train("gap", rate, seed), CIFAR_TEST)
        yield "to other seed", similarity(model, train("cls", rate, seed + 1), CIFAR_TEST)


def own_patch(model: Training) -> Measurement:
    return Measurement(name="own patch", models=(model,), images=(CIFAR_TEST,), options=(("n", 2048),))


def best_rate(s: SeedNumbers, pool: str) -> float:
    """The rate at which this pooling does best over all seeds: chosen once, not per seed."""
    means = {}
    for rate in RATES:
        found = [numbers.get(("accuracy", (("pool", pool), ("rate", rate)))) for numbers in s.by_seed.values()]
        known = [f["accuracy"] for f in found if f is not None and "accuracy" in f]
        means[rate] = sum(known) / len(known) if known else 0.0
    return max(means, key=lambda rate: means[rate])


def best(s: SeedNumbers, pool: str) -> float:
    return s.accuracy(pool=pool, rate=best_rate(s, pool))


def at_cls_rate(s: SeedNumbers) -> float:
    rate = best_rate(s, "cls")
    return s.accuracy(pool="gap", rate=rate) - s.accuracy(pool="cls", rate=rate)


def own(s: SeedNumbers, pool: str, name: str = "own patch") -> float:
    return float(s(name, pool=pool)["own minus others"])


def curve(s: SeedNumbers, pool: str, tokens: str) -> list[float]:
    return list(s("probes", pool=pool)["curves"][tokens])


def middle(values: list[float]) -> float:
    return values[len(values) // 2]


def early(s: SeedNumbers) -> float:
    """GAP model, a third of the way up: its mean minus its first token."""
    return lower_third(curve(s, "gap", "mean of patches")) - lower_third(curve(s, "gap", "first token"))


def lower_third(values: list[float]) -> float:
    return values[len(values) // 3]


def gap_twin(s: SeedNumbers) -> list[float]:
    """CKA by block of the CLS model with its GAP twin, minus that with a CLS model of another seed."""
    return [a - b for a, b in zip(s("to gap")["blocks"], s("to other seed")["blocks"])]


def lower_half(s: SeedNumbers) -> float:
    gaps = gap_twin(s)
    return sum(gaps[: len(gaps) // 2]) / (len(gaps) // 2)


STUDY = Study(
    name="pooling",
    question="Does it matter whether a ViT reads a class token or averages its patches?",
    source="ViT, figure 9; Raghu et al., figures 10, 11 and D.4",
    axes={"pool": ("cls", "gap"), "rate": RATES},
    fixed={
        "images": "CIFAR-10, all 50,000, at 24 px; tested on 10,000",
        "model": "vit-nano4, 36 patches",
        "steps": "1,500 of 64",
        "representations": f"compared at the learning rate {USUAL:g}; probes of 50 images per class",
    },
    scale="ViT of 0.2 million parameters on CIFAR-10 at 24 px, 1,500 steps, four learning rates",
    measure=measure,
    seeds=10,  # the second five for all claims alike, after five left many undecided: docs/log.md, 2026-11-18
    decides=(
        Decides(
            claim="V5",
            source="ViT, figure 9",
            statement="Average pooling at the class token's learning rate is worse; at its own it is as good.",
            paper="CLS at 8e-4 equals GAP at 3e-4; GAP at 8e-4 is clearly worse",
            questions=(
                Question(what="accuracy at the best rate of CLS, GAP minus CLS", of=at_cls_rate, side="below"),
                Question(
                    what="accuracy at the best rate of each, GAP minus CLS",
                    of=lambda s: best(s, "gap") - best(s, "cls"),
                    side="within",
                    margin=POINT,
                ),
            ),
            null=Question(
                what="accuracy at the best rate of CLS, CLS minus CLS of another seed",
                of=lambda s: best(s, "cls") - best(s.next(), "cls"),
                side="below",
                noise=True,
            ),
            control=Question(what="accuracy at the best rate of CLS", of=lambda s: best(s, "cls"), bound=GUESS),
        ),
        Decides(
            claim="C16",
            source="Raghu et al., figure 10",
            statement="Trained with average pooling, a ViT loses localization.",
            paper=FIGURE,
            questions=(
                Question(
                    what="CKA of tokens with their own patch minus with others, CLS minus GAP",
                    of=lambda s: own(s, "cls") - own(s, "gap"),
                ),
            ),
            null=Question(
                what="CKA of tokens with their own patch minus with others, CLS minus GAP, untrained twins",
                of=lambda s: own(s, "cls", "untrained own patch") - own(s, "gap", "untrained own patch"),
            ),
            control=Question(
                what="CKA with the own patch minus with others, untrained CLS: skips carry every patch to the top",
                of=lambda s: own(s, "cls", "untrained own patch"),
            ),
        ),
        Decides(
            claim="C17",
            source="Raghu et al., figure 11a",
            statement="Single tokens at the top predict the class better after GAP training than after CLS training.",
            paper="6 to 10 % and 57 to 58 %",
            questions=(
                Question(
                    what="probe of single tokens at the top, GAP minus CLS",
                    of=lambda s: s("top tokens", pool="gap")["accuracy"] - s("top tokens", pool="cls")["accuracy"],
                ),
            ),
            null=Question(
                what="probe of single tokens at the top, GAP minus GAP of another seed",
                of=lambda s: s("top tokens", pool="gap")["accuracy"] - s.next()("top tokens", pool="gap")["accuracy"],
                noise=True,
            ),
            control=Question(
                what="probe of single tokens at the top, GAP",
                of=lambda s: s("top tokens", pool="gap")["accuracy"],
                bound=GUESS,
            ),
        ),
        Decides(
            claim="C18",
            source="Raghu et al., figure 11b",
            statement="Probed as they were trained, both end up equal; GAP's first token is poor early, good late.",
            paper=FIGURE,
            questions=(
                Question(
                    what="probe at the end, CLS model's class token minus GAP model's mean",
                    of=lambda s: curve(s, "cls", "class token")[-1] - curve(s, "gap", "mean of patches")[-1],
                    side="within",
                    margin=3 * POINT,
                ),
                Question(what="GAP model, a third of the way up, mean minus first token", of=early),
                Question(
                    what="GAP model at the end, mean minus first token",
                    of=lambda s: curve(s, "gap", "mean of patches")[-1] - curve(s, "gap", "first token")[-1],
                    side="within",
                    margin=3 * POINT,
                ),
                Question(
                    what="CLS model, middle block, mean of patches minus class token",
                    of=lambda s: middle(curve(s, "cls", "mean of patches")) - middle(curve(s, "cls", "class token")),
                    side="within",
                    margin=3 * POINT,
                ),
                Question(
                    what="CLS model at the end, class token minus mean of patches",
                    of=lambda s: curve(s, "cls", "class token")[-1] - curve(s, "cls", "mean of patches")[-1],
                ),
            ),
            null=seed_null(
                "GAP model, a third of the way up, mean", lambda s: lower_third(curve(s, "gap", "mean of patches"))
            ),
            control=Question(
                what="CLS model, class token, last minus first block",
                of=lambda s: curve(s, "cls", "class token")[-1] - curve(s, "cls", "class token")[0],
            ),
        ),
        Decides(
            claim="C19",
            source="Raghu et al., appendix D",
            statement="CLS and GAP models agree up to the middle and differ at the end.",
            paper="up to block 6 of 12; strongly different in blocks 11 and 12",
            questions=(
                Question(
                    what="CKA with the GAP twin minus with a CLS model of another seed, lower half",
                    of=lower_half,
                    side="within",
                    margin=0.05,
                ),
                Question(
                    what="CKA with the GAP twin minus with a CLS model of another seed, last block",
                    of=lambda s: gap_twin(s)[-1],
                    side="below",
                ),
            ),
            null=Question(
                what="CKA with another seed, last block, minus that of the next seed",
                of=lambda s: s("to other seed")["blocks"][-1] - s.next()("to other seed")["blocks"][-1],
                side="below",
                noise=True,
            ),
            control=Question(
                what="CKA with a CLS model of another seed, first block",
                of=lambda s: s("to other seed")["blocks"][0],
                bound=0.5,
            ),
        ),
    ),
)
