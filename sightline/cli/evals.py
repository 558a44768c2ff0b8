"""Verbs that measure: fewshot, eval, probe, episodes, vtab."""

from typing import Any

import click
import numpy as np

import sightline as sl
from sightline.cli.data import _splits
from sightline.cli.model import open_model
from sightline.cli.shell import cli, show, verb
from sightline.evals.probing.probes import PROBES, make_probe
from sightline.evals.vtab_protocol import beside_references

batch_option = click.option("--batch", default=64, show_default=True, help="Images in a batch.")
workers_option = click.option("--workers", default=0, show_default=True, help="Processes that decode images.")
save_option = click.option("--save", type=click.Path(dir_okay=False), help="Keep the result in this file (.npz).")
size_option = click.option("--size", type=int, help="Image size for a model built by name, in pixels.")
tokens_option = click.option(
    "--tokens",
    type=click.Choice(["pooled", "cls", "gap", "mean", "first"]),
    default="pooled",
    show_default=True,
    help="What is kept of the tokens.",
)
num_option = click.option("--num", type=int, help="How many scenes, where DATA is scenes/NAME; 2000 unless said.")
train_option = click.option("--train-split", default="train", show_default=True)
test_option = click.option("--test-split", default="test", show_default=True)


def data_of(where: str, split: str | None, model: Any, num: int | None = None) -> sl.Dataset:
    """DATA as in the data verbs; scenes are drawn at the model's own size."""
    if not where.startswith("scenes/"):
        if num is not None:
            raise ValueError("--num is for scenes; for other data measure a part: sl.dataset(...).sample(num).")
        return sl.dataset(where, split=split)
    settings = {"size": min(512, max(16, model.image.size[0]))}
    return sl.dataset(where, split=split, num=num or 2000, **settings)


def held_out(where: str) -> str | None:
    """The split to measure on where none is named."""
    there = _splits(where)
    return next((s for s in ("test", "val") if s in there), None)


def numbers(text: str, option: str) -> tuple[Any, ...]:
    """ "1,5,10" as numbers; "all" where a verb allows it."""
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts or not all(p.isdecimal() or p == "all" for p in parts):
        raise ValueError(f"{option} is a list of whole numbers such as 1,5,10; got {text!r}.")
    return tuple(p if p == "all" else int(p) for p in parts)


def penalty(text: str) -> Any:
    try:
        return "sweep" if text == "sweep" else float(text)
    except ValueError:
        raise ValueError(f"--l2 is a number or sweep; got {text!r}.") from None


def saved(result: sl.Result, path: str | None) -> None:
    if path:
        result.save(path)


def pair_of(model: Any, data: str, splits: tuple[str, str], *, num: int | None, **settings: Any) -> tuple[Any, Any]:
    """Features of two splits."""
    train, test = (sl.extract(model, data_of(data, split, model, num), **settings) for split in splits)
    return train, test


@verb
@click.argument("model")
@click.argument("data")
@click.option("--shots", default="1,5,10", show_default=True, help='Training images per class; "all" for all.')
@click.option("--seeds", default=5, show_default=True, help="Draws of the shots.")
@click.option("--l2", default="1024", show_default=True, help="A number, or sweep: chosen on held-out shots.")
@train_option
@test_option
@tokens_option
@size_option
@num_option
@batch_option
@workers_option
@save_option
def fewshot(
    model: str,
    data: str,
    shots: str,
    seeds: int,
    l2: str,
    train_split: str,
    test_split: str,
    tokens: Any,
    size: int | None,
    num: int | None,
    batch: int,
    workers: int,
    save: str | None,
    as_json: bool,
) -> None:
    """Closed-form few-shot accuracy of MODEL's frozen features on DATA."""
    wanted, value, m = numbers(shots, "--shots"), penalty(l2), open_model(model, size)
    both = pair_of(m, data, (train_split, test_split), num=num, tokens=tokens, batch=batch, workers=workers)
    result = sl.fewshot(both[0], both[1], shots=wanted, seeds=seeds, l2=value)
    saved(result, save)
    rows: list[dict[str, Any]] = [
        {"shots": n, "accuracy": float(a), "± 95 %": none_if_nan(h), "l2": sorted(set(map(float, p)))}
        for n, a, h, p in zip(result.shots, result.mean, result.half_width, result.l2)
    ]
    if as_json:
        per_class = {c: [none_if_nan(v) for v in row] for c, row in zip(result.classes, result.per_class.T)}
        show({"caption": result.caption, "rows": rows, "by seed": result.accuracy, "per class": per_class}, True)
        return
    for row in rows:
        row["l2"] = ", ".join(f"{v:g}" for v in row["l2"])
    show(rows, False, title=result.caption)


