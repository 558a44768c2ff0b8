"""The table of measurements: each a function of trained models and images that returns a few plain numbers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sightline.analysis.attention.distance import attention_distance
from sightline.analysis.embeddings import position_similarity, row_column
from sightline.analysis.probes import layer_probes, token_probes
from sightline.analysis.similarity.block_similarity import block_similarity
from sightline.analysis.similarity.cka import cka
from sightline.analysis.similarity.localization import Localization, localization
from sightline.data.arrays import Arrays
from sightline.data.datasets import Dataset
from sightline.data.draws import generator
from sightline.evals.accuracy import Classification, evaluate
from sightline.evals.episodic import episodes
from sightline.evals.extraction import extract
from sightline.evals.few_shot import fewshot
from sightline.evals.ground_truth import foreground
from sightline.evals.reid import retrieval
from sightline.evals.shift.robustness import evaluate_corruptions
from sightline.evals.vtab_protocol import vtab
from sightline.models.construct import Model, resize
from sightline.observe.identity import identify
from sightline.studies.claims import verdicts
from sightline.studies.engine.analyses import analyze, curves, flat, packed
from sightline.studies.engine.images import open_images
from sightline.studies.engine.networks import trained
from sightline.studies.engine.specs import Measurement
from sightline.studies.engine.store import Store

BATCH = 128
Numbers = dict[str, Any]


@dataclass(frozen=True)
class Given:
    """What a measurement is given: models and images in the order that the study names them, and its options."""

    models: list[Model]
    images: list[Dataset]
    options: dict[str, Any]
    folder: Path  # for files that are too large for a few numbers
    courses: list[Numbers]  # what each training itself has to say


def measure(m: Measurement, store: Store) -> Numbers:
    """The numbers of one measurement, rounded to what means something."""
    whole = m.name in ("verdicts", "figures", "retrieval")  # these ask scenes for masks
    place = replace(m, name="verdicts") if m.name == "figures" else m
    given = Given(
        models=[trained(store, t) for t in m.models] if m.name != "course" else [],
        images=[open_images(i, store.path, masks=whole and i.name.startswith("scenes/")) for i in m.images],
        options=dict(m.options),
        folder=store.folder(place),
        courses=[store.result(t) for t in m.models],
    )
    return rounded(MEASURES[m.name](given))


def rounded(value: Any) -> Any:
    """Plain values with six significant digits."""
    match value:
        case np.ndarray():
            return rounded(value.tolist())
        case float() | np.floating():
            return float(f"{value:.6g}")
        case dict():
            return {str(k): rounded(v) for k, v in value.items()}
        case list() | tuple():
            return [rounded(v) for v in value]
        case np.integer():
            return int(value)
    return value


def accuracy(g: Given) -> Numbers:
    """Top-1 accuracy and cross-entropy on images; at another `size` without further training, if one is given."""
    size = g.options.get("size")
    model = g.models[0] if size is None else resize(g.models[0], size)
    found = evaluate(model, g.images[0], batch=BATCH)
    assert isinstance(found, Classification)
    return {"accuracy": found.top1, "loss": found.loss}


def corruptions(g: Given) -> Numbers:
    """Accuracy on clean images, and on corrupted ones by kind and severity; what is left of it, beyond guessing."""
    found = evaluate_corruptions(g.models[0], g.images[0], severities=g.options["severities"], batch=BATCH)
    by_kind = dict(zip(found.kinds, found.accuracy.tolist()))
    numbers = {"clean": found.clean.mean(), "corrupted": found.right.mean(), "kept": found.kept}
    return {**numbers, "severities": found.severities, "by severity": found.by_severity()[0], "by kind": by_kind}


def course(g: Given) -> Numbers:
    """What the training itself says: steps, operations, validation by step, whether it diverged."""
    return g.courses[0]


def few_shot(g: Given) -> Numbers:
    """Few-shot accuracy of frozen features, and its spread over draws of the shots."""
    learn, test = (extract(g.models[0], images, batch=BATCH) for images in g.images)
    found = fewshot(learn, test, shots=g.options["shots"], seeds=g.options["draws"])
    return {"shots": found.shots, "accuracy": found.mean, "spread": found.accuracy.std(1, ddof=1)}


def episodic(g: Given) -> Numbers:
    """Accuracy over episodes by ways and shots, and how alike features are within and between classes."""
    o = g.options
    features = extract(g.models[0], g.images[0], batch=BATCH)
    found = episodes(features, ways=o["ways"], shots=o["shots"], queries=o["queries"], episodes=o["episodes"])
    spread = found.accuracy.std(2, ddof=1)
    return {"accuracy": found.mean, "spread": spread, "within": found.within, "between": found.between}


def suite(g: Given) -> Numbers:
    """Mean accuracy over the tasks of scenes-vtab, linear on frozen features."""
    found = vtab(g.models[0], "scenes-vtab", tasks=g.options.get("tasks"), batch=BATCH)
    return {"score": found.score, "tasks": dict(zip(found.tasks, found.accuracy.tolist()))}


def distances(g: Given) -> Numbers:
    """Attention distance of every head, in units of that of uniform attention."""
    found = attention_distance(g.models[0], g.images[0], n=g.options["n"], batch=32)
    return {"heads": found.pixels / found.uniform}


def probes(g: Given) -> Numbers:
    """Accuracy of a probe by block, for every choice of tokens that the model has."""
    o = g.options
    images = [of_classes(i, o.get("classes", ())) for i in g.images]
    found = layer_probes({"": g.models[0]}, *images, shots=o["probe_shots"], seeds=o["draws"], batch=BATCH)
    curves = {name.removeprefix("; "): row[np.isfinite(row)] for name, row in zip(found.curves, found.accuracy)}
    return {"curves": curves}


def top_tokens(g: Given) -> Numbers:
    """Mean accuracy of probes of single patches at the top."""
    last = identify_blocks(g.models[0]) - 1
    found = token_probes(g.models[0], *g.images, layers=(last,), shots=g.options["probe_shots"], batch=BATCH)
    return {"accuracy": float(found.map(found.layers[-1]).mean())}


def identify_blocks(model: Model) -> int:
    """Encoder blocks of a ViT."""
    return int(model.config.depth)  # type: ignore[union-attr]


def similarity(g: Given) -> Numbers:
    """CKA of two models block by block, at equal relative depth."""
    images = of_classes(g.images[0], g.options.get("classes", ()))
    found = block_similarity({"": g.models[0]}, g.models[1], images, n=g.options["n"], batch=BATCH)
    return {"blocks": found.similarity[0]}


def of_classes(images: Dataset, classes: tuple[int, ...]) -> Dataset:
    """The images of some classes alone, numbered anew; all of them where none is named."""
    if not classes:
        return images
    labels = np.asarray(images.labels)
    rows = np.flatnonzero(np.isin(labels, classes))
    numbers = np.searchsorted(np.sort(classes), labels[rows])
    names = tuple(images.classes[c] for c in sorted(classes))
    return Arrays(np.asarray(images.images(rows)), numbers, classes=names, name=images.name)


def found_again(g: Given) -> Numbers:
    """Mean average precision among images of the same individuals: by whole images, by patches that look like the
    foreground, by the patches that are; and the first two by chance, with individuals shuffled."""
    model, images = g.models[0], g.images[0]
    tokens = extract(model, images, batch=BATCH, tokens="all")
    whole = tokens.reduce("gap")
    truth = foreground(images, model.image, tokens.grids[list(tokens.layers)[-1]])
    shuffled = generator(0, "individuals by chance").permutation(len(images))

    def precision(table: Any, **how: Any) -> float:
        return float(retrieval(table, **how).summary()["mAP"])

    by_chance = [replace(t, labels=np.asarray(t.labels)[shuffled]) for t in (whole, tokens)]
    return {
        "whole": precision(whole),
        "patches": precision(tokens, matching="patches"),
        "true patches": precision(tokens, matching="patches", select=truth | ~truth.any(1, keepdims=True)),
        "whole by chance": precision(by_chance[0]),
        "patches by chance": precision(by_chance[1], matching="patches"),
    }


def layers(g: Given) -> Numbers:
    """CKA of all pairs of blocks of one model, or of two."""
    other = g.models[1] if len(g.models) > 1 else None
    found = cka(g.models[0], other, g.images[0], layers="blocks", n=g.options["n"], batch=BATCH)
    return {"similarity": found.similarity, "rows": found.rows, "columns": found.columns}


def own_patch(g: Given) -> Numbers:
    """How much more similar tokens of the last block are to their own patch than to the others."""
    found = localization(g.models[0], g.images[0], n=g.options["n"], batch=BATCH)
    return {"own minus others": own_minus_others(found), **found.summary()}


def own_minus_others(r: Localization) -> float:
    """Mean over interior tokens of CKA with the own patch minus the mean CKA with the other patches."""
    flat = r.maps.reshape(len(r.maps), -1)
    own = flat.diagonal()
    others = (np.nansum(flat, 1) - own) / (flat.shape[1] - 1)
    inside = np.zeros(r.grid, dtype=bool)
    inside[1:-1, 1:-1] = True
    return float(np.nanmean((own - others)[inside.ravel()]))


def places(g: Given) -> Numbers:
    """CKA of every token of the last block with every patch (Raghu et al., figures 9 and 10)."""
    found = localization(g.models[0], g.images[0], n=g.options["n"], batch=BATCH)
    return {"maps": packed(flat(found.maps)), "grid": found.grid}


def positions(g: Given) -> Numbers:
    """Similarity of position embeddings: decay with distance, the row and column effect, and that of a table that
    depends on distance alone and decays alike (a cubic in the distance, least squares over all pairs)."""
    found = position_similarity(g.models[0])
    tiles = found.tiles.reshape(len(found.tiles), -1)
    grid = found.tiles.shape[1:]
    y, x = (a.ravel() for a in np.indices(grid))
    far = np.hypot(y[:, None] - y, x[:, None] - x)
    pairs = far > 0
    smooth = np.polyval(np.polyfit(far[pairs], tiles[pairs], 3), far)
    null = row_column(torch.from_numpy(smooth), (int(grid[0]), int(grid[1])))
    return {"decay": found.decay, "row column": found.row_column, "row column, isotropic": null, "tiles": tiles}


def judged(g: Given) -> Numbers:
    """Every analysis of the models and of the first beside each other, and what the claims' own statistics say."""
    o = g.options
    models = [resize(m, o["size"]) for m in g.models] if "size" in o else g.models
    found = verdicts(analyze(g.folder, models, o["names"], g.images[0], n=o["n"], only=o.get("only", ())))
    prints = [identify(m).fingerprint for m in models]
    return {"verdicts": [row(v.plain(), prints) for v in found]}


def row(plain: Numbers, prints: list[str]) -> Numbers:
    """A verdict with its models by their place, and no fingerprint of weights."""
    kept = {k: plain[k] for k in ("claim", "source", "statement", "models", "note", "effects")}
    return {**kept, "of": [prints.index(f) if f in prints else -1 for f in plain["fingerprints"]]}


def figures(g: Given) -> Numbers:
    """The curves of the papers' figures, from the analyses that the verdicts rest on."""
    return curves(analyze(g.folder, g.models, g.options["names"], g.images[0], n=g.options["n"]))


MEASURES: dict[str, Callable[[Given], Numbers]] = {
    "accuracy": accuracy,
    "corruptions": corruptions,
    "course": course,
    "few-shot": few_shot,
    "episodes": episodic,
    "suite": suite,
    "distances": distances,
    "probes": probes,
    "top tokens": top_tokens,
    "similarity": similarity,
    "layers": layers,
    "own patch": own_patch,
    "places": places,
    "positions": positions,
    "retrieval": found_again,
    "verdicts": judged,
    "figures": figures,
}
