"""Numbers made up for every study: a world in which its claims are true, and one in which nothing makes a difference.

`python -m tests.studies.worlds` writes what the verdict code says of both, claim by claim, for the atlas.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

import sightline as sl
from sightline.studies.claims import CLAIMS, judge
from sightline.studies.definitions.bit import decay
from sightline.studies.definitions.vit import data, positions
from sightline.studies.engine.analyses import packed
from sightline.studies.engine.study import SeedNumbers, Study
from sightline.studies.evidence import gather
from tests.studies.test_controls import CONTROLS

DRAWS, NOISE = 6, 0.002
TABLE = Path(str(files("sightline.studies.definitions"))) / "controls.json"
DEPTH = 6


def falling(low: float, top: float) -> list[float]:
    return np.linspace(low, top, DEPTH).tolist()


def of_data(name: str, c: dict, true: int) -> dict[str, Any]:
    """True: BiT leads with little data and falls behind with much, large models gain most from data."""
    much = {data.LITTLE: 0.0, data.SOME: 0.4, data.MUCH: 1.0}[c["images"]]
    lead = (0.5 - much) * (0.1 if c["family"].endswith("BiT") else -0.1)
    large = 0.1 * much if c["family"].startswith("large") else 0.0
    level = 0.4 + true * (0.2 * much + lead + large)
    worse = 0.7 if c["family"] == "large ViT" else 0.4
    match name:
        case "few-shot":
            return {"shots": [1, 5, 10], "accuracy": [level - 0.1, level, level + 0.1], "spread": [0.1, 0.05, 0.02]}
        case "probes":
            tokens = "mean of the map" if c["family"].endswith("BiT") else "mean of patches"
            return {"curves": {tokens: falling(level, level)}}
        case "distances":
            return {"heads": [[0.9 - 0.6 * true * much] * 4] * DEPTH}
        case "untrained distances":
            return {"heads": [[0.95] * 4] * DEPTH}
        case "to full data":
            return {"blocks": falling(0.9, 0.9 - true * worse)}
        case "to other seed":
            return {"blocks": falling(0.9, 0.9)}
        case "untrained to full data":
            return {"blocks": falling(0.9 - 0.6 * true, 0.9 - 0.6 * true)}
        case "untrained":
            return {"accuracy": 0.1}
    return {"accuracy": level, "loss": 1.0}


def of_positions(name: str, c: dict, true: int) -> dict[str, Any]:
    """True: any position helps, tables have rows and columns, and another pattern at another rate."""
    if name == "accuracy":
        return {"accuracy": 0.4 + 0.1 * true * (c["position"] != "none")}
    trained = true * (name == "positions")
    pattern = trained * (1.0 if c["rate"] == positions.RATES[0] else 0.3)
    tiles = [[pattern * (i // 2 == j // 2) for j in range(4)] for i in range(4)]
    return {"decay": -0.6 * trained, "row column": 0.2 * trained, "row column, isotropic": 0.0, "tiles": tiles}


def of_pooling(name: str, c: dict, true: int) -> dict[str, Any]:
    gap = c["pool"] == "gap"
    match name:
        case "own patch":
            return {"own minus others": 0.3 - 0.2 * true * gap}
        case "untrained own patch":
            return {"own minus others": 0.5}
        case "places":
            return {"maps": packed(0.1 + (0.6 - 0.5 * gap) * np.eye(36)), "grid": [6, 6]}
        case "top tokens":
            return {"accuracy": 0.2 + 0.3 * true * gap}
        case "to gap":
            blocks = falling(0.9, 0.9)
            return {"blocks": blocks[:4] + [b - 0.4 * true for b in blocks[4:]]}
        case "to other seed":
            return {"blocks": falling(0.9, 0.9)}
        case "probes":
            up, low = falling(0.2, 0.5), falling(0.2, 0.2)
            late = up[:4] + [b - 0.2 for b in up[4:]]
            first = low[:4] + up[4:]
            curves = {"class token": up, "mean of patches": late, "mean of all": late}
            if gap:
                curves = {"mean of patches": up, "first token": first}
            return {"curves": curves if true else dict.fromkeys(curves, up)}
    worse = 0.1 * true * gap * (c["rate"] == max(data_rates()))
    peak = {True: min(data_rates()), False: max(data_rates())}[gap]
    return {"accuracy": 0.5 - worse + 0.05 * true * (c["rate"] == peak)}


def data_rates() -> list[float]:
    return list(sl.studies.get_study("pooling").axes["rate"])


def of_norms(name: str, c: dict, true: int) -> dict[str, Any]:
    bad = {"GN+WS": 0.0, "BN+WS": 0.0, "BN": 0.0, "GN": 0.1}[c["norm"]]
    if name == "suite":
        return {"score": 0.5 + 0.05 * true * (c["norm"] == "GN+WS"), "tasks": {}}
    return {"accuracy": 0.6 - true * bad}


def of_decay(name: str, c: dict, true: int) -> dict[str, Any]:
    low = true * (c["decay"] == decay.LOW)
    steps = range(300, 3001, 300)
    return {"val": [[s, 0.3 + 1e-4 * s + low * 0.05 * (1.0 if s < 1500 else -1.0)] for s in steps]}


def of_skips(name: str, c: dict, true: int) -> dict[str, Any]:
    at = c["removed"]
    if name == "accuracy":
        return {"accuracy": 0.5 - 0.04 * true * (at >= 0)}
    apart = np.full((DEPTH, DEPTH), 0.9)
    if at >= 0 and true:
        apart[:at, at:] = apart[at:, :at] = 0.3
    return {"similarity": apart.tolist()}


def of_resolution(name: str, c: dict, true: int) -> dict[str, Any]:
    tuned = c["tuned"] == "yes"
    return {"accuracy": 0.5 + true * (0.04 * (c["size"] > 24) * (1 if tuned else 0.5) + 0.05 * tuned)}


def of_shots(name: str, c: dict, true: int) -> dict[str, Any]:
    if name == "few-shot":
        up = [0.3 + true * x for x in (0.0, 0.2, 0.3)]
        return {"shots": [1, 5, 10], "accuracy": up, "spread": [0.05 - true * x for x in (0.0, 0.02, 0.03)]}
    return {"accuracy": [[0.5 + true * (0.1 * s - 0.1 * w + 0.2) for s in range(2)] for w in range(3)]}


def of_compute(name: str, c: dict, true: int) -> dict[str, Any]:
    shape = {"wide": -0.05, "large patches": -0.05}.get(c["model"], 0.0)
    lead = 0.05 / c["budget"] * (c["model"] == "hybrid")
    slow = -0.05 * c["model"].endswith("BiT")
    return {"accuracy": 0.5 + true * (0.05 * c["budget"] + shape + lead + slow)}


def of_tuning(name: str, c: dict, true: int) -> dict[str, Any]:
    match name:
        case "to large":
            return {"blocks": falling(0.8, 0.8 - 0.3 * true)}
        case "to other seed":
            return {"blocks": falling(0.8, 0.6)}
    far = 0.3 if c["task"] in ("cells", "aerial") else 0.0
    return {"blocks": falling(0.98, 0.7 - far) if true else falling(0.8, 0.8)}


def of_masked(name: str, c: dict, true: int) -> dict[str, Any]:
    gains = {"scratch": 0.0, "mean color": 0.03, "4 x 4 colors": 0.03, "pixels": 0.02, "supervised": 0.1}
    gains |= {"MAE": 0.03, "LeJEPA": 0.04}
    return {"accuracy": 0.4 + true * gains[c["start"]]}


def of_locality(name: str, c: dict, true: int) -> dict[str, Any]:
    bit, moved = c["family"] == "BiT", c["patches"] == "permuted"
    return {"accuracy": 0.4 + true * (0.1 * bit * (not moved) + 0.2 * (c["images"] == data.MUCH))}


def of_encoder(name: str, c: dict, true: int) -> dict[str, Any]:
    lost = true * (c["encoder"] == "post-norm") * (c["rate"] > 1e-3)
    return {"accuracy": 0.4, "loss": 1.5 + 0.8 * lost}


def of_optimizer(name: str, c: dict, true: int) -> dict[str, Any]:
    better = 0.05 * true * (c["optimizer"] == "Adam")
    return {"score": 0.5 + better, "tasks": {}} if name == "suite" else {"accuracy": 0.5 + better}


def of_imbalance(name: str, c: dict, true: int) -> dict[str, Any]:
    rare = true * name.endswith("tail") * (c["images"] == "long tail")
    if name.startswith("probes"):
        return {"curves": {"mean of patches": falling(0.5 - 0.1 * rare, 0.5 - 0.1 * rare)}}
    return {"accuracy": 0.4} if name == "accuracy" else {"blocks": falling(0.9 - 0.2 * rare, 0.9 - 0.2 * rare)}


def of_reid(name: str, c: dict, true: int) -> dict[str, Any]:
    chance = {"whole by chance": 0.05, "patches by chance": 0.05}
    return {"whole": 0.05 + 0.1 * true, "patches": 0.05 + 0.2 * true, "true patches": 0.3, **chance}


def of_mixer(name: str, c: dict, true: int) -> dict[str, Any]:
    near = {"Mixer": 0.3, "ViT": 0.2 * true, "BiT": 0.0}[c["other"]]
    return {"accuracy": 0.5} if name == "accuracy" else {"blocks": falling(0.6 + near, 0.3 + near)}


def of_axial(name: str, c: dict, true: int) -> dict[str, Any]:
    return {"accuracy": 0.5 + 0.03 * true * (c["attention"] != "full"), "loss": 1.0, "steps": 1500}


def of_unlabeled(name: str, c: dict, true: int) -> dict[str, Any]:
    """True: labels make the top alike, and two ViTs are more alike than a ViT and a CNN."""
    if name.startswith("few-shot"):
        return {"shots": [1, 5, 10], "accuracy": [0.2, 0.3, 0.4], "spread": [0.1, 0.05, 0.02]}
    if name == "ViT to other seed":
        return {"blocks": falling(0.9, 0.9)}
    return {"blocks": falling(0.6, 0.6 + 0.2 * true * (c["learned"] == "labels"))}


def of_robustness(name: str, c: dict, true: int) -> dict[str, Any]:
    vit, much = c["family"] == "ViT", c["images"] == data.MUCH
    if name == "corruptions":
        kept = 0.5 + 0.2 * true * vit
        falls = [kept + 0.2 * true, kept, kept - 0.2 * true]
        numbers = {"clean": 0.5, "corrupted": 0.1 + 0.4 * kept, "kept": kept}
        return {**numbers, "severities": [1, 3, 5], "by severity": falls, "by kind": {}}
    return {"accuracy": 0.4 + true * much * (0.2 if vit else 0.1), "loss": 1.0}


WORLDS = {
    "data": (of_data, "as the papers say", "every model alike, whatever the data"),
    "positions": (of_positions, "positions matter, their kind does not", "all tables and accuracies alike"),
    "pooling": (of_pooling, "as the papers say", "both poolings alike"),
    "norms": (of_norms, "GN alone is worse, GN+WS transfers best", "all norms alike"),
    "decay": (of_decay, "low decay ahead early, behind at the end", "both decays alike"),
    "skips": (of_skips, "the blocks on either side come apart", "all networks alike"),
    "resolution": (of_resolution, "more pixels are better", "all resolutions alike"),
    "shots": (of_shots, "more shots and fewer ways are better", "all alike"),
    "compute": (of_compute, "as the paper says", "all models alike at every budget"),
    "tuning": (of_tuning, "lower blocks stay, upper ones change", "all blocks change alike"),
    "masked": (of_masked, "as the paper says", "every start alike"),
    "locality": (of_locality, "the BiT's lead is gone once patches are permuted", "both families alike"),
    "encoder": (of_encoder, "post-norm learns at fewer rates", "both places of the norm alike"),
    "optimizer": (of_optimizer, "Adam transfers better", "both optimizers alike"),
    "imbalance": (of_imbalance, "rare classes change and lose", "all classes alike"),
    "unlabeled": (of_unlabeled, "labels make the top alike", "labels and views alike"),
    "robustness": (of_robustness, "the ViT keeps more, and gains more from data", "all families alike"),
    "reid": (of_reid, "patches find more than whole images", "everything as by chance"),
    "mixer": (of_mixer, "the Mixer is closer to the ViT", "as close to ViT as to BiT"),
    "axial": (of_axial, "axial attention is better", "all attentions alike"),
}


def noisy(value: Any, rng: np.random.Generator) -> Any:
    """The same with noise on every number of a training."""
    match value:
        case float():
            return value + NOISE * float(rng.standard_normal())
        case dict():
            return {k: v if k == "val" else noisy(v, rng) for k, v in value.items()} | (
                {"val": [[s, noisy(float(a), rng)] for s, a in value["val"]]} if "val" in value else {}
            )
        case list():
            return [noisy(v, rng) for v in value]
    return value


def seeds_of(study: Study, numbers: dict) -> list[SeedNumbers]:
    return [SeedNumbers(study, numbers, seed) for seed in sorted(numbers)]


def worlds(study: Study, true: int) -> Iterator[list[SeedNumbers]]:
    """Draws of all numbers of a study."""
    make = WORLDS[study.name][0]
    labels = list(study.plan((0,))[0])
    for draw in range(DRAWS):
        rng = np.random.default_rng([draw, true, len(study.name)])
        numbers = {
            seed: {label: noisy(make(label[0], dict(label[1]), true), rng) for label in labels}
            for seed in range(study.seeds)
        }
        yield seeds_of(study, numbers)


def looked_at(study: Study, d: Any, results: list) -> list[SeedNumbers]:
    """Verdicts on constructed results, as if several seeds had given them up to the error over images."""
    claim = next(c for c in CLAIMS if c.number == d.claim)
    plain = judge(claim, gather(results))[0].plain()
    rng, numbers = np.random.default_rng(0), {}
    for seed in range(study.seeds):
        shaken = [{**e, "value": e["value"] + error_of(e) * float(rng.standard_normal())} for e in plain["effects"]]
        row = {**plain, "effects": shaken}
        numbers[seed] = {(d.from_verdicts, (("models", "full data"),)): {"verdicts": [row]}}
    return seeds_of(study, numbers)


def error_of(e: dict) -> float:
    half = (e["high"] - e["low"]) / 2
    return half / 2 if np.isfinite(half) and half > 0 else 0.05 * max(0.01, abs(e["value"]))


def cases() -> Iterator[tuple[str, str, str, list[str]]]:
    """Study/claim, kind, case, and the state in every draw."""
    for study in sl.studies.list_studies():
        if study.name in WORLDS:
            _, yes, no = WORLDS[study.name]
            for kind, case, true in (("positive", yes, 1), ("null", no, 0)):
                drawn = list(worlds(study, true))
                for d in study.decides:
                    yield f"{study.name}/{d.claim}", kind, case, [d.verdict(seeds).state for seeds in drawn]
            continue
        for d in study.decides:
            control = CONTROLS[d.claim]
            for kind, some in (("positive", control.holds), ("null", control.nulls or control.fails)):
                case, results = next(iter(some.items()))
                yield f"{study.name}/{d.claim}", kind, case, [d.verdict(looked_at(study, d, results)).state]


def table(judged: Iterable[tuple[str, str, str, list[str]]]) -> dict[str, list[dict[str, str]]]:
    """What the atlas shows: the usual state of each case."""
    found: dict[str, list[dict[str, str]]] = {}
    for claim, kind, case, states in judged:
        usual = Counter(states).most_common(1)[0][0]
        found.setdefault(claim, []).append({"kind": kind, "case": case, "state": usual})
    return found


if __name__ == "__main__":
    TABLE.write_text(sl.spec.to_json(table(cases()), indent=1) + "\n")
