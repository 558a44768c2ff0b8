"""Do the intervals of summaries and sentences cover? `python -m benchmarks.sentences [draws images [names]]`.

As `benchmarks.verdicts`, for the numbers that results quote of themselves (`Result.summary`, `Result.intervals`):
samples are drawn from a finite population of photographs again and again, the result is made of each as it is shipped,
and its interval holds what all photographs give, or not. Some numbers depend on how many images there are (shares of
neighbors and of hits, largest of many): what is asked of them is the mean over all samples of that size.

Needs the shared data (SIGHTLINE_SHARED, or ../shared beside the checkout); without it nothing is done.
"""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

import sightline as sl
from benchmarks import verdicts as bench
from benchmarks.race import RESULTS, save
from benchmarks.verdicts import Layers, Rows
from sightline.analysis.similarity.grams import NEIGHBORS, Grams
from sightline.analysis.similarity.measures import gram, nearest, raw_gram
from sightline.analysis.similarity.sums import Sums
from sightline.analysis.tokens import outliers
from sightline.analysis.tokens.patching import TAKE_OVER
from sightline.data.draws import generator
from sightline.observe.images import ImageSource
from sightline.observe.model import evaluation_mode, observe
from sightline.observe.stream import residual_stream, watching

SAMPLE = 128
BY_SIZE = ("own patch", "mutual kNN", "most", "best match", "largest channel", "largest share")
Numbers = tuple[dict[str, float], dict[str, tuple[float, float]]]  # values and their intervals, by name
Make = Callable[[Rows, int], sl.Result]


@dataclass(frozen=True)
class Population:
    """A number of images or pairs, and how any sample of them becomes one result."""

    size: int
    make: Make
    groups: int = bench.GROUPS
    sample: int = SAMPLE
    named: Callable[[sl.Result, sl.Result], dict[str, float]] = lambda r, whole: {}  # what a sample's own choices (of a
    # channel, of a place) give in the whole population
    numbers: Callable[[sl.Result], Numbers] = lambda r: (r.summary(), r.intervals())


def coverage(p: Population, *, draws: int, n: int) -> list[dict]:
    """For each number of the summary: what all images give, and how often the intervals of samples hold it."""
    whole = p.make(np.arange(p.size), 0)
    truth = p.numbers(whole)[0]
    expected: dict[str, list[float]] = {name: [] for name in truth}
    values: dict[str, list[float]] = {name: [] for name in truth}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in truth}
    for draw in range(draws):
        rows = generator(draw, "sample of the population").permutation(p.size)[:n]
        r = p.make(rows, min(p.groups, n))
        numbers, ends = p.numbers(r)
        for name in truth:
            values[name].append(numbers[name])
            found[name].append(ends.get(name, (math.nan, math.nan)))
            expected[name].append(p.named(r, whole).get(name, math.nan))
    tables = ((name, np.array(values[name]), np.array(found[name]), np.array(expected[name])) for name in truth)
    rows_ = [row(*table, truth=truth[table[0]], part=n / p.size) for table in tables]
    return [r for r in rows_ if r["with_interval"]]


def row(name: str, values: NDArray, ends: NDArray, expected: NDArray, *, truth: float, part: float) -> dict:
    """One number, over all draws."""
    shrink = math.sqrt(1 - part)
    typical = float(values[np.isfinite(values)].mean())
    low, high = values - shrink * (values - ends[:, 0]), values + shrink * (ends[:, 1] - values)
    known = np.isfinite(low)
    general = typical if any(word in name for word in BY_SIZE) else truth
    expected = np.where(np.isfinite(expected), expected, general)
    half = (ends[:, 1] - ends[:, 0])[known] / 2
    return {
        "number": name,
        "population": truth,
        "mean of samples": typical,
        "covered": float(((low <= expected) & (expected <= high))[known].mean()) if known.any() else math.nan,
        "with_interval": float(known.mean()),
        "half width, median": float(np.median(half)) if known.any() else math.nan,
        "two standard errors": 2 * float(np.std(values, ddof=1)) / shrink,
    }


def of_outliers(model: object, data: sl.data.Dataset, times: float) -> Population:
    """Norms, channels and outliers of every image by itself, added up to samples as the analysis does."""
    s = observe(model)
    each = []
    with evaluation_mode(s):
        for made in ImageSource(data=data, batch=1).batches([s], what="outlier tokens"):
            sums = outliers.TokenSums(s, times, groups=1, registers=False)
            sums.member = torch.zeros(1, dtype=torch.long)
            with watching(residual_stream(s), sums.stream):
                s.model(made.images[0])
            for name in ("mass", "mass, squared", "sinks", "sinks, squared"):  # attention plays no part here
                sums.total[name] = {0: torch.zeros(3 if name.startswith("mass") else 1)}
            sums.maps["received"] = {0: [torch.zeros(1, 1)]}
            sums.images, sums.shown = 1, [np.zeros((1, 2, 2, 3), np.uint8)]
            each.append(sums)

    def make(rows: Rows, groups: int) -> sl.Result:
        count = max(groups, 1)
        whole = outliers.TokenSums(s, times, groups=count, registers=False)
        member = torch.arange(len(rows)) % count
        for name, places in each[0].total.items():
            for at, some in places.items():
                parts = torch.stack([each[i].total[name][at] for i in rows])
                if name in ("channels", "counts", "sizes", "members"):
                    empty = torch.zeros(count, *some.shape[1:], dtype=torch.float64)
                    whole.total.setdefault(name, {})[at] = empty.index_add_(0, member, parts[:, 0])
                else:
                    whole.total.setdefault(name, {})[at] = parts.sum(0)
        whole.images, whole.maps, whole.shown = len(rows), each[0].maps, each[0].shown
        return outliers._result(s, whole, "", how={"n": len(rows)}, about=sl.spec.About())

    def named(r: sl.analysis.OutlierTokens, whole: sl.analysis.OutlierTokens) -> dict[str, float]:
        channel = r.top_channels(1)[0][0]
        return {"share of the largest channel": float(whole.channels[(*r._carriers(r.peak), channel)])}

    return Population(len(each), make, named=named)


