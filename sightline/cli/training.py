"""Verbs that train: train, tune, runs, recipes."""

from __future__ import annotations

import math
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

import sightline as sl
from sightline.cli.shell import show, verb

BARS = "▁▂▃▄▅▆▇█"


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What `train` and `tune` share."""
    for option in reversed(
        (
            click.option("--out", required=True, type=click.Path(file_okay=False), help="The run's folder."),
            click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A field of the recipe."),
            click.option("--val", help="Validation: a split, a share of the training data such as 0.1, or none."),
            click.option("--num", type=int, help="How many scenes, where DATA is scenes/NAME; 10000 unless said."),
            click.option("--fraction", type=float, help="Train on this share of the training data."),
            click.option("--size", type=int, help="Image size in pixels; position embeddings are resampled."),
            click.option("--seed", default=0, show_default=True),
            click.option("--workers", default=0, show_default=True, help="Processes that prepare images."),
            click.option("--parallel", type=click.Choice(["ddp", "fsdp"]), default="ddp", help="Under torchrun."),
            click.option("--device", help="cpu, cuda, mps; by default whatever there is."),
            click.option("--few-shot", "few", is_flag=True, help="Measure 5- and 10-shot accuracy during training."),
            click.option("--smoke", is_flag=True, help="Two steps and one evaluation, to see that all works."),
            click.option("--prove-resume", is_flag=True, help="Train, stop in the middle, go on, compare the bytes."),
            click.option("--json", "as_json", is_flag=True, help="Print machine-readable JSON."),
        )
    ):
        function = option(function)
    return function


@click.command()
@click.argument("data")
@click.option("--model", "name", required=True, help="A model's name, such as vit-micro4 (sightline models).")
@click.option("--recipe", help="A recipe's name (sightline recipes); by default one for a laptop.")
@click.option("--with", "shape", multiple=True, metavar="NAME=VALUE", help="A field of the model, such as pool=gap.")
@click.option("--task", type=click.Choice(["classify", "masked", "mae"]), help="Instead of the recipe's own.")
@options
def train(data: str, name: str, recipe: str | None, shape: Sequence[str], task: str | None, **how: Any) -> None:
    """Train a model on DATA from scratch. Run the same command again to go on after an interruption.

    DATA is a folder of folders, a known dataset (sightline data), shards, or scenes/NAME.

    Example: sightline train scenes/count --model vit-nano4 --out runs/count
    """
    from sightline.training.recipe import changed

    family = "laptop_bit" if name.lower().startswith("bit") else "laptop_vit"
    family = "laptop_masked" if task in ("masked", "mae") else family
    chosen = [*how.pop("settings"), *([f"task={task}"] if task else [])]
    if task == "mae" and not any(s.startswith("corrupt") for s in chosen):
        chosen.append("corrupt=0.75")

    def build(classes: Sequence[str], size: int | None) -> Any:
        config = sl.models.config(name, classes=len(classes), **({"size": size} if size else {}))
        return sl.build(changed(config, shape), seed=how["seed"])

    go(data, build, model=name, recipe=recipe or family, settings=chosen, **how)


@click.command()
@click.argument("data")
@click.option("--model", "weights", required=True, help="Weights: a file, a run folder, a name of the zoo.")
@click.option("--recipe", help="A recipe's name; by default vit_finetune, or bit_hyperrule for a BiT.")
@click.option("--data-is", type=click.Choice(["small-similar", "small-different", "large-similar", "large-different"]),
              help="Choose which layers learn by what the data is like (sl.training.transfer).")  # fmt: skip
@options
def tune(data: str, weights: str, recipe: str | None, data_is: str | None, **how: Any) -> None:
    """Fine-tune trained weights on DATA: a new head, all or some layers. Run it again to go on.

    Example: sightline tune pets --model vit-b16.augreg-i21k --out runs/pets
    """
    trained: Any = sl.load(weights)
    family = "bit_hyperrule" if isinstance(trained, sl.models.BiT) else "vit_finetune"

    def build(classes: Sequence[str], size: int | None) -> Any:
        return sl.load(weights, classes=tuple(classes), size=size)

    go(data, build, model=Path(weights).stem, recipe=recipe or family, data_is=data_is, **how)


def go(data: str, build: Callable[..., Any], *, model: str, recipe: str, settings: Sequence[str], **how: Any) -> None:
    """Data, model and recipe together; then one call of `sl.fit`."""
    part, val, test = parts(data, how["val"], num=how["num"], fraction=how["fraction"], size=how["size"])
    area = int(math.prod(part[0][0].shape[:2]))
    made = sl.recipes.get(recipe, model=model, data=data, num_images=len(part), image_area=area)
    made = replace(made, seed=how["seed"]).change(settings)
    size = how["size"] or (made.sizes[-1][1] if made.sizes else made.size)
    made = replace(made, size=size)
    made = smoke(made, len(part)) if how["smoke"] else bounded(made, len(part), settings)
    device = place(how["device"])
    m = build(part.classes, size).to(device)
    if (kind := how.get("data_is")) is not None:
        made = sl.training.transfer(*kind.split("-"), recipe=made, model=m)
    evals: Any = ()
    if how["few"]:
        if min(part.counts()) < 10:
            raise ValueError(f"--few-shot takes 10 images of every class; {part.name} has {min(part.counts())} of one.")
        source = val if val is not None else part
        evals = ((max(1, made.total(len(part)) // 5), sl.evals.fewshot_evaluator(part, source)),)
    around: dict[str, Any] = {"val": val, "workers": how["workers"], "parallel": how["parallel"]}

    def again(out: Path, recipe: sl.Recipe, stop: Any = ()) -> sl.Run:
        return sl.fit(build(part.classes, size).to(device), part, recipe, out=out, evals=(*evals, *stop), **around)

    if how["prove_resume"]:
        return prove(again, made, how["as_json"])
    run = sl.fit(m, part, made, out=how["out"], evals=evals, **around)
    if int(os.environ.get("RANK", 0)) == 0:
        report(run, None if how["smoke"] else test, as_json=how["as_json"])


def place(device: str | None) -> Any:
    """The device of this name, if it is there."""
    import torch  # here: `--help` does without

    from sightline.training.parallel import device_here

    try:
        found = device_here() if device is None else torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device} is not there ({str(error).splitlines()[0]}): try --device cpu.") from error
    return found


def parts(where: str, val: str | None, *, num: int | None, fraction: float | None, size: int | None) -> Any:
    """Training, validation and test data. Without a val split, a part of the training data is kept back."""
    splits, settings = sl.data.splits(where), {}
    if where.startswith("scenes/"):
        settings = {"num": num or 10_000, "size": size or 32}
    elif num is not None:
        raise ValueError("--num is for scenes; for other data give --fraction.")
    train = sl.dataset(where, split="train" if "train" in splits else None, **settings)
    settings |= {"num": min(2000, settings["num"])} if settings else {}
    kept: Any = None
    if val in splits:
        kept = sl.dataset(where, split=val, **settings)
    elif val is None and "val" in splits:
        kept = sl.dataset(where, split="val", **settings)
    elif val != "none":
        train, kept = train.split(1 - _share(val, len(train)), seed=0)
    test = sl.dataset(where, split="test", **settings) if "test" in splits and val != "test" else None
    return (train if fraction is None else train.subset(fraction)), kept, test


def _share(val: str | None, images: int) -> float:
    if val is None:
        return 0.1 if images < 20_000 else 0.02  # ViT, table 4: a tenth of pets, 2 % of CIFAR
    try:
        share = float(val)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError(f"--val is a split's name, a share between 0 and 1, or none; got {val!r}.")
    return share


def smoke(recipe: sl.Recipe, images: int) -> sl.Recipe:
    """Two steps of a small batch, and one evaluation."""
    batch = min(recipe.batch, 8, images)
    milestones = (1,) if recipe.milestones else ()
    return replace(recipe, steps=2, epochs=None, batch=batch, warmup=min(recipe.warmup, 1), micro=None,
                   milestones=milestones, sizes=(), log_every=1, eval_every=2, save_every=2)  # fmt: skip


def bounded(recipe: sl.Recipe, images: int, settings: Sequence[str]) -> sl.Recipe:
    """A recipe's own batch is at most all training images: more would be the same ones again, several times a step. A
    batch that was asked for stays as it is."""
    asked = any(setting.partition("=")[0].strip() in ("batch", "repeat") for setting in settings)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    unit = 2 * processes if processes > 1 and recipe.augment.mixes else processes  # pairs are mixed within a process
    batch = images // unit * unit
    if asked or not 0 < batch < recipe.batch:
        return recipe
    if int(os.environ.get("RANK", 0)) == 0:
        click.echo(
            f"batch {batch} instead of the recipe's {recipe.batch}: there are {images:,} training images "
            f"(--set batch={recipe.batch} --set repeat=true repeats them within a batch)",
            err=True,
        )
    return replace(recipe, batch=batch)


def report(run: sl.Run, test: Any, *, as_json: bool) -> None:
    """What came out, and its accuracy on the test data, which training never saw."""
    facts: dict[str, Any] = {"run": str(run.folder), "steps": run.about["ended"]["step"], **run.summary()}
    if test is not None and run.about["identity"]["recipe"]["task"] == "classify":
        file = run.path / "test.npz"
        result = sl.Result.load(file) if file.exists() else sl.evaluate(run.model, test)
        result.save(file)
        facts |= {f"test/{k}": v for k, v in result.summary().items()}
    facts["weights"] = str(run.path / "model.safetensors")
    show(facts, as_json, title="finished")


def prove(train: Callable[..., sl.Run], recipe: sl.Recipe, as_json: bool) -> None:
    """The same few steps once in one go and once interrupted half-way: the weights must be the same bytes."""
    short = replace(recipe, steps=6, epochs=None, warmup=min(recipe.warmup, 2), log_every=1, eval_every=3, save_every=4,
                    milestones=(2, 4) if recipe.milestones else ())  # fmt: skip
    place = Path(tempfile.mkdtemp())
    try:
        whole = train(place / "whole", short)
        short = replace(short, micro=whole.about["plan"]["micro"])  # free memory may have changed since
        step, halves = interrupted(train, place / "halves", short)
        same = (whole.path / "model.safetensors").read_bytes() == (halves.path / "model.safetensors").read_bytes()
        losses = [[row["train/loss"] for row in run.rows() if "lr" in row] for run in (whole, halves)]
    finally:
        shutil.rmtree(place)
    show({"steps": 6, "interrupted at": step, "same weights": same, "same losses": losses[0] == losses[1]}, as_json)
    if not same or losses[0] != losses[1]:
        raise click.exceptions.Exit(1)


def interrupted(train: Callable[..., sl.Run], folder: Path, recipe: sl.Recipe) -> tuple[int, sl.Run]:
    """The run again, stopped by a real signal in the middle of it and then gone on with; also where that was."""

    def stop(_: Any) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return {}

    try:
        train(folder, recipe, stop=((3, stop),))
    except sl.training.Stopped:
        step = sl.Run(folder).rows()[-1]["step"]
        return step, train(folder, recipe)
    raise click.ClickException("The run did not stop when it was asked to.")


@verb
@click.argument("folder", default="runs", type=click.Path())
def runs(folder: str, as_json: bool) -> None:
    """A table of the runs in FOLDER, with their curves.

    Example: sightline runs runs
    """
    found = [listed(sl.Run(path), as_json) for path in sorted(p.parent for p in Path(folder).rglob("run.json"))]
    if not any(found):
        raise ValueError(f"{folder} holds no runs: sightline train DATA --model NAME --out {folder}/NAME makes one.")
    show([row for row in found if row], as_json)


def listed(run: sl.Run, as_json: bool) -> dict[str, Any] | None:
    """A run's row; what is not of ours, or damaged, is said and left out."""
    try:
        return row(run, as_json)
    except ValueError as error:
        click.echo(f"left out: {error}", err=True)
        return None


