"""Verbs that measure: eval, fewshot, probe, episodes, vtab."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

import sightline as sl
from sightline.cli.options import (
    FOLDER,
    Numbers,
    Penalty,
    Words,
    batch_option,
    combine_options,
    held_out_option,
    num_option,
    save_option,
    size_option,
    workers_option,
)
from sightline.cli.shell import show, summary_rows, tell, verb

SHOWN = 5  # mistakes that are printed; --sheet shows more of them

tokens_option = click.option(
    "--tokens",
    type=click.Choice(["pooled", "cls", "gap", "mean", "first"]),
    default="pooled",
    show_default=True,
    help="Which tokens to use as features.",
)
split_options = combine_options(
    click.option("--train-split", default="train", show_default=True, help="Split to train on."),
    click.option("--test-split", default="test", show_default=True, help="Split to test on."),
)
feature_options = combine_options(tokens_option, size_option, num_option, batch_option, workers_option, save_option)


def save_result(result: sl.Result, path: str | None) -> None:
    """Save a result to the file given by --save."""
    if path:
        result.save(path)


def with_intervals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows for a table: without the column of intervals where there are none, because all was measured once."""
    measured = [not math.isnan(row["± 95 %"]) for row in rows]
    left_out = () if any(measured) else ("± 95 %",)
    return [
        {name: value if known or name != "± 95 %" else None for name, value in row.items() if name not in left_out}
        for row, known in zip(rows, measured)
    ]


@verb
@click.argument("model")
@click.argument("data")
@click.option("--shots", type=Numbers(), default="1,5,10", show_default=True,
              help='Training images per class; "all" for all.')  # fmt: skip
@click.option("--seeds", default=5, show_default=True, help="Number of draws of the shots.")
@click.option("--l2", type=Penalty(), default="1024", show_default=True,
              help="Ridge penalty, or sweep to choose it on held-out shots.")  # fmt: skip
@split_options
@feature_options
def fewshot(
    model: str,
    data: str,
    shots: tuple[Any, ...],
    seeds: int,
    l2: Any,
    train_split: str,
    test_split: str,
    size: int | None,
    num: int | None,
    save: str | None,
    as_json: bool,
    **features: Any,
) -> None:
    """Measure the few-shot accuracy of MODEL's frozen features on DATA, in closed form.

    Example: sightline fewshot vit-b16.augreg-i21k cifar10 --shots 1,5,10
    """
    trained = sl.observe.open_model(model, size=size)
    train, test = sl.evals.extract_splits(trained, data, (train_split, test_split), num=num, **features)
    result = sl.fewshot(train, test, shots=shots, seeds=seeds, l2=l2)
    save_result(result, save)
    rows = [
        {"shots": n, "accuracy": float(a), "± 95 %": float(h), "l2": sorted(set(map(float, p)))}
        for n, a, h, p in zip(result.shots, result.mean, result.half_width, result.l2)
    ]
    known = published(result, result.shots)
    if as_json:
        per_class = dict(zip(result.classes, result.per_class.T))
        numbers = {"rows": rows, "by seed": result.accuracy, "per class": per_class, "published": known}
        show({"caption": result.caption, **numbers}, True)
        return
    show(with_intervals(rows), False, title=result.caption)
    if known:
        show(known, False, title="published")


@verb
@click.argument("model")
@click.argument("data")
@held_out_option
@click.option("--second", multiple=True,
              help="Another test set: ImageNet-V2, -R, -A, -Sketch, ObjectNet, or of the same classes.")  # fmt: skip
@click.option("--second-split", help="Split of the other test sets.")
@click.option("--class-map", type=click.Path(exists=True, dir_okay=False),
              help="JSON: folder names of the one --second to ids or numbers of ImageNet's classes.")  # fmt: skip
@click.option("--corruptions", type=Words(),
              help="Corrupt the images: all, or kinds separated by commas; accuracy by kind and severity.")  # fmt: skip
