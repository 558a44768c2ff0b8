"""Whether the intervals and the p of CKA are right, and their cost: `python -m benchmarks.similarity [rounds [parts]]`.

Parts: coverage, positives, costs, batches; each ends within some minutes of a core, and what is saved of the others
stays.
Coverage: a finite population of images, many samples of it, and how often the 95 % interval of a sample contains the
value of the population: DeiT-Tiny on photographs of pets if the shared data are there (SIGHTLINE_SHARED), else a small
untrained ViT on scenes. False positives: independent features of few and of many dimensions, 32 to 1,024 images.
Costs: processor time of one thread, ViT-S/16 against BiT-R50x1, all taps, a batch of 128. Batches: the intervals of the
same images in batches of 32 to 256, all tokens of DeiT-Tiny's blocks beside the units of bit-basic on CIFAR-10.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import sightline as sl
from benchmarks.analysis import BATCH, in_turns, ratio
from benchmarks.race import save, saved
from sightline.analysis.similarity.grams import NEIGHBORS, Grams
from sightline.analysis.similarity.measures import gram, nearest, raw_gram
from sightline.analysis.similarity.sums import CALIBRATED, LEAN, PRINTED, WITHIN, Sums
from sightline.evals.interval import jackknife
from sightline.models.taps import record
from sightline.observe.model import evaluation_mode, observe
from sightline.observe.selection import select_layers

DRAWS = 300
SAMPLE, SAMPLES, GROUPS = 256, 60, 64  # images, how often they are drawn, and their groups as in `sl.cka`
SHARED = Path(os.environ.get("SIGHTLINE_SHARED", Path(__file__).parents[2] / "shared")) / "data"
Matrix = Callable[[np.ndarray], float]
STATISTICS: dict[str, Matrix] = {
    "one pair of layers": lambda s: float(s[0, -1]),
    "lower to upper half": lambda s: float(s[: len(s) // 2, len(s) // 2 :].mean()),
    "best match of the last layer": lambda s: float(s[-1, :-1].max()),
    "spread of the map": lambda s: float(s[~np.eye(len(s), dtype=bool)].std()),
}


def population(model: object, data: object) -> tuple[list[Tensor], Tensor]:
    """The Gram matrices of every block's mean token over all images, and the images' labels."""
    table = sl.extract(model, data, layers="blocks", tokens="gap")
    return [gram(x.double()) for x in table.layers.values()], torch.from_numpy(table.labels)


def sums_of(
    grams: list[Tensor], labels: Tensor, rows: Tensor, batch: int, ways: Sequence[str] = (WITHIN, LEAN)
) -> Sums:
    """CKA of some images as `sl.cka` computes it, batch by batch, images in 20 groups."""
    names = list(map(str, range(len(grams))))
    sums = Sums(names, None, ways=ways, groups=20)
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        found = {name: k[part][:, part] for name, k in zip(names, grams)}
        member = torch.arange(start, start + len(part)) % 20
        sums.add(len(part), Grams(found, found), None, groups=member, labels=labels[part])
    return sums


def coverage(grams: list[Tensor], labels: Tensor, n: int, batch: int) -> dict[str, float]:
    """Share of samples whose interval contains the truth, by way and statistic.

    The truth of the printed value is that of the whole population; within class and without outliers, where the sizes
    of classes and the number of outliers belong to the batch, it is the mean over all samples. Samples are a good part
    of this population, so their intervals are narrower by the usual correction for a finite one.
    """
    finite = (1 - n / len(labels)) ** 0.5
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    whole = sums_of(grams, labels, torch.arange(len(labels)), len(labels), ()).cka().numpy()
    for draw in range(DRAWS):
        rows = torch.from_numpy(np.random.default_rng(draw).permutation(len(labels))[:n])
        for way, pairs in sums_of(grams, labels, rows, batch).ways.items():
            value, left = pairs.cka().numpy(), pairs.without_groups().numpy()
            for name, f in STATISTICS.items():
                half = finite * float(jackknife(np.array([f(s) for s in left])))
                found.setdefault((way, name), []).append((f(value), half))
    out = {}
    for (way, name), rows_ in found.items():
        values, halves = np.array(rows_).T
        truth = STATISTICS[name](whole) if way == PRINTED else values.mean()
        out[f"{way}, {name}"] = round(float((np.abs(values - truth) <= halves).mean()), 3)
    return out


def whole_grams(model: object, data: object) -> list[tuple[Tensor, Tensor]]:
    """Centered and raw Gram matrix of every block over all images, of all tokens or locations."""
    s = observe(model)
    features: dict[str, list[Tensor]] = {name: [] for name in select_layers(s, "blocks")}
    keep = lambda path, value: features[path].append(value.flatten(1).clone())  # noqa: E731
    with evaluation_mode(s), record(s.model, *features, keep=keep):
        for images, _ in data.batches(s.image, batch=64):
            s.model(images)
    whole = (torch.cat(features.pop(name)) for name in list(features))
    return [(gram(x), raw_gram(x)) for x in whole]


ACROSS: dict[str, Matrix] = {
    "one pair of layers": lambda s: float(s[0, -1]),
    "mean": lambda s: float(s.mean()),
    "top third minus the rest": lambda s: float(s[-4:].max(1).mean() - s[:-4].max(1).mean()),
}


def one_sample(sides: list[list[tuple[Tensor, Tensor]]], labels: Tensor, rows: Tensor, batch: int, seed: int) -> Sums:
    """CKA of two models on some images as `sl.cka` computes it, with neighbors."""
    names = [list(map(str, range(len(side)))) for side in sides]
    sums = Sums(*names, ways=[WITHIN, LEAN, CALIBRATED], groups=GROUPS, seed=seed)
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        found = []
        for name, side in zip(names, sides):
            some = [(k[part][:, part], raw[part][:, part]) for k, raw in side]
            near = {n: nearest(raw, k, NEIGHBORS, "cosine") for n, (k, raw) in zip(name, some)}
            grams = {n: k for n, (k, _) in zip(name, some)}
            found.append(Grams(grams, grams, near))
        member = torch.arange(start, start + len(part)) % GROUPS
        sums.add(len(part), *found, groups=member, labels=labels[part])
    return sums


def in_batches(sides: list[list[tuple[Tensor, Tensor]]], labels: Tensor, batch: int) -> dict[str, dict[str, float]]:
    """Mean, standard deviation and mean half width of the interval over samples, by way and statistic."""
    finite, found = (1 - SAMPLE / len(labels)) ** 0.5, {}
    for draw in range(SAMPLES):
        rows = torch.from_numpy(np.random.default_rng(draw).permutation(len(labels))[:SAMPLE])
        sums = one_sample(sides, labels, rows, batch, draw)
        for way, pairs in sums.ways.items():
            value, left = pairs.cka().numpy(), pairs.without_groups().numpy()
            for name, f in ACROSS.items():
                half = finite * float(jackknife(np.array([f(s) for s in left])))
                found.setdefault(f"{way}, {name}", []).append((f(value), half))
        left = sums.knn_without_groups().numpy().mean((1, 2))
        found.setdefault("mutual neighbors, mean", []).append(
            (float(sums.knn().mean()), finite * float(jackknife(left)))
        )
        spread = float(sums.null_cka().numpy().std(0).mean())
        found.setdefault("spread among permuted images", []).append((spread, 0.0))
    out = {}
    for name, pairs in found.items():
        values, halves = np.array(pairs).T
        near = np.abs(values - values.mean()) <= halves
        numbers = {"mean": values.mean(), "sd": values.std(ddof=1), "half width": halves.mean(), "within": near.mean()}
        out[name] = {k: round(float(v), 4) for k, v in numbers.items()}
    return out


def all_batches() -> dict[str, object]:
    data = sl.dataset("cifar10", "test").sample(1024, seed=0)
    models = sl.load(SHARED / "deit_tiny_patch16_224_in1k.npz"), sl.load("bit-basic.cifar10")
    sides = [whole_grams(model, data) for model in models]
    labels = torch.as_tensor(data.labels)
    sums = Sums(*(list(map(str, range(len(side)))) for side in sides))
    names = sums.rows, sums.columns
    sums.add(len(labels), *(Grams(dict(zip(n, (k for k, _ in side)))) for n, side in zip(names, sides)))
    whole = sums.cka().numpy()
    by_batch = {str(batch): in_batches(sides, labels, batch) for batch in (32, 64, 128, 256)}
    truth = {name: round(f(whole), 4) for name, f in ACROSS.items()}
    return {"batches": {"images": SAMPLE, "of": len(labels), "draws": SAMPLES, "of all images": truth, **by_batch}}


def false_positives(n: int, draws: int = 8) -> float:
    """Share of pairs of independent layers with p of at most 0.05."""
    hits, names = [], list(map(str, range(20)))
    for draw in range(draws):
        random = torch.Generator().manual_seed(draw)
        sides = [
            Grams(
                {
                    name: gram(torch.randn(n, (2, 5, 20, 100, 1000)[i % 5], generator=random))
                    for i, name in enumerate(names)
                }
            )
            for _ in range(2)
        ]
        sums = Sums(names, names, ways=[CALIBRATED], seed=draw)
        sums.add(n, *sides)
        hits.append((1 + (sums.null_cka() >= sums.cka()).sum(0) <= 5).double().mean().item())
    return round(float(np.mean(hits)), 4)


def costs(rounds: int) -> dict[str, object]:
    vit, cnn = sl.build("vit-s16", classes=10).eval(), sl.build("bit-r50x1", classes=10).eval()
    data = sl.dataset("scenes/objects", "test", num=BATCH, size=224)
    images = torch.cat([x for x, _ in data.batches(vit.image, batch=BATCH)])
    pairs = list(zip(images, data.labels.tolist()))

    def run(*ways: str) -> Callable[[int], object]:
        return lambda i: sl.cka(vit, cnn, pairs, batch=BATCH, ways=ways)

    times = in_turns({"plain": run(), "calibrated": run(CALIBRATED), "four": run(CALIBRATED, WITHIN, LEAN)}, rounds)
    return {
        "calibrated, x plain": ratio(times, "calibrated", "plain"),
        "four ways, x plain": ratio(times, "four", "plain"),
        "seconds": times,
    }


def all_coverage() -> dict[str, object]:
    if SHARED.is_dir():
        model, data = sl.load(SHARED / "deit_tiny_patch16_224_in1k.npz"), sl.dataset(SHARED / "pets", split="train")
        what = "DeiT-Tiny on training photographs of Oxford-IIIT Pets, mean of the patches of each block"
    else:
        model, data = sl.build("vit-nano4", classes=10), sl.dataset("scenes/objects", num=1000, size=32)
        what = "untrained vit-nano4 on scenes/objects at 32 px, mean of the patches of each block"
    grams, labels = population(model, data)
    out: dict[str, object] = {"images": what, "population": len(labels), "layers": len(grams), "draws": DRAWS}
    for n, batch in ((64, 64), (128, 64), (128, 128)):
        out[f"coverage, {n} images in batches of {batch}"] = coverage(grams, labels, n, batch)
    return out


def all_positives() -> dict[str, object]:
    return {"false positives": {str(n): false_positives(n) for n in (32, 64, 128, 256, 512, 1024)}}


def main(rounds: int = 2, *parts: str) -> None:
    torch.set_num_threads(1)
    runs: dict[str, Callable[[], dict[str, object]]] = {
        "coverage": all_coverage,
        "positives": all_positives,
        "costs": lambda: {"costs": costs(rounds)},
        "batches": all_batches,
    }
    out: dict[str, object] = {}
    for name in parts or runs:
        found = runs[name]()
        print(json.dumps(found, indent=1), flush=True)
        out |= found
        save("similarity", saved("similarity") | out if parts else out)


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":  # NumPy reads it when it is imported
        command = [sys.executable, "-m", "benchmarks.similarity", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "OMP_NUM_THREADS": "1"})
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
