"""Claims of Raghu et al. about similarity: within and between models (C1 to C4), and with less data (C20)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.similarity.block_similarity import BlockSimilarity
from sightline.analysis.similarity.cka import CKA, corner
from sightline.spec import ModelId
from sightline.studies.effects import Effect, Part, State, known_mean, left_out, missing, over_images
from sightline.studies.evidence import Evidence, Model, couples
from sightline.studies.verdict import Assessment

WAYS = {
    "printed": "as printed",
    "calibrated": "calibrated by permutation",
    "within class": "within class",
    "without outliers": "without outliers",
}
SLOPE = 0.75  # of layer by layer (1): the paper's lower half of a ResNet matches a quarter of a ViT, which is 0.5
NEXT_THIRD = (1 / 4 + 1 / 6, 1 / 6)  # middle and half width of the ViT's third that follows its lowest quarter
CLEAR = 0.05  # CKA by which one match is e times as good as another; about twice the error of a cell at 256 images
Judge = Callable[[str], tuple[Effect, ...]]


def part(r: CKA, way: str = "printed") -> Part:
    """One way's heat map, and without each group of images."""
    return r.way(way), r.replicates_of(way)


def every_way(judge: Judge, *results: CKA, models: tuple[ModelId, ...], note: str = "") -> Assessment:
    """As printed it is decided; the other ways, and the untrained twins, say what it survives."""

    def state(effects: tuple[Effect, ...]) -> State:
        states = {e.state for e in effects}
        return "does not hold" if "does not hold" in states else states.pop() if len(states) == 1 else "undecided"

    effects = judge("printed")
    known = [way for way in WAYS if all(r.has(way) for r in results)]
    ways = {WAYS[way]: state(effects if way == "printed" else judge(way)) for way in known}
    said = [note] if note else []
    if all(r.has("untrained") for r in results):
        values = ", ".join(f"{e.value:.2g}" for e in judge("untrained"))
        said.append(f"of the untrained twins: {values}")
    return Assessment(models=models, effects=effects, ways=ways, note="; ".join(said), images=results[0].about.images)


def within(r: CKA) -> bool:
    """All layers of one model with each other."""
    return len(r.about.models) == 1 and r.rows == r.columns and len(r.rows) >= 4


def across(r: CKA) -> bool:
    """All layers of one model with all layers of another; not pooled features."""
    return len(r.about.models) == 2 and r.about.analysis != "cka-pooled"


def unevenness(x: NDArray) -> float:
    """Spread of a heat map, without its diagonal."""
    off = x[~np.eye(len(x), dtype=bool)]
    return float(np.nanstd(off)) if np.isfinite(off).any() else float("nan")


def evenness(e: Evidence) -> Iterator[Assessment]:
    def judge(vit: Model, cnn: Model, a: CKA, b: CKA) -> Assessment:
        def effects(way: str) -> tuple[Effect, ...]:
            maps = part(a, way), part(b, way)
            return (
                over_images("CKA of lower and upper half, ViT minus CNN", lambda x, y: corner(x) - corner(y), *maps),
                over_images("spread of the heat map, CNN minus ViT", lambda x, y: unevenness(y) - unevenness(x), *maps),
            )

        return every_way(effects, a, b, models=(vit.id, cnn.id))

    return e.compare(couples(e.of("vit"), e.of("cnn")), CKA, judge, where=within)


def parts(x: NDArray, stages: tuple[int, ...]) -> float:
    """Mean CKA within parts minus between parts, without the diagonal."""
    of = np.array(stages)
    known = of >= 0
    same = (of[:, None] == of) & known[:, None] & known
    other = (of[:, None] != of) & known[:, None] & known
    np.fill_diagonal(same, False)
    return known_mean(x[same]) - known_mean(x[other])