@click.option("--severities", type=Numbers(), default="1,2,3,4,5", show_default=True, help="Of --corruptions.")
@click.option("--real", type=click.Path(exists=True, dir_okay=False), help="ReaL labels (real.json) of ImageNet's val.")
@click.option("--per-class", is_flag=True, help="Print the accuracy of every class.")
@click.option("--confused", type=int, default=0, help="Print this many of the most frequent mistakes.")
@click.option("--sheet", type=click.Path(dir_okay=False),
              help="Write the most confident mistakes as a contact sheet (.png, .jpg).")  # fmt: skip
@click.option("--tta", type=click.Choice(["mirror", "shift"]),
              help="Average over the image and its mirror image, or also over four shifted copies.")  # fmt: skip
@num_option
@batch_option
@workers_option
@save_option
def eval_(
    model: str,
    data: str,
    split: str | None,
    second: tuple[str, ...],
    second_split: str | None,
    class_map: str | None,
    corruptions: tuple[str, ...],
    severities: tuple[Any, ...],
    real: str | None,
    per_class: bool,
    confused: int,
    sheet: str | None,
    num: int | None,
    save: str | None,
    as_json: bool,
    **batches: Any,
) -> None:
    """Measure the accuracy of MODEL's own classifier on DATA: top-1, top-5 and calibration. Of a run that was trained
    to segment or to detect: mIoU or AP, with a 95 % interval.

    Example: sightline eval runs/pets pets --sheet mistakes.png
    """
    if Path(model, "dense.safetensors").is_file():
        options = {"second": second, "real": real, "confused": confused, "sheet": sheet, "tta": batches["tta"]}
        evaluate_masks(model, data, split, num=num, save=save, per_class=per_class, as_json=as_json,
                       batch=batches["batch"], refused=options)  # fmt: skip
        return
    trained = sl.observe.open_model(model)
    test = sl.evals.evaluation_data(trained, data, split, num=num)
    result: sl.Result
    if class_map is not None and len(second) != 1:
        raise ValueError("--class-map is for one test set: give it with --second FOLDER.")
    if second:
        others = [sl.evals.evaluation_data(trained, one, second_split, num=num) for one in second]
        names = sl.observe.model_names([data, *second])
        sets = dict(zip(names, (test, *others)))
        maps = {names[1]: sl.data.read_class_map(class_map)} if class_map else None
        result = sl.evals.evaluate_sets(trained, sets, maps=maps, **batches)
    elif corruptions:
        kinds = None if "all" in corruptions else corruptions
        result = sl.evals.evaluate_corruptions(trained, test, kinds, severities=severities, **batches)
    elif real is not None:
        how = {"variant": sl.references.published_name(trained), "dataset": "imagenet-real"}
        result = sl.evals.score_real(sl.evals.logits(trained, test, **batches), real, how=how)
    else:
        result = sl.evaluate(trained, test, **batches)
    save_result(result, save)
    print_evaluation(result, test, per_class=per_class, confused=confused, as_json=as_json)
    if sheet is not None:
        write_sheet(result, test, sheet)


def evaluate_masks(
    model: str,
    data: str,
    split: str | None,
    *,
    num: int | None,
    save: str | None,
    per_class: bool,
    as_json: bool,
    batch: int,
    refused: dict[str, Any],
) -> None:
    """mIoU or AP of a run with a dense head."""
    if wrong := [name for name, value in refused.items() if value]:
        raise ValueError(f"--{wrong[0]} is for classifiers; {model} was trained to segment or to detect.")
    dense = sl.dense.load_dense(model)
    result = sl.dense.evaluate_dense(dense, sl.evals.evaluation_data(dense, data, split, num=num), batch=batch)
    save_result(result, save)
    metric = "IoU" if isinstance(result, sl.dense.Segmentation) else "AP"
    rows: list[dict[str, Any]] = (
        [{"class": c, metric: float(v)} for c, v in zip(result.classes, result.per_class)] if per_class else []
    )
    if as_json:
        show({**result.summary(), **({"per class": rows} if rows else {})}, True)
        return
    show(summary_rows(result), False, title=result.caption)
    if rows:
        known = [row for row in rows if math.isfinite(row[metric])]
        left = f" ({len(rows) - len(known)} do not occur)" if len(known) < len(rows) else ""
        show(known, False, title="per class" + left)


