"""The papers' figures redrawn from the numbers of studies, in the papers' layout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sightline.report.atlas.charts import Axes, dots, heat, lines, tiles
from sightline.report.atlas.drawn import Drawn, Panel, some
from sightline.studies.definitions.raghu import skips
from sightline.studies.definitions.vit import compute, data, pooling, positions
from sightline.studies.engine.study import MissingNumberError, SeedNumbers

BLOCK, ACCURACY, CKA = "block", "accuracy", "CKA"
DISTANCE = "distance / uniform"  # of attention


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of a paper, and how it is drawn from the numbers of a study."""

    source: str
    caption: str
    study: str
    draw: Callable[[Drawn], list[Panel]]


def by_data(d: Drawn, of: Callable[[SeedNumbers, str, int], float], what: str) -> list[Panel]:
    series = {
        f: [
            p for n in data.STUDY.axes["images"] for p in d.point(float(n), partial(at_cell, of=of, family=f, images=n))
        ]
        for f in data.FAMILIES
    }
    return [("", lines(some(series), Axes(x="training images", y=what, log=True)))]


def at_cell(s: SeedNumbers, *, of: Callable[[SeedNumbers, str, int], float], family: str, images: Any) -> float:
    return of(s, family, images)


def accuracy_by_data(d: Drawn) -> list[Panel]:
    return by_data(d, lambda s, f, n: s.accuracy(family=f, images=n), ACCURACY)


def few_shot_by_data(d: Drawn) -> list[Panel]:
    return by_data(d, data.five_shot, "5-shot accuracy")


def by_size(d: Drawn) -> list[Panel]:
    """BiT's figure 5: models by size, a line for each amount of data."""
    panels = []
    for kind in ("BiT", "ViT"):
        series = {}
        for n in (data.LITTLE, data.MUCH):
            sizes = (kind, f"large {kind}")
            series[f"{n:,} images"] = [
                p
                for i, f in enumerate(sizes)
                for p in d.point(i, lambda s, f=f, n=n: s.accuracy(family=f, images=n))  # type: ignore[misc]
            ]
        panels.append((kind, lines(some(series), Axes(x="model", y=ACCURACY, names=("small", "large")))))
    return panels


def by_compute(d: Drawn) -> list[Panel]:
    series = {
        m: [
            p
            for b in compute.BUDGETS
            for p in d.point(b, lambda s, m=m, b=b: s.accuracy(model=m, budget=b))  # type: ignore[misc]
        ]
        for m in compute.FAMILIES
    }
    return [("", lines(some(series), Axes(x="training MACs, of a ViT's 1,500 steps", y=ACCURACY, log=True)))]


def by_shape(d: Drawn) -> list[Panel]:
    rows = {}
    for m in ("ViT", *compute.SHAPES):
        try:
            rows[m] = d.interval(lambda s, m=m: s.accuracy(model=m, budget=compute.USUAL))  # type: ignore[misc]
        except MissingNumberError:
            continue
    if not rows:
        raise MissingNumberError("not measured yet")
    return [("", dots(rows, Axes(x="", y="accuracy at equal MACs")))]


def by_rate(d: Drawn) -> list[Panel]:
    series = {
        pool.upper(): [
            p
            for rate in sorted(pooling.RATES)
            for p in d.point(rate, lambda s, pool=pool, rate=rate: s.accuracy(pool=pool, rate=rate))  # type: ignore[misc]
        ]
        for pool in ("cls", "gap")
    }
    return [("", lines(some(series), Axes(x="learning rate", y=ACCURACY, log=True)))]


def table_8(d: Drawn) -> list[Panel]:
    rows = {}
    for kind in positions.KINDS:
        try:
            rows[kind] = d.interval(lambda s, kind=kind: s.accuracy(position=kind))  # type: ignore[misc]
        except MissingNumberError:
            continue
    if not rows:
        raise MissingNumberError("not measured yet")
    return [("", dots(rows, Axes(x="", y=ACCURACY)))]


