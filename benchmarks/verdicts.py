"""Do the verdicts' 95 % intervals cover, and do they decide? `python -m benchmarks.verdicts [draws images [names]]`.

Photographs are a finite population: what a verdict's effect is over all of them is known. Samples are drawn from it
again and again, the verdict is made of each as it is shipped, and its interval holds the population's value, or not.
Without replacement a sample of n from N varies by sqrt(1 - n/N) of what it would in an endless population: intervals
are shortened by that before they are asked.

Needs the shared data (SIGHTLINE_SHARED, or ../shared beside the checkout); without it nothing is done.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import sightline as sl
from benchmarks.race import RESULTS, save
from sightline.analysis.similarity.cka import GROUPS as CKA_GROUPS
from sightline.analysis.similarity.grams import Grams
from sightline.analysis.similarity.localization import centered_grams, own_minus_other
from sightline.analysis.similarity.measures import gram
from sightline.analysis.similarity.sums import PairSums, Sums
from sightline.data.draws import generator
from sightline.evals.probing.by_layer import one_layer
from sightline.models.taps import record
from sightline.observe.groups import GROUPS
from sightline.observe.images import ImageSource
from sightline.observe.model import observe
from sightline.spec import About, ModelId
from sightline.studies.claims import CLAIMS, judge
from sightline.studies.evidence import gather

SHARED = Path(os.environ.get("SIGHTLINE_SHARED", Path(__file__).parents[2] / "shared")) / "data"
DRAWS, IMAGES, SAMPLE = 200, 600, 128
VIT = ModelId(name="DeiT-Tiny", kind="vit", pool="cls")
CNN = ModelId(name="BiT", kind="cnn", pool="map")
GAP = ModelId(name="GAP", kind="vit", pool="gap")
HYBRID = ModelId(name="hybrid", kind="hybrid", pool="cls")
Rows = NDArray[np.int64]
Make = Callable[[Rows, int], list[sl.Result]]  # images of a sample, groups of them -> the results that are judged


@dataclass(frozen=True)
class Population:
    """A number of images, and how any sample of them becomes the results of some claims."""

    claims: tuple[str, ...]
    size: int
    make: Make
    groups: int = GROUPS  # of images, as many as the analysis takes


def effects(claim: str, results: Sequence[sl.Result]) -> dict[str, sl.studies.Effect]:
    """Every effect of a claim, by name."""
    chosen = next(c for c in CLAIMS if c.number == claim)
    return {e.what: e for v in judge(chosen, gather(results)) for e in v.effects}


def coverage(p: Population, *, draws: int, n: int) -> list[dict]:
    """For each effect: the population's value, how often intervals hold it, and how often they decide."""
    truth = {c: effects(c, p.make(np.arange(p.size), 0)) for c in p.claims}
    found = {(c, what): [] for c in p.claims for what in truth[c]}
    for draw in range(draws):
        rows = generator(draw, "sample of the population").permutation(p.size)[:n]
        results = p.make(rows, min(p.groups, n))
        for c in p.claims:
            for what, effect in effects(c, results).items():
                found[c, what].append(effect)
    return [row(c, truth[c][what], every, n / p.size) for (c, what), every in found.items()]


def row(claim: str, truth: sl.studies.Effect, every: list[sl.studies.Effect], part: float) -> dict:
    """One effect, over all draws."""
    known = [e for e in every if math.isfinite(e.low)]
    shrink = math.sqrt(1 - part)
    covered = [shrink * (e.low - e.value) <= truth.value - e.value <= shrink * (e.high - e.value) for e in known]
    error = float(np.std([e.value for e in every], ddof=1)) / shrink
    edge = min(abs(truth.value - truth.bound - s * truth.margin) for s in (-1, 1))
    states = [e.state for e in every]
    right = replace(truth, low=truth.value, high=truth.value).state
    # were its bound two standard errors below or above the truth: how many intervals would end before it
    at_two = [end < 2 * error for e in known for end in (truth.value - e.low, e.high - truth.value)]
    return {
        "claim": claim,
        "effect": truth.what,
        "population": truth.value,
        "covered": float(np.mean(covered)) if known else math.nan,
        "with_interval": len(known) / len(every),
        "errors_from_bound": edge / error if error > 0 else math.nan,
        "decided_at_two_errors": float(np.mean(at_two)) if known else math.nan,
        "decided_rightly": states.count(right) / len(states),
        "decided_wrongly": sum(s not in (right, "undecided") for s in states) / len(states),
    }