def write_sheet(result: sl.Result, test: sl.Dataset, path: str) -> None:
    """The most confident mistakes as a contact sheet."""
    if not isinstance(result, sl.evals.Classification):
        raise ValueError("--sheet shows images with one label that got another one: leave out --second and --real.")
    if len(result.mistakes):
        sl.data.save_sheet(sl.evals.mistake_sheet(result, test), path)
    tell(f"mistakes: {path}" if len(result.mistakes) else "there is no mistake: no contact sheet was written")


def print_evaluation(result: sl.Result, test: sl.Dataset, *, per_class: bool, confused: int, as_json: bool) -> None:
    """The summary and, of a classifier, its worst mistakes, accuracy by class and the most frequent mistakes."""
    tables: dict[str, list[dict[str, Any]]] = {}
    if isinstance(result, sl.evals.Classification):
        worst = sl.evals.mistakes(result, test, SHOWN)
        tables["most confident mistakes"] = [
            {
                "image": m.image if as_json else "/".join(Path(m.image).parts[-2:]),
                "label": m.label,
                "predicted": m.predicted,
                "probability": m.probability,
            }
            for m in worst
        ]
    if isinstance(result, sl.evals.Classification) and per_class:
        by_class = zip(result.classes, result.counts, result.per_class)
        tables["per class"] = [{"class": c, "images": int(n), "accuracy": float(a)} for c, n, a in by_class if n]
    if isinstance(result, sl.evals.Classification) and confused:
        tables["confused"] = [{"label": a, "predicted": b, "times": n} for a, b, n in result.confused(confused)]
    if isinstance(result, sl.evals.CorruptionAccuracy):
        tables["accuracy by kind and severity"] = by_kind(result)
    tables["published"] = published(result)
    if as_json:
        show({**result.summary(), **tables}, True)
        return
    show(summary_rows(result), False, title=result.caption)
    for title, rows in tables.items():
        if rows:
            show(rows, False, title=title)


def by_kind(result: sl.evals.CorruptionAccuracy) -> list[dict[str, Any]]:
    """A row per kind: accuracy at each severity, and the mean over severities with its interval."""
    means = zip(result.kinds, result.accuracy, *result.by_kind())
    return [
        {"corruption": kind, **{str(s): float(a) for s, a in zip(result.severities, row)}}
        | {"mean": float(mean), "± 95 %": float(half)}
        for kind, row, mean, half in means
    ]


def published(result: sl.Result, shots: tuple[Any, ...] = (None,)) -> list[dict[str, Any]]:
    """What the papers report for the same architecture on the same dataset."""
    name, kinds = str(result.how.get("variant")), result.how.get("kinds", {"": result.how.get("dataset")})
    asked = [(str(kind), m, n) for kind in kinds.values() for m in ("top-1", "top-5") for n in shots if n != "all"]
    found = (sl.references.published_rows(name, kind, metric=m, shots=n) for kind, m, n in asked)
    return sl.references.as_rows(row for rows in found for row in rows)


@verb
@click.argument("model")
@click.argument("data")
@click.option("--layers", type=Words(), default="blocks", show_default=True,
              help="blocks, features, or module paths separated by commas.")  # fmt: skip
@click.option("--probe", "kind", default="ridge", show_default=True, help="ridge, logistic or knn.")
@click.option("--l2", type=Penalty(), default="sweep", show_default=True,
              help="Penalty of the ridge regression; sweep chooses it on held-out training images.")  # fmt: skip