def none_if_nan(value: Any) -> float | None:
    """JSON has no NaN."""
    return float(value) if np.isfinite(value) else None


@cli.command(name="eval")
@click.argument("model")
@click.argument("data")
@click.option("--split", help="Which split; by default test, or val, or whatever there is.")
@click.option("--second", help="A second test set of the same classes, to compare with (ImageNet-V2).")
@click.option("--second-split", help="Split of the second test set.")
@click.option(
    "--real", type=click.Path(exists=True, dir_okay=False), help="ReaL labels (real.json) for ImageNet's val."
)
@click.option("--per-class", is_flag=True, help="Accuracy of every class.")
@click.option("--confused", type=int, default=0, help="Show so many of the most frequent mistakes.")
@num_option
@batch_option
@workers_option
@save_option
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable JSON.")
def evaluate(
    model: str,
    data: str,
    split: str | None,
    second: str | None,
    second_split: str | None,
    real: str | None,
    per_class: bool,
    confused: int,
    num: int | None,
    batch: int,
    workers: int,
    save: str | None,
    as_json: bool,
) -> None:
    """Accuracy of MODEL's own classifier on DATA: top-1, top-5, calibration; per class and confusion on request."""
    m = open_model(model)
    d = data_of(data, split or held_out(data), m, num)
    if second is not None:
        other = data_of(second, second_split or held_out(second), m, num)
        names = (d.name, other.name) if other.name != d.name else ("first", "second")
        both = sl.evals.evaluate_sets(m, dict(zip(names, (d, other))), batch=batch, workers=workers)
        saved(both, save)
        show(both.summary(), as_json, title=both.caption)
        return
    if real is not None:
        re_scored = sl.evals.score_real(sl.evals.logits(m, d, batch=batch, workers=workers), real)
        saved(re_scored, save)
        show(re_scored.summary(), as_json, title=re_scored.caption)
        return
    result = sl.evaluate(m, d, batch=batch, workers=workers)
    saved(result, save)
    print_evaluation(result, per_class=per_class, confused=confused, as_json=as_json)


def print_evaluation(result: Any, *, per_class: bool, confused: int, as_json: bool) -> None:
    facts: dict[str, Any] = {k: none_if_nan(v) for k, v in result.summary().items()}
    by_class: list[dict[str, Any]] = []
    wrong: list[dict[str, Any]] = []
    if isinstance(result, sl.evals.Classification):
        by_class = [
            {"class": c, "images": int(n), "accuracy": none_if_nan(a)}
            for c, n, a in zip(result.classes, result.counts, result.per_class)
            if n
        ]
        wrong = [{"label": a, "predicted": b, "times": n} for a, b, n in result.confused(confused)] if confused else []
    if as_json:
        show(
            {**facts, **({"per class": by_class} if per_class else {}), **({"confused": wrong} if wrong else {})}, True
        )
        return
    show(facts, False, title=result.caption)
    if per_class and by_class:
        show(by_class, False, title="per class")
    if wrong:
        show(wrong, False, title="most frequent mistakes")