def without(values: NDArray, groups: int) -> NDArray:
    """Means over the first axis without each group of its rows."""
    if not groups:
        return np.zeros((0, *values.shape[1:]))
    member = np.arange(len(values)) % groups
    return np.stack([values[member != g].mean(0) for g in range(groups)])


@dataclass(frozen=True)
class Layers:
    """Features of a population by layer, one vector per image."""

    id: ModelId
    values: dict[str, Tensor]
    stages: tuple[int, ...] = ()

    def grams(self, rows: Rows) -> Grams:
        return Grams({name: gram(x[rows]) for name, x in self.values.items()})


def pooled(model, data, ident: ModelId, layers="blocks") -> Layers:
    """The mean over all tokens or places of each layer."""
    s = observe(model)
    found = sl.extract(s, data, layers=layers, tokens="gap", batch=16).layers
    stages = tuple(-1 if s.part[k].stage is None else s.part[k].stage for k in found)
    return Layers(ident, {k: torch.as_tensor(v).double() for k, v in found.items()}, stages)


def similarity(one: Layers, two: Layers | None, rows: Rows, groups: int) -> sl.analysis.CKA:
    """CKA of a sample by the sums that `sl.cka` uses, in one batch."""
    names = list(one.values), list((two or one).values)
    sums = Sums(names[0], None if two is None else names[1], groups=groups)
    member = torch.from_numpy(np.arange(len(rows)) % groups) if groups else None
    sums.add(len(rows), one.grams(rows), None if two is None else two.grams(rows), groups=member)
    left = sums.ways["printed"].without_groups().numpy()[None] if groups else np.zeros((0, 0, 0, 0))
    s = sums.cka().numpy()
    return sl.analysis.CKA(
        title="", caption="", similarity=s, band=0 * s, knn=s, rows=tuple(names[0]), columns=tuple(names[1]),
        row_stages=one.stages, column_stages=(two or one).stages, replicates=left,
        about=About(models=(one.id,) if two is None else (one.id, two.id)),
    )  # fmt: skip


def of_similarity(vit: Layers, cnn: Layers) -> Population:
    def make(rows: Rows, groups: int) -> list[sl.Result]:
        own, other, both = (similarity(a, b, rows, groups) for a, b in ((vit, None), (cnn, None), (vit, cnn)))
        depth = np.linspace(0, len(both.columns) - 1, len(own.rows)).round().astype(int)
        blocks = (
            by_block(both, depth, 1000),
            by_block(own, np.minimum(np.arange(len(own.rows)) + 3, len(own.rows) - 1), 9000),
        )
        return [own, other, both, *blocks]

    return Population(("C1", "C2", "C3", "C4", "C20"), len(next(iter(vit.values.values()))), make, CKA_GROUPS)


def by_block(r: sl.analysis.CKA, match: NDArray, parameters: int) -> sl.Result:
    """Each row with one column, as if they were the blocks of two runs. What was trained on what plays no part here."""
    cells = np.arange(len(match)), match
    left = r.replicates[0][:, *cells] if r.replicates.size else np.zeros((0, len(match)))
    return sl.analysis.BlockSimilarity(
        title="", caption="", models=(str(parameters),), similarity=r.similarity[cells][None], varied="data",
        band=np.zeros((1, len(match))), depth=np.linspace(0, 1, len(match))[None], replicates=left[:, None],
        parameters=(parameters,), training_images=(500,), about=About(models=(VIT, GAP)),
    )  # fmt: skip