def position_tiles(d: Drawn) -> list[Panel]:
    panels = []
    for rate in positions.RATES:
        try:
            found = d.first(lambda s, rate=rate: s("positions", position="1d", rate=rate)["tiles"])  # type: ignore[misc]
        except MissingNumberError:
            continue
        maps = np.array(found)
        side = round(len(maps) ** 0.5)
        sheet = tiles(maps.reshape(len(maps), side, side), Axes(x="column", y="row"), columns=side)
        panels.append((f"learning rate {rate:g}", sheet))
    if not panels:
        raise MissingNumberError("not measured yet")
    return panels


def curve_of(kind: str, who: str) -> Callable[[SeedNumbers], Any]:
    """One of the curves of the study seeing."""
    return lambda s: s("figures")[kind][who]


def distance_panels(d: Drawn, models: Sequence[str] = ("ViT", "hybrid")) -> list[Panel]:
    """Heads by depth, as fractions of the distance of uniform attention."""
    panels = []
    for who in models:
        heads = d.table(curve_of("distance", who))
        nan = float("nan")
        ranks = {
            nth(k, heads.shape[1]): [(float(i), float(row[k]), nan, nan) for i, row in enumerate(heads, 1)]
            for k in range(heads.shape[1])
        }
        panels.append((who, lines(ranks, Axes(x=BLOCK, y=DISTANCE, joined=False))))
    return panels


def nth(head: int, heads: int) -> str:
    """What a head is called that is sorted by distance within its block."""
    ends = {0: "most local head", heads - 1: "most global head"}
    return ends.get(head, f"head {head + 1} by distance")


def sorted_heads(d: Drawn) -> list[Panel]:
    """Raghu et al., figure 3: sorted heads of the two lowest and the two highest blocks."""
    return [("", sorted_lines(d.table(curve_of("distance", "ViT"))))]


def sorted_lines(heads: np.ndarray) -> Any:
    nan = float("nan")
    blocks = (0, 1, len(heads) - 2, len(heads) - 1)
    series = {
        f"block {b + 1}": [(float(k), float(x), nan, nan) for k, x in enumerate(np.sort(heads[b]), 1)] for b in blocks
    }
    return lines(series, Axes(x="head, sorted by distance", y=DISTANCE))


def heads_by_data(d: Drawn) -> list[Panel]:
    panels = []
    for n in (data.LITTLE, data.MUCH):
        heads = d.table(lambda s, n=n: [sorted(r) for r in s("distances", family="large ViT", images=n)["heads"]])  # type: ignore[misc]
        panels.append((f"{n:,} images", sorted_lines(heads)))
    return panels


def filters(d: Drawn) -> list[Panel]:
    rows = np.array(d.first(lambda s: [[float(x) for x in r.split()] for r in s("figures")["filters"]["ViT"]]))
    side = round((rows.shape[1] / 3) ** 0.5)
    return [("", tiles(rows.reshape(-1, side, side, 3), Axes(x="first 28 components", y=""), columns=7))]


def similar_within(d: Drawn) -> list[Panel]:
    axes = Axes(x="layer", y="layer")
    return [(who, heat(d.table(curve_of("cka", who)), axes)) for who in ("ViT", "BiT")]


def similar_across(d: Drawn) -> list[Panel]:
    return [("", heat(d.table(curve_of("cka", "ViT, BiT")), Axes(x="layer of the BiT", y="layer of the ViT")))]


def head_groups(d: Drawn) -> list[Panel]:
    table = d.table(lambda s: s("figures")["subsets"]["ViT, BiT"]["cka"])
    nan = float("nan")
    names = ("most local", "local", "global", "most global") if len(table) == 4 else [str(i) for i in range(len(table))]
    series = {name: [(float(i), float(x), nan, nan) for i, x in enumerate(row, 1)] for name, row in zip(names, table)}
    return [("", lines(series, Axes(x="layer of the BiT", y=f"{CKA} with heads of block 1")))]