def row(run: sl.Run, as_json: bool) -> dict[str, Any]:
    about, curves = run.about, run.curves()
    done = int(curves.step[-1]) if len(curves.step) else 0
    last = curves.summary()
    state = "finished" if run.finished else f"{done / about['plan']['steps']:.0%}"
    loss = curves.of("train/loss")[1].tolist() if "train/loss" in curves.names else []
    accuracy = curves.of("val/accuracy")[1].tolist() if "val/accuracy" in curves.names else []
    facts = {"run": str(run.folder), "data": about["data"]["name"], "recipe": about["name"], "state": state}
    facts |= {"steps": done, "loss": last.get("train/loss"), "val": last.get("val/accuracy")}
    if as_json:
        return {**facts, "train/loss": loss, "val/accuracy": accuracy}
    return {**facts, "loss curve": sparkline(loss), "val curve": sparkline(accuracy)}


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """A curve in a line of text, scaled to its own range."""
    kept = [v for v in values if math.isfinite(v)]
    if not kept:
        return ""
    step = max(1, math.ceil(len(kept) / width))
    means = [sum(kept[i : i + step]) / len(kept[i : i + step]) for i in range(0, len(kept), step)]
    low, high = min(means), max(means)
    return "".join(BARS[round((v - low) / (high - low or 1) * (len(BARS) - 1))] for v in means)


@verb
@click.argument("name", required=False)
def recipes(name: str | None, as_json: bool) -> None:
    """The recipes that `--recipe` takes; with NAME, what is in one.

    Example: sightline recipes vit_finetune
    """
    if name is None:
        show([{"recipe": n, "what": what} for n, what in sl.recipes.about().items()], as_json)
        return
    made = sl.recipes.get(name, model="vit-b16", data=None, num_images=50_000, image_area=1024)
    show(asdict(made), as_json, title=name)