def heads(model, data) -> tuple[Tensor, NDArray]:
    """The output of every head of the two lowest blocks, its mean over tokens, (heads, images, width); distances."""
    s = observe(model)
    paths, found = [p.path for p in s.parts if p.kind == "heads"][:2], []
    for made in ImageSource(data=data, batch=16).batches([s], what="heads"):
        with torch.no_grad(), record(s.model, *paths) as tape:
            s.model(made.images[0])
        found.append(torch.cat([tape[p].mean(2) for p in paths], dim=1))
    return torch.cat(found).transpose(0, 1).double(), sl.attention_distance(s, data, n=64).pixels[:2].ravel()


def of_heads(each: Tensor, distance: NDArray, cnn: Layers) -> Population:
    columns = dict(list(cnn.values.items())[:5])

    def make(rows: Rows, groups: int) -> list[sl.Result]:
        mine = Layers(VIT, {str(i): x for i, x in enumerate(each)})
        r = similarity(mine, Layers(CNN, columns), rows, groups)
        left = r.replicates[0] if groups else np.zeros((0, *r.similarity.shape))
        return [
            sl.analysis.HeadSubsets(
                title="", caption="", similarity=r.similarity[:3], distance=distance[:3], columns=tuple(columns),
                subsets=((0,), (1,), (2,)), block=0, replicates=left[:, :3], heads=r.similarity, head_distance=distance,
                head_replicates=left, places=tuple((i // 3, i % 3) for i in range(len(each))), about=r.about,
            )
        ]  # fmt: skip

    return Population(("C7",), each.shape[1], make)


def single(analysis, model, data, count: int, **settings) -> list[sl.Result]:
    """The analysis of each image by itself."""
    s = observe(model)
    return [analysis(s, data.subset(indices=[i]), **settings) for i in range(count)]


def of_distance(vit: list[sl.analysis.AttentionDistance], hybrid: list[sl.analysis.AttentionDistance]) -> Population:
    def one(each: list[sl.analysis.AttentionDistance], ident: ModelId, rows: Rows, groups: int) -> sl.Result:
        pixels = np.stack([each[i].pixels for i in rows])
        left = without(pixels, groups)
        return replace(each[0], pixels=pixels.mean(0), replicates=left, about=About(models=(ident,)))

    def make(rows: Rows, groups: int) -> list[sl.Result]:
        return [one(vit, VIT, rows, groups), one(hybrid, HYBRID, rows, groups)]

    return Population(("V8", "C5", "V9"), len(vit), make)


def residual(each: list[sl.analysis.ResidualRatios], ident: ModelId, rows: Rows, groups: int) -> sl.Result:
    """A residual study of a sample from those of its images."""
    table = np.stack([np.stack([r.ratio, r.class_token[0], r.cosine_sum, r.class_token[2]]) for r in each])[rows]
    mean = table.mean(0)
    return replace(
        each[0], ratio=mean[0], cosine_sum=mean[2], class_token=np.stack([mean[1], mean[1], mean[3]]),
        replicates=without(table, groups), about=About(models=(ident,)),
    )  # fmt: skip


def of_residual(vit: list, cnn: list) -> Population:
    def make(rows: Rows, groups: int) -> list[sl.Result]:
        return [residual(vit, VIT, rows, groups), residual(cnn, CNN, rows, groups)]

    return Population(("C10", "C11", "C12"), len(vit), make)


def field(each: list[sl.analysis.ReceptiveField], ident: ModelId, rows: Rows, groups: int) -> sl.Result:
    """A receptive field of a sample: the images' maps, each with its own weight, summed."""
    mass = np.stack([np.array(r.how["gradient sums"]) for r in each])[rows]
    maps = np.stack([r.maps for r in each])[rows] * mass[:, :, None, None]
    own = np.stack([r.own for r in each])[rows] * mass
    member = np.arange(len(rows)) % max(groups, 1)

    def numbers(keep: NDArray) -> NDArray:
        whole = maps[keep].sum(0)
        radii = [sl.analysis.mass_radii(torch.from_numpy(m), tuple(c)) for m, c in zip(whole, each[0].centers)]
        return np.concatenate([np.array(radii), (own[keep].sum(0) / mass[keep].sum(0))[:, None]], 1)

    whole = numbers(np.ones(len(rows), dtype=bool))
    left = [numbers(member != g) for g in range(groups)]
    hits = np.stack([r.largest for r in each])[rows] if len(each[0].largest) else np.zeros((len(rows), 0))
    return replace(
        each[0], radii=whole[:, :2], own=whole[:, 2], about=About(models=(ident,)), how={"n": len(rows)},
        replicates=np.stack(left) if groups else np.zeros((0, 0, 0)),
        largest=hits.mean(0), largest_replicates=without(hits, groups),
    )  # fmt: skip


def of_fields(vit: list, vit_before: list, cnn: list, cnn_before: list) -> Population:
    def make(rows: Rows, groups: int) -> list[sl.Result]:
        pairs = ((vit, VIT), (vit_before, VIT), (cnn, CNN), (cnn_before, CNN))
        return [field(each, ident, rows, groups) for each, ident in pairs]

    return Population(("C8", "C9"), len(vit), make)


def of_places(tokens: Tensor, other: Tensor, earlier: Tensor, patches: Tensor, grid: tuple[int, int]) -> Population:
    """Tokens of two networks (tokens, images, width), on one grid, with the patches of the images; the second stands
    for a GAP model and for the last stage of a CNN, the third for an earlier stage."""

    def localized(x: Tensor, ident: ModelId, rows: Rows, groups: int) -> sl.Result:
        sums = PairSums(len(x), len(patches), groups)
        member = torch.from_numpy(np.arange(len(rows)) % groups) if groups else None
        sums.add(centered_grams(x[:, rows]), centered_grams(patches[:, rows]), member)
        left = sums.without_groups().unflatten(2, grid).numpy() if groups else np.zeros((0, 0, 0, 0))
        return sl.analysis.Localization(
            title="", caption="", maps=sums.cka().unflatten(1, grid).numpy(), class_token=np.zeros((0, *grid)),
            layer="last", grid=grid, replicates=left, how={"n": len(rows)}, about=About(models=(ident,)),
        )  # fmt: skip

    def make(rows: Rows, groups: int) -> list[sl.Result]:
        low = localized(earlier, CNN, rows, groups)
        own = np.array([own_minus_other(low.maps)])
        left = np.array([[own_minus_other(maps)] for maps in low.replicates]).reshape(-1, 1)
        cnn = replace(localized(other, CNN, rows, groups), earlier=own, earlier_replicates=left)
        return [localized(tokens, VIT, rows, groups), localized(other, GAP, rows, groups), cnn]

    return Population(("C14", "C15", "C16"), tokens.shape[1], make)


def of_probes(hits: NDArray, names: tuple[str, ...]) -> Population:
    """Whether each probe of each block is right about each image: (curves, blocks, images)."""

    def make(rows: Rows, groups: int) -> list[sl.Result]:
        part = np.moveaxis(hits[:, :, rows], 2, 0)
        mean, left = part.mean(0), without(part, groups)
        curves = sl.analysis.LayerProbes(
            title="", caption="", curves=names, accuracy=mean, half_width=0 * mean, how={"n": len(rows)},
            replicates=left,
        )  # fmt: skip
        return [curves, tokens(mean[1], left[:, 1], VIT), tokens(mean[4], left[:, 4], GAP)]

    return Population(("C17", "C18", "C19", "C22"), hits.shape[2], make)


def tokens(accuracy: NDArray, left: NDArray, ident: ModelId) -> sl.Result:
    """A curve as if it were the mean over probes of single tokens."""
    return sl.evals.ProbeAccuracy(
        title="", caption="", layers=tuple(map(str, range(len(accuracy)))), seeds=(0,), accuracy=accuracy[:, None],
        per_token=accuracy[:, None], replicates=left, about=About(models=(ident,)),
    )  # fmt: skip


@cache
def deit():
    return sl.load(SHARED / "deit_tiny_patch16_224_in1k.npz")


def photographs(count: int):
    """Pets of both splits, mixed."""
    return sl.dataset(SHARED / "pets", split="train").sample(count, seed=0)


def probe_hits(train, test, model, layers, tokens: Sequence[str]) -> NDArray:
    """For each choice of tokens, layer and test image, whether the probe is right."""
    maps = "own" if observe(model).attention_blocks else "last"
    both = [sl.extract(model, d, layers=layers, tokens="all", batch=16, maps=maps) for d in (train, test)]
    probe = sl.evals.LinearProbe(l2=2.0**10)
    chosen = [[f.reduce(t) for f in both] for t in tokens]
    return np.stack([[one_layer(probe, *(f.layer(k) for f in pair))[0] for k in pair[0].layers] for pair in chosen])


def populations(images: int) -> dict[str, Callable[[], Population]]:
    """Every population, made when it is asked for. Small fields come from small networks at 32 px."""
    data = photographs(images)
    small, cnn = sl.build("vit-nano4", classes=0), sl.build("bit-nano", classes=0)
    few = min(images, 200)

    def fields() -> Population:
        look = sl.receptive_field
        sums = [p.path for p in observe(small).parts if p.kind == "sum" and p.sublayer == "attention"]
        return of_fields(
            single(look, small, data, few), single(look, small, data, few, layers=sums, side="before"),
            single(look, cnn, data, few), single(look, cnn, data, few, side="before"),
        )  # fmt: skip

    def places() -> Population:
        found = sl.extract(deit(), data, layers=[0, 3, 11], tokens="patches", batch=16).layers.values()
        cut = [torch.as_tensor(x).double().unflatten(1, (7, 2, 7, 2)).mean((2, 4)).flatten(1, 2) for x in found]
        cut = [cut[0], cut[2], cut[1]]
        batches = data.batches(deit().image, batch=64, device=None)
        pixels = torch.cat([torch.nn.functional.avg_pool2d(x.double(), 4) for x, _ in batches])
        patches = pixels.unflatten(2, (7, 8)).unflatten(4, (7, 8)).permute(2, 4, 0, 1, 3, 5).flatten(3).flatten(0, 1)
        return of_places(*(x.transpose(0, 1) for x in cut), patches, (7, 7))

    def probes() -> Population:
        test = sl.dataset(SHARED / "pets", split="test")
        names = ("CLS; class token", "CLS; mean of patches", "CLS; mean of all", "GAP; first token",
                 "GAP; mean of patches", "CNN; mean of the map")  # fmt: skip
        hits = probe_hits(data, test, deit(), (0, 3, 6, 9, 11), ("cls", "gap", "mean", "mean", "cls"))
        theirs = probe_hits(data, test, cnn, "blocks", ("gap",))
        theirs = theirs[:, np.linspace(0, theirs.shape[1] - 1, hits.shape[1]).round().astype(int)]
        return of_probes(np.concatenate([hits, theirs]), names)

    return {
        "similarity": lambda: of_similarity(pooled(deit(), data, VIT), pooled(cnn, data, CNN, layers="all")),
        "heads": lambda: of_heads(*heads(deit(), data), pooled(cnn, data, CNN, layers="all")),
        "distance": lambda: of_distance(
            single(sl.attention_distance, deit(), data, images),
            single(sl.attention_distance, sl.build("r8-vit-nano4", classes=0), data, images),
        ),
        "residual": lambda: of_residual(
            single(sl.residual_ratios, deit(), data, few), single(sl.residual_ratios, cnn, data, few)
        ),
        "fields": fields,
        "places": places,
        "probes": probes,
    }


def main(draws: int = DRAWS, images: int = IMAGES, *names: str) -> None:
    """Every population, or some of them by name; rows of the others stay as they were."""
    if not SHARED.is_dir():
        print("The shared photographs and weights are not here: nothing to do.")
        return
    torch.set_num_threads(1)
    saved = RESULTS / "verdicts.json"
    known = json.loads(saved.read_text())["rows"] if saved.exists() else []
    rows = [r for r in known if names and r["images"] not in names]
    for name, make in populations(images).items():
        if names and name not in names:
            continue
        p = make()
        n = min(SAMPLE, p.size // 3)
        for found in coverage(p, draws=draws, n=n):
            rows.append({"images": name, "of": p.size, "n": n, "draws": draws, **found})
            print(f"{found['claim']:>4} {found['covered']:.3f} {found['decided_rightly']:.2f} {found['effect']}")
        save("verdicts", {"rows": rows})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