def receptive(d: Drawn) -> list[Panel]:
    panels = []
    for who in ("ViT", "BiT"):
        maps = d.table(lambda s, who=who: s("figures")["fields"][who]["maps"])  # type: ignore[misc]
        side = round(maps.shape[1] ** 0.5)
        scaled = np.sqrt(maps / maps.max(1, keepdims=True)).reshape(-1, side, side)
        panels.append((who, tiles(scaled, Axes(x="first, middle, last layer", y=""), columns=3)))
    series = {
        who: d.curve(lambda s, who=who: s("figures")["fields"][who]["radii"], depth=True)  # type: ignore[misc]
        for who in ("ViT", "BiT")
    }
    return [*panels, ("radius of 90 %", lines(series, Axes(x="relative depth", y="pixels")))]


def ratios(d: Drawn) -> list[Panel]:
    one = {
        "class token": d.curve(lambda s: np.log(s("figures")["residual"]["ViT"]["class token"]).tolist()),
        "patches": d.curve(lambda s: np.log(s("figures")["residual"]["ViT"]["patches"]).tolist()),
    }
    two = {
        who: d.curve(lambda s, who=who: np.log(s("figures")["residual"][who]["patches"]).tolist(), depth=True)  # type: ignore[misc]
        for who in ("ViT", "BiT")
    }
    what = "log(skip / branch)"
    return [
        ("tokens of the ViT", lines(some(one), Axes(x="addition", y=what))),
        ("both", lines(some(two), Axes(x="relative depth", y=what))),
    ]


def without_skips(d: Drawn) -> list[Panel]:
    panels = []
    for at in skips.STUDY.axes["removed"]:
        try:
            table = d.table(lambda s, at=at: s("layers", removed=at)["similarity"])  # type: ignore[misc]
        except MissingNumberError:
            continue
        panels.append(
            (
                "intact" if at == skips.INTACT else f"without the skips of block {int(at) + 1}",
                heat(table, Axes(x=BLOCK, y=BLOCK)),
            )
        )
    if not panels:
        raise MissingNumberError("not measured yet")
    return panels


def places(d: Drawn, of: Mapping[str, Callable[[SeedNumbers], Any]]) -> list[Panel]:
    """CKA of every token at the top with every patch, a tile for each token at its place."""
    panels = []
    for who, one in of.items():
        table = d.table(lambda s, one=one: one(s)["maps"])  # type: ignore[misc]
        columns = d.first(one)["grid"][1]
        shape = (len(table), *([round(table.shape[1] ** 0.5)] * 2))
        panels.append((who, tiles(table.reshape(shape), Axes(x="column", y="row"), columns=columns)))
    return panels


def places_of_both(d: Drawn) -> list[Panel]:
    return places(d, {who: curve_of("places", who) for who in ("ViT", "BiT")})


def places_by_pool(d: Drawn) -> list[Panel]:
    def of(pool: str) -> Callable[[SeedNumbers], Any]:
        return lambda s: s("places", pool=pool)

    return places(d, {pool.upper(): of(pool) for pool in ("cls", "gap")})


def five_curves(d: Drawn) -> list[Panel]:
    series = {}
    for pool in ("cls", "gap"):
        for tokens in d.first(lambda s, pool=pool: s("probes", pool=pool)["curves"]):  # type: ignore[misc]
            series[f"{pool.upper()}; {tokens}"] = d.curve(
                lambda s, pool=pool, tokens=tokens: pooling.curve(s, pool, tokens)  # type: ignore[misc]
            )
    single = {}
    for pool in ("cls", "gap"):
        single[pool.upper()] = d.interval(lambda s, pool=pool: s("top tokens", pool=pool)["accuracy"])  # type: ignore[misc]
    return [
        ("single tokens of the last block", dots(single, Axes(x="", y="accuracy of a probe"))),
        ("by block", lines(some(series), Axes(x=BLOCK, y="accuracy of a probe"))),
    ]


def kept_by_data(d: Drawn) -> list[Panel]:
    series = {
        f: d.curve(lambda s, f=f: s("to full data", family=f, images=data.LITTLE)["blocks"], depth=True)  # type: ignore[misc]
        for f in ("ViT", "large ViT")
    }
    return [("", lines(some(series), Axes(x="relative depth", y=f"{CKA} with the full-data twin")))]