@verb
@click.argument("model")
@click.argument("data")
@click.option("--layers", default="blocks", show_default=True, help="blocks, features, or module paths with commas.")
@click.option("--probe", "kind", type=click.Choice(PROBES), default="ridge", show_default=True)
@click.option("--shots", type=int, help="Training images per class; all by default.")
@click.option("--seeds", default=1, show_default=True, help="Draws of the shots.")
@train_option
@test_option
@tokens_option
@size_option
@num_option
@batch_option
@workers_option
@save_option
def probe(
    model: str,
    data: str,
    layers: str,
    kind: str,
    shots: int | None,
    seeds: int,
    train_split: str,
    test_split: str,
    tokens: Any,
    size: int | None,
    num: int | None,
    batch: int,
    workers: int,
    save: str | None,
    as_json: bool,
) -> None:
    """Accuracy of a probe at every layer of MODEL on DATA."""
    m = open_model(model, size)
    where = [part.strip() for part in layers.split(",")]
    settings = {"layers": where, "tokens": tokens, "maps": "last", "batch": batch, "workers": workers}
    both = pair_of(m, data, (train_split, test_split), num=num, **settings)
    chosen = make_probe(kind, **({"l2": 2.0**10} if kind == "ridge" else {}))
    result = sl.probe(both[0], both[1], probe=chosen, shots=shots, seeds=seeds)
    saved(result, save)
    rows = [
        {"layer": name, "accuracy": float(a), "± 95 %": none_if_nan(h)}
        for name, a, h in zip(result.layers, result.mean, result.half_width)
    ]
    show(rows, as_json, title=result.caption)


@verb
@click.argument("model")
@click.argument("data")
@click.option("--ways", default="5", show_default=True, help="Classes in an episode, such as 2,5,10.")
@click.option("--shots", default="1,5", show_default=True, help="Labeled images per class.")
@click.option("--queries", default=15, show_default=True, help="Images per class to tell apart.")
@click.option("--episodes", "count", default=600, show_default=True)
@click.option("--classifier", type=click.Choice(["prototype", "ridge"]), default="prototype", show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--split", help="Which split; by default test, or val, or whatever there is.")
@tokens_option
@size_option
@num_option
@batch_option
@workers_option
@save_option
def episodes(
    model: str,
    data: str,
    ways: str,
    shots: str,
    queries: int,
    count: int,
    classifier: Any,
    seed: int,
    split: str | None,
    tokens: Any,
    size: int | None,
    num: int | None,
    batch: int,
    workers: int,
    save: str | None,
    as_json: bool,
) -> None:
    """K-way N-shot episodes on DATA's classes, which must not be those that MODEL was trained on."""
    k, n, m = numbers(ways, "--ways"), numbers(shots, "--shots"), open_model(model, size)
    e = sl.extract(m, data_of(data, split or held_out(data), m, num), tokens=tokens, batch=batch, workers=workers)
    known = getattr(m, "class_names", None) or ()
    result = sl.episodes(e, k, n, queries=queries, episodes=count, classifier=classifier, trained_on=known, seed=seed)
    saved(result, save)
    rows = [
        {"ways": a, "shots": b, "accuracy": float(result.mean[i, j]), "± 95 %": none_if_nan(result.half_width[i, j])}
        for i, a in enumerate(result.ways)
        for j, b in enumerate(result.shots)
    ]
    if as_json:
        show({"rows": rows, "cosine within": result.within, "cosine between": result.between}, True)
        return
    show(rows, False, title=result.caption)
    click.echo(f"cosine similarity within a class {result.within:.3f}, between classes {result.between:.3f}")


@verb
@click.argument("model")
@click.option("--suite", default="scenes-vtab", show_default=True, help="scenes-vtab, or vtab with its data.")
@click.option("--tasks", help="Some tasks only, with commas.")
@click.option("--root", type=click.Path(file_okay=False), help="Where the data is kept, for vtab.")
@size_option
@batch_option
@workers_option
@save_option
def vtab(
    model: str,
    suite: str,
    tasks: str | None,
    root: str | None,
    size: int | None,
    batch: int,
    workers: int,
    save: str | None,
    as_json: bool,
) -> None:
    """MODEL on a suite of tasks with 1,000 training images each; for VTAB-1k beside the paper's table 9."""
    wanted = [t.strip() for t in tasks.split(",")] if tasks else None
    result = sl.vtab(open_model(model, size), suite, tasks=wanted, root=root, batch=batch, workers=workers)
    saved(result, save)
    rows = beside_references(result)
    show({"rows": rows, **result.summary()} if as_json else rows, as_json, title=result.caption)