def of_neighbors(one: Layers, two: Layers) -> Population:
    """CKA and mutual neighbors of a sample, in one batch."""

    def grams(x: Layers, rows: Rows) -> Grams:
        made = Grams()
        for name, values in x.values.items():
            raw = raw_gram(values[rows])
            made.whole[name] = gram(values[rows], raw)
            made.near[name] = nearest(raw, made.whole[name], NEIGHBORS, "cosine")
        return made

    def make(rows: Rows, groups: int) -> sl.Result:
        names = list(one.values), list(two.values)
        sums = Sums(*names, groups=max(groups, 1))
        member = torch.from_numpy(np.arange(len(rows)) % max(groups, 1))
        sums.add(len(rows), grams(one, rows), grams(two, rows), groups=member)
        s, left = sums.cka().numpy(), sums.ways["printed"].without_groups().numpy()[None]
        return sl.analysis.CKA(
            title="", caption="", similarity=s, band=0 * s, knn=sums.knn().numpy(), rows=tuple(names[0]),
            columns=tuple(names[1]), replicates=left, knn_replicates=sums.knn_without_groups().numpy(),
        )  # fmt: skip

    return Population(len(next(iter(one.values.values()))), make, bench.CKA_GROUPS)


def of_pairs(whole: sl.analysis.ActivationPatching) -> Population:
    """Activation patching of a sample of pairs."""

    def make(rows: Rows, groups: int) -> sl.Result:
        names = ("regions", "prefix", "branches", "heads", "controls", "difference", "classes", "images")
        return replace(whole, **{name: getattr(whole, name)[rows] for name in names})

    def numbers(r: sl.analysis.ActivationPatching) -> Numbers:
        """The place where the class token takes over as the number that its interval is computed of, not rounded."""
        return r.summary() | {TAKE_OVER: r.take_over()}, r.intervals() | {TAKE_OVER: r.take_over_interval()}

    return Population(len(whole.classes), make, sample=len(whole.classes) // 3, numbers=numbers)


def of_verdicts(p: bench.Population, which: int) -> Population:
    """One of the results that the verdicts of a population are made of."""
    return Population(p.size, lambda rows, groups: p.make(rows, groups)[which], p.groups)


def populations(images: int) -> dict[str, Callable[[], Population]]:
    """Every population, made when it is asked for."""
    data = bench.photographs(images)
    few = min(images, 200)
    vit, cnn = bench.deit(), sl.build("bit-nano", classes=0)

    def pairs() -> Population:
        return of_pairs(sl.analysis.activation_patching(vit, data, pairs=60, cells=1))

    def places() -> Population:
        return of_verdicts(bench.populations(images)["places"](), 0)

    return {
        "residual": lambda: of_verdicts(bench.of_residual(*2 * [bench.single(sl.residual_ratios, vit, data, few)]), 0),
        "outliers": lambda: of_outliers(vit, data.subset(indices=range(few)), 1.5),
        "neighbors": lambda: of_neighbors(
            bench.pooled(vit, data, bench.VIT), bench.pooled(cnn, data, bench.CNN, layers="all")
        ),
        "pairs": pairs,
        "distance": lambda: of_verdicts(
            bench.of_distance(*2 * [bench.single(sl.attention_distance, vit, data, images)]), 0
        ),
        "places": places,
    }


def main(draws: int = 200, images: int = 600, *names: str) -> None:
    """Every population, or some of them by name; rows of the others stay as they were."""
    if not bench.SHARED.is_dir():
        print("The shared photographs and weights are not here: nothing to do.")
        return
    torch.set_num_threads(1)
    saved = RESULTS / "sentences.json"
    known = json.loads(saved.read_text())["rows"] if saved.exists() else []
    rows = [r for r in known if names and r["images"] not in names]
    for name, make in populations(images).items():
        if names and name not in names:
            continue
        p = make()
        n = min(p.sample, p.size // 3)
        for found in coverage(p, draws=draws, n=n):
            rows.append({"images": name, "of": p.size, "n": n, "draws": draws, **found})
            print(f"{name:>10} {found['covered']:.3f} {found['number']}: {found['population']:.3g}", flush=True)
        save("sentences", {"rows": rows})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