@click.option("--shots", type=int, help="Training images per class; by default all.")
@click.option("--seeds", default=1, show_default=True, help="Number of draws of the shots.")
@split_options
@feature_options
def probe(
    model: str,
    data: str,
    layers: tuple[str, ...],
    kind: str,
    l2: Any,
    shots: int | None,
    seeds: int,
    train_split: str,
    test_split: str,
    size: int | None,
    num: int | None,
    save: str | None,
    as_json: bool,
    **features: Any,
) -> None:
    """Measure the accuracy of a probe on every layer of MODEL on DATA.

    Example: sightline probe vit-b16.augreg-i21k cifar10 --tokens gap
    """
    trained, splits = sl.observe.open_model(model, size=size), (train_split, test_split)
    features |= {"layers": list(layers), "maps": "last"}
    train, test = sl.evals.extract_splits(trained, data, splits, num=num, **features)
    chosen = sl.evals.LinearProbe("ridge", l2=l2) if kind == "ridge" else kind
    result = sl.probe(train, test, probe=chosen, shots=shots, seeds=seeds)
    save_result(result, save)
    rows = [
        {"layer": name, "accuracy": float(a), "± 95 %": float(h)}
        for name, a, h in zip(result.layers, result.mean, result.half_width)
    ]
    show(rows if as_json else with_intervals(rows), as_json, title=result.caption)


@verb
@click.argument("model")
@click.argument("data")
@click.option("--ways", type=Numbers(), default="5", show_default=True, help="Classes per episode, such as 2,5,10.")
@click.option("--shots", type=Numbers(), default="1,5", show_default=True, help="Labeled images per class.")
@click.option("--queries", default=15, show_default=True, help="Images per class to classify.")
@click.option("--episodes", "count", default=600, show_default=True, help="Number of episodes.")
@click.option("--classifier", type=click.Choice(["prototype", "ridge"]), default="prototype", show_default=True,
              help="Nearest class mean, or ridge regression.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Random seed.")
@held_out_option
@feature_options
def episodes(
    model: str,
    data: str,
    ways: tuple[Any, ...],
    shots: tuple[Any, ...],
    queries: int,
    count: int,
    classifier: Any,
    seed: int,
    split: str | None,
    size: int | None,
    num: int | None,
    save: str | None,
    as_json: bool,
    **features: Any,
) -> None:
    """Measure K-way N-shot accuracy on DATA, whose classes MODEL must not have been trained on.

    Example: sightline episodes vit-b16.augreg-i21k pets --ways 5 --shots 1,5
    """
    trained = sl.observe.open_model(model, size=size)
    table = sl.extract(trained, sl.evals.evaluation_data(trained, data, split, num=num), **features)
    known = getattr(trained, "class_names", None) or ()
    settings = {"queries": queries, "episodes": count, "classifier": classifier, "seed": seed}
    result = sl.evals.episodes(table, ways, shots, trained_on=known, **settings)
    save_result(result, save)
    rows = [
        {"ways": a, "shots": b, "accuracy": float(result.mean[i, j]), "± 95 %": float(result.half_width[i, j])}
        for i, a in enumerate(result.ways)
        for j, b in enumerate(result.shots)
    ]
    if as_json:
        show({"rows": rows, "cosine within": result.within, "cosine between": result.between}, True)
        return
    show(with_intervals(rows), False, title=result.caption)
    click.echo(f"cosine similarity within a class {result.within:.3f}, between classes {result.between:.3f}")


@verb
@click.argument("model")
@click.option("--suite", default="scenes-vtab", show_default=True, help="scenes-vtab, or vtab (needs its data).")
@click.option("--tasks", type=Words(), help="Only these tasks, separated by commas.")
@click.option("--root", type=FOLDER, help="Folder with the data of vtab.")
@size_option
@batch_option
@workers_option
@save_option
def vtab(
    model: str,
    suite: str,
    tasks: tuple[str, ...] | None,
    root: str | None,
    size: int | None,
    save: str | None,
    as_json: bool,
    **batches: Any,
) -> None:
    """Evaluate MODEL on a suite of tasks with 1,000 training images each; for VTAB-1k, next to the ViT paper's table 9.

    Example: sightline vtab runs/scenes --tasks cells,count
    """
    result = sl.evals.vtab(sl.observe.open_model(model, size=size), suite, tasks=tasks or None, root=root, **batches)
    save_result(result, save)
    rows = sl.evals.vtab_rows(result)
    show({"rows": rows, **result.summary()} if as_json else rows, as_json, title=result.caption)