def stage_blocks(e: Evidence) -> Iterator[Assessment]:
    what = "CKA within stages minus between them, CNN minus ViT"

    def judge(vit: Model, cnn: Model, a: CKA, b: CKA) -> Assessment | None:
        count = len(set(b.row_stages) - {-1})
        if count < 2:
            return None
        equal = tuple(int(i * count // len(a.rows)) for i in range(len(a.rows)))

        def effects(way: str) -> tuple[Effect, ...]:
            def gap(x: NDArray, y: NDArray) -> float:
                return parts(y, b.row_stages) - parts(x, equal)

            return (over_images(what, gap, part(a, way), part(b, way)),)

        return every_way(effects, a, b, models=(vit.id, cnn.id), note=f"the ViT cut into {count} equal parts")

    return e.compare(couples(e.of("vit"), e.of("cnn")), CKA, judge, where=within)


def vit_rows(e: Evidence) -> Iterator[tuple[Model, Model, CKA, Callable[[str], Part]]]:
    """Heat maps with the layers of a ViT as rows and those of a CNN as columns."""
    for a, b, r in e.between(CKA):
        if {a.id.kind, b.id.kind} != {"vit", "cnn"} or not across(r):
            continue
        turn = a.id.kind != "vit"

        def maps(way: str, r: CKA = r, turn: bool = turn) -> Part:
            whole, left = part(r, way)
            return (whole.T, left.transpose(0, 2, 1)) if turn else (whole, left)

        yield (b, a, r, maps) if turn else (a, b, r, maps)


def monotone_path(s: NDArray) -> NDArray[np.float64]:
    """The row that each column matches, never going back: the mean over all such paths, by their similarity.

    The single best path jumps where two are nearly as good, and no interval follows a jump. A path counts by
    exp(similarity / CLEAR), summed along it, and all paths are summed by going forth and back through the columns.
    """
    known = np.isfinite(s)
    s = np.where(known, s, s[known].min() if known.any() else 0.0) / CLEAR
    forth, back = [s[:, 0]], [np.zeros(len(s))]
    for column in s.T[1:]:
        forth.append(column + np.logaddexp.accumulate(forth[-1]))
    for column in s.T[:0:-1]:
        back.append(np.logaddexp.accumulate((column + back[-1])[::-1])[::-1])
    each = np.array(forth) + np.array(back[::-1])
    weight = np.exp(each - each.max(1, keepdims=True))
    return np.asarray(weight @ np.arange(len(s)) / weight.sum(1))


def matched_depths(s: NDArray) -> tuple[NDArray, NDArray]:
    """Relative depth of each CNN layer, and of the ViT layer on the path of best matches."""
    path = monotone_path(s)
    return np.linspace(0, 1, len(path)), path / max(len(s) - 1, 1)


def lower_slope(s: NDArray) -> float:
    """ViT depth by CNN depth over the CNN's lower half."""
    x, y = matched_depths(s)
    half = max(2, len(x) // 2)
    return float(np.polyfit(x[:half], y[:half], 1)[0])


def upper_depth(s: NDArray) -> float:
    """Mean depth in the ViT that the CNN's upper half matches."""
    return float(matched_depths(s)[1][s.shape[1] // 2 :].mean())


def lower_half(e: Evidence) -> Iterator[Assessment]:
    for vit, cnn, r, maps in vit_rows(e):
        rows, columns = maps("printed")[0].shape
        one = 2 / (max(rows - 1, 1) * columns)  # one layer of one half that matches the next layer

        def effects(way: str, maps: Callable[[str], Part] = maps, one: float = one) -> tuple[Effect, ...]:
            slope = "ViT depth by CNN depth along the best matches, the CNN's lower half"
            place: dict[str, Any] = {"side": "within", "bound": NEXT_THIRD[0], "margin": NEXT_THIRD[1]}
            return (
                over_images(slope, lower_slope, maps(way), bound=SLOPE, side="below", step=2 * one),
                over_images("ViT depth that the CNN's upper half matches", upper_depth, maps(way), step=one, **place),
            )

        note = "1 would be layer by layer, 0.5 is the paper's; the upper half in the third after the lowest quarter"
        yield every_way(effects, r, models=(vit.id, cnn.id), note=note)


def top_gap(s: NDArray) -> float:
    """Best CKA with any CNN layer: mean of the top third minus that of the rest."""
    known = np.isfinite(s).any(1)
    best = np.nan_to_num(s, nan=-np.inf).max(1)
    top = np.arange(len(s)) >= len(s) - len(s) // 3
    return known_mean(best[top & known]) - known_mean(best[~top & known])


def top_third(e: Evidence) -> Iterator[Assessment]:
    what = "best CKA with any CNN layer, top third minus the rest"
    for vit, cnn, r, maps in vit_rows(e):

        def effects(way: str, maps: Callable[[str], Part] = maps) -> tuple[Effect, ...]:
            return (over_images(what, top_gap, maps(way), side="below"),)

        yield every_way(effects, r, models=(vit.id, cnn.id))


def varies_data(r: BlockSimilarity) -> bool:
    """Whether the models differ in how much data they were trained on."""
    return bool(r.varied == "data")


def fall(x: NDArray) -> float:
    """Mean of the lowest third of the blocks minus that of the top third."""
    known = x[np.isfinite(x)]
    third = max(1, len(known) // 3)
    return float(known[:third].mean() - known[-third:].mean()) if len(known) > 1 else float("nan")


def top(x: NDArray) -> float:
    """Mean of the top third of the blocks."""
    known = x[np.isfinite(x)]
    return float(known[-max(1, len(known) // 3) :].mean()) if len(known) else float("nan")


def data_scale(e: Evidence) -> Iterator[Assessment]:
    every = [(r, i) for r in filter(varies_data, e.all(BlockSimilarity)) for i in range(len(r.models))]
    for r, i in every:
        if np.allclose(r.similarity[i][np.isfinite(r.similarity[i])], 1):
            continue  # the reference itself
        curve = r.similarity[i], left_out(r.replicates, i)
        effects = (over_images("CKA with the full model, lowest minus top third", fall, curve), _by_size(r, i, every))
        model = r.about.models[i] if i < len(r.about.models) else ModelId(name=r.models[i])
        yield Assessment(models=(model,), effects=effects, images=r.about.images)


def _by_size(r: BlockSimilarity, i: int, every: list[tuple[BlockSimilarity, int]]) -> Effect:
    """Against a model of another size that was trained on as many images, where there is one."""
    what = "CKA with the full model in the top third, smaller minus larger model"
    if not (len(r.parameters) and len(r.training_images)):
        return missing(what)
    for other, j in every:
        same = len(other.training_images) and other.training_images[j] == r.training_images[i] > 0
        if same and other.about.images == r.about.images and other.parameters[j] != r.parameters[i]:
            ends = [(r.similarity[i], left_out(r.replicates, i)), (other.similarity[j], left_out(other.replicates, j))]
            small, large = ends if r.parameters[i] < other.parameters[j] else ends[::-1]
            return over_images(what, lambda x, y: top(x) - top(y), small, large)
    return missing(what)