def probes_by(d: Drawn) -> list[Panel]:
    def curve(s: SeedNumbers, family: str, n: int) -> list[float]:
        curves = s("probes", family=family, images=n)["curves"]
        return list(curves.get("mean of patches") or curves["mean of the map"])

    def series(rows: Sequence[tuple[str, int]]) -> dict[str, Any]:
        return {
            f"{f}, {n:,}": d.curve(lambda s, f=f, n=n: curve(s, f, n), depth=True)  # type: ignore[misc]
            for f, n in rows
        }

    axes = Axes(x="relative depth", y="accuracy of a probe")
    amounts = [(f, n) for f in ("ViT", "large ViT") for n in (data.LITTLE, data.MUCH)]
    families = [(f, data.MUCH) for f in ("ViT", "large ViT", "BiT", "large BiT")]
    return [("by data", lines(some(series(amounts)), axes)), ("by family", lines(some(series(families)), axes))]


FIGURES = tuple(
    Figure(source=source, study=study, draw=draw, caption=caption)
    for source, study, draw, caption in (
        ("ViT, figure 3", "data", accuracy_by_data, "Accuracy by number of training images."),
        ("ViT, figure 4", "data", few_shot_by_data, "5-shot accuracy on a task that nothing was trained on."),
        ("ViT, figure 5", "compute", by_compute, "Accuracy at equal training compute."),
        ("ViT, figure 7 left", "seeing", filters, "Principal components of the patch filters, one seed."),
        (
            "ViT, figures 7 and 11",
            "seeing",
            distance_panels,
            "Attention distance of every head by block, in units of that of uniform attention; mean over seeds.",
        ),
        ("ViT, figure 8", "compute", by_shape, "Depth, width and patch size at equal compute."),
        ("ViT, figure 9", "pooling", by_rate, "Class token and average pooling by learning rate."),
        ("ViT, figures 7 middle and 10", "positions", position_tiles, "Similarity of position embeddings, one seed."),
        ("ViT, table 8", "positions", table_8, "Accuracy by kind of position embedding."),
        ("BiT, figure 5", "data", by_size, "Accuracy by size of the model and number of training images."),
        (
            "Raghu et al., figure 1",
            "seeing",
            similar_within,
            "CKA of all layers of a model, from 0 (dark) to 1, the lowest at the bottom left.",
        ),
        (
            "Raghu et al., figure 2",
            "seeing",
            similar_across,
            "CKA of all layers of two models, from 0 (dark) to 1, the lowest at the bottom left.",
        ),
        (
            "Raghu et al., figure 3",
            "seeing",
            sorted_heads,
            "Attention distance of the heads of the lowest and the highest blocks.",
        ),
        (
            "Raghu et al., figure 4",
            "data",
            heads_by_data,
            "Attention distance of the heads of a large ViT, by number of training images.",
        ),
        (
            "Raghu et al., figure 5",
            "seeing",
            head_groups,
            "CKA of the heads of the lowest block, from local to global, with the lowest layers of the BiT.",
        ),
        ("Raghu et al., figure 6", "seeing", receptive, "Effective receptive fields (root of the mean gradient)."),
        ("Raghu et al., figure 7", "seeing", ratios, "Norm of the skip over that of the branch, natural logarithm."),
        (
            "Raghu et al., figure 8",
            "skips",
            without_skips,
            "CKA of the blocks after training without the skips of one, from 0 (dark) to 1, the lowest bottom left.",
        ),
        (
            "Raghu et al., figure 9",
            "seeing",
            places_of_both,
            "CKA of each token at the top with every patch; bright is similar, each model in its own scale.",
        ),
        (
            "Raghu et al., figure 10",
            "pooling",
            places_by_pool,
            "CKA of each token at the top with every patch, after CLS and after GAP training.",
        ),
        ("Raghu et al., figure 11", "pooling", five_curves, "Probes of tokens after CLS and after GAP training."),
        ("Raghu et al., figure 12", "data", kept_by_data, "CKA by block with the twin that saw all data."),
        ("Raghu et al., figure 13", "data", probes_by, "Probes by block, amount of data and family."),
    )
)
