"""Verbs that train: train, tune, runs, recipes."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

import sightline as sl
from sightline.cli.shell import show, summary_rows, tell, text, verb
from sightline.memory import keep_freed_memory

OF_STEPS = ("lr", "norm/gradient", "norm/parameter", "norm/update", "data wait", "memory MiB")
BARS = "▁▂▃▄▅▆▇█"
DENSE = ("segment", "detect")
LAPTOP = 20_000  # images: with fewer, and without an accelerator, `tune` takes a recipe for laptops


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `train` and `tune` share."""
    for option in reversed(
        (
            click.option("--out", required=True, type=click.Path(file_okay=False), help="The run folder."),
            click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="NAME=VALUE",
                help="Change a field of the recipe, such as lr=0.01.",
            ),
            click.option(
                "--val", help="Validation data: a split, a fraction of the training data such as 0.1, or none."
            ),
            click.option(
                "--split",
                "share",
                type=float,
                metavar="SHARE",
                help="For data without train/ and test/: train on this share, such as 0.8, and test on the rest.",
            ),
            click.option("--num", type=int, help="Number of scenes if DATA is scenes/NAME (default 10,000)."),
            click.option("--fraction", type=float, help="Train on this share of the training data."),
            click.option("--size", type=int, help="Image size in pixels; position embeddings are resampled."),
            click.option("--seed", default=0, show_default=True, help="Random seed."),
            click.option("--workers", default=0, show_default=True, help="Processes that prepare images."),
            click.option("--threads", type=int, help="Threads; by default as many as cores are free."),
            click.option(
                "--parallel",
                type=click.Choice(["ddp", "fsdp"]),
                default="ddp",
                help="How processes started by torchrun share.",
            ),
            click.option("--device", help="cpu, cuda or mps; by default the accelerator, if there is one."),
            click.option("--few-shot", "few", is_flag=True, help="Measure 5- and 10-shot accuracy during training."),
            click.option(
                "--smoke",
                is_flag=True,
                help="Run only two steps and one evaluation, to see that everything works.",
            ),
            click.option(
                "--prove-resume",
                is_flag=True,
                help="Check that a resumed run is bit-identical to an uninterrupted one.",
            ),
        )
    ):
        function = option(function)
    return function


@verb
@click.argument("data")
@click.option("--model", "name", required=True, help="Name of the model, such as vit-micro4 (sightline models).")
@click.option("--recipe", help="Name of the recipe (sightline recipes); by default one for a laptop.")
@click.option(
    "--with", "shape", multiple=True, metavar="NAME=VALUE", help="Change a field of the model, such as pool=gap."
)
@click.option("--task", type=click.Choice(["classify", "masked", "mae", "lejepa", "segment", "detect"]),
              help="Objective, instead of the recipe's; segment and detect need DATA with masks.")  # fmt: skip
@options
def train(data: str, name: str, recipe: str | None, shape: Sequence[str], task: str | None, **how: Any) -> None:
    """Train a model on DATA from scratch. Run the same command again to resume after an interruption.

    Example: sightline train scenes/count --model vit-nano4 --out runs/count
    """
    family = "laptop_bit" if name.lower().startswith("bit") else "laptop_vit"
    family = {"masked": "laptop_masked", "mae": "laptop_masked", "lejepa": "laptop_lejepa"}.get(task or "", family)
    family = "laptop_dense" if task in DENSE else family
    settings = [*how.pop("settings"), *([f"task={task}"] if task else [])]
    if task == "mae" and not any(s.startswith("corrupt") for s in settings):
        settings.append("corrupt=0.75")

    def build(classes: Sequence[str], size: int | None) -> Any:
        count = 0 if task in DENSE else len(classes)  # the head of a dense task is not the model's own
        config = sl.models.config(name, classes=count, **({"size": size} if size else {}))
        return sl.build(sl.training.apply_settings(config, shape), seed=how["seed"])

    run_training(data, build, model=name, recipe=recipe or family, settings=settings, **how)


@verb
@click.argument("data")
@click.option("--model", "weights", required=True, 
              help="Weights: a file (also of timm, torchvision or Google), a run folder, a published name, "
              "or hf:NAME_OR_FOLDER.")  # fmt: skip
@click.option(
    "--recipe",
    help="Name of the recipe; by default laptop_tune for up to 20,000 images without an accelerator, otherwise the "
    "papers' vit_finetune, or bit_hyperrule for a BiT.",
)
@click.option("--data-is", type=click.Choice(["small-similar", "small-different", "large-similar", "large-different"]),
              help="What the data is like, which selects the layers to train (sl.training.transfer).")  # fmt: skip
@click.option("--task", type=click.Choice(["classify", *DENSE]), default="classify",
              help="segment and detect: a head for masks; --set trained=dense.* freezes the model.")  # fmt: skip
@options
def tune(data: str, weights: str, recipe: str | None, data_is: str | None, task: str, **how: Any) -> None:
    """Fine-tune trained weights on DATA: a new head, all or some layers. Run it again to resume.

    Example: sightline tune pets --model vit-b16.augreg-i21k --out runs/pets
    """
    if task in DENSE:
        tune_dense(data, weights, recipe, task, data_is=data_is, **how)
        return
    if weights.startswith(("timm:", "torchvision:")) or weights.rpartition(":")[0].endswith(".py"):
        raise ValueError(
            f"tune trains models of Sightline's own code, and {weights} is another's: save its weights "
            "(torch.save(model.state_dict(), 'weights.pth')) and give --model weights.pth."
        )
    is_bit = isinstance(sl.load(weights), sl.models.BiT)
    papers = "bit_hyperrule" if is_bit else "vit_finetune"

    def choose(images: int) -> str:
        small = images < LAPTOP and sl.training.find_device(how["device"]).type == "cpu"
        if small and is_first_process():
            click.echo(f"recipe laptop_tune, for a processor and few images (the paper's: --recipe {papers})", err=True)
        return "laptop_tune" if small else papers

    if is_bit and recipe is None:  # the HyperRule's rate
        how["settings"] = ("lr=0.003", *how["settings"])

    def build(classes: Sequence[str], size: int | None) -> Any:
        return sl.load(weights, classes=tuple(classes), size=size)

    run_training(data, build, model=Path(weights).stem, recipe=recipe or choose, data_is=data_is, **how)


def tune_dense(data: str, weights: str, recipe: str | None, task: str, **how: Any) -> None:
    """Fine-tune trained weights with a new dense head."""

    def build(classes: Sequence[str], size: int | None) -> Any:
        return sl.load(weights, classes=0, size=size)

    how["settings"] = [*how["settings"], f"task={task}"]
    run_training(data, build, model=Path(weights).stem, recipe=recipe or "laptop_dense", **how)


def run_training(
    data: str,
    build: Callable[..., Any],
    *,
    model: str,
    recipe: str | Callable[[int], str],
    settings: Sequence[str],
    **how: Any,
) -> None:
    """Open data, recipe and model from the options; then run `sl.fit`, a smoke run, or the resume check."""
    keep_freed_memory()
    given = {name: how[name] for name in ("val", "num", "fraction", "size")}
    split = sl.training.split_data(data, split=how["share"], **given)
    if is_first_process():
        click.echo(split.describe(), err=True)
    recipe = recipe if isinstance(recipe, str) else recipe(len(split.train))
    area = int(math.prod(split.train[0][0].shape[:2]))
    r = sl.recipes.get(recipe, model=model, data=data, num_images=len(split.train), image_area=area)
    r = replace(r, seed=how["seed"]).change(settings)
    r = replace(r, size=how["size"] or (r.sizes[-1][1] if r.sizes else r.size))
    r = r if how["smoke"] else limit_batch(r, len(split.train), settings)
    m = build(split.train.classes, r.size).to(sl.training.find_device(how["device"]))
    if (kind := how.get("data_is")) is not None:
        r = sl.training.transfer(*kind.split("-"), recipe=r, model=m)
    evals = few_shot_evaluators(split, r) if how["few"] else ()
    if not how["smoke"]:
        remove_rehearsal(how["out"])
        r = choose_execution(m, r, images=len(split.train), out=how["out"], settings=settings)
    given = {"val": split.val, "evals": evals, "workers": how["workers"], "parallel": how["parallel"]}
    with sl.training.run_threads(how["out"], how["threads"]) as threads:
        if is_first_process():
            click.echo(threads, err=True)
        if how["prove_resume"]:
            show_proof(sl.training.prove_resume(m, split.train, r, **given), how["as_json"])
        elif how["smoke"]:
            show_run(sl.training.smoke_run(m, split.train, r, out=how["out"], **given).run, None, how["as_json"])
        else:
            show_run(sl.fit(m, split.train, r, out=how["out"], **given), split.test, how["as_json"])


def choose_execution(model: Any, recipe: Any, *, images: int, out: str, settings: Sequence[str]) -> Any:
    """The recipe with what pays for a run of its length, unless the user set it; says so."""
    asked = {setting.partition("=")[0].strip() for setting in settings}
    recipe, why = sl.training.select_execution(model, recipe, images=images, folder=out, asked=asked)
    if is_first_process():
        click.echo(why, err=True)
    return recipe


def remove_rehearsal(out: str) -> None:
    """Make room for the real run where `--smoke` was run before."""
    if is_first_process() and (Path(out) / "run.json").exists() and sl.training.is_rehearsal(sl.Run(out)):
        tell(f"the rehearsal in {out} is removed")
        shutil.rmtree(out)


def is_first_process() -> bool:
    return int(os.environ.get("RANK", 0)) == 0


def limit_batch(recipe: Any, images: int, settings: Sequence[str]) -> Any:
    """Limit the recipe's batch size to the number of training images, unless the user set it."""
    if any(setting.partition("=")[0].strip() in ("batch", "repeat") for setting in settings):
        return recipe
    limited = recipe.limit_batch(images, processes=int(os.environ.get("WORLD_SIZE", 1)))
    if limited.batch < recipe.batch and is_first_process():
        click.echo(
            f"batch {limited.batch} instead of the recipe's {recipe.batch}: there are {images:,} training images "
            f"(--set batch={recipe.batch} --set repeat=true repeats them within a batch)",
            err=True,
        )
    return limited


def few_shot_evaluators(split: Any, recipe: Any) -> Any:
    """Few-shot accuracy, measured five times in a run."""
    train, val = split.train, split.val if split.val is not None else split.train
    if min(train.counts()) < 10:
        raise ValueError(
            f"--few-shot needs 10 images of every class; one class of {train.name} has {min(train.counts())}."
        )
    return ((max(1, recipe.total_steps(len(train)) // 5), sl.evals.fewshot_evaluator(train, val)),)


def show_run(run: Any, test: Any, as_json: bool) -> None:
    """Print the final metrics of a run, and its accuracy on the test data."""
    if not is_first_process():
        return
    facts: dict[str, Any] = {"run": str(run.folder), "steps": run.about["ended"]["step"], **run.summary()}
    if test is not None and run.about["identity"]["recipe"]["task"] in ("classify", *DENSE):
        tested = sl.training.evaluate_run(run, test)
        facts |= {f"test/{k}": v for k, v in tested.summary().items()} if as_json else test_rows(tested)
    if run.collapsed:
        facts["collapsed"] = run.collapsed
    facts["weights"] = str(run.path / "model.safetensors")
    if not as_json:  # how the steps went is in the log, and in --json
        facts = {name: value for name, value in facts.items() if name not in OF_STEPS}
    show(facts, as_json, title="finished")
    if not as_json and not sl.training.is_rehearsal(run):
        tell(f"Next: sightline predict {run.folder} IMAGE, or sightline report {run.folder}")


def test_rows(tested: Any) -> dict[str, str]:
    """Test results for the table, each with its 95 % interval."""
    rows = summary_rows(tested)
    bands = [f" ({band})" if (band := row.get("95 % interval")) else "" for row in rows]
    return {f"test/{row['what']}": text(row["value"]) + band for row, band in zip(rows, bands)}


def show_proof(proof: Any, as_json: bool) -> None:
    """Print the result of the resume check; exit with code 1 if it failed."""
    facts = {"steps": proof.steps, "interrupted at": proof.interrupted_at}
    show({**facts, "same weights": proof.same_weights, "same losses": proof.same_losses}, as_json)
    if not proof.holds:
        raise click.exceptions.Exit(1)


@verb
@click.argument("folder", default="runs", type=click.Path())
@click.option("--plot", type=click.Path(dir_okay=False),
              help="Write accuracy against training compute with the Pareto front (.png, .svg and .npz).")  # fmt: skip
@click.option("--data", help="With --plot: the dataset whose runs are compared, if there are several.")
def runs(folder: str, plot: str | None, data: str | None, as_json: bool) -> None:
    """List the runs in FOLDER, with their curves.

    Example: sightline runs runs/ --plot compute.png
    """
    if plot is not None:
        plot_compute(folder, data, plot, as_json)
        return
    if data is not None:
        raise ValueError("--data selects the runs of a plot: add --plot FILE.png.")
    summaries = sl.training.list_runs(folder)
    for summary in summaries:
        if summary.problem:
            tell(f"left out: {summary.problem}")
        elif summary.collapsed:
            tell(f"{summary.folder}: {summary.collapsed}")
    if rows := [row(summary, as_json) for summary in summaries if not summary.problem]:
        show(rows, as_json)
    else:
        raise ValueError(
            f"{folder} contains no runs: sightline train DATA --model NAME --out {folder}/NAME starts one."
        )


def plot_compute(folder: str, data: str | None, path: str, as_json: bool) -> None:
    """Accuracy against training compute: a figure, and a table with the Pareto front."""
    result = sl.training.accuracy_by_compute(folder, data=data)
    for reason in result.how["left out"].values():
        tell(f"left out: {reason}")
    columns = zip(result.runs, result.families, result.macs, result.accuracy, result.low, result.high, result.front)
    rows = [
        {"run": name, "family": family, "MACs": f"{macs:.3g}" if not as_json else float(macs), "val": float(accuracy)}
        | {"95 % from": float(low), "to": float(high), "front": bool(front)}
        for name, family, macs, accuracy, low, high, front in sorted(columns, key=lambda c: c[2])
    ]
    show(rows, as_json, title=result.caption)
    for file in sl.save_figure(result, path):
        tell(f"wrote {file}")


def row(summary: Any, as_json: bool) -> dict[str, Any]:
    facts = {"run": summary.folder, "data": summary.data, "recipe": summary.recipe, "state": summary.progress}
    facts |= {"steps": summary.steps, "loss": summary.loss, "val": summary.accuracy}
    if as_json:
        return {**facts, "train/loss": summary.train_loss, "val/accuracy": summary.val_accuracy}
    del facts["recipe"]  # a terminal has 80 columns
    if sl.training.is_rehearsal(sl.Run(summary.folder)):
        facts["state"] = "smoke run"  # two steps: its accuracy is not to be read
    return {**facts, "losses": sparkline(summary.train_loss), "vals": sparkline(summary.val_accuracy)}


def sparkline(values: Sequence[float], width: int = 7) -> str:
    """A curve as one line of text, scaled to its own range."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return ""
    step = max(1, math.ceil(len(finite) / width))
    means = [sum(finite[i : i + step]) / len(finite[i : i + step]) for i in range(0, len(finite), step)]
    low, high = min(means), max(means)
    return "".join(BARS[round((v - low) / (high - low or 1) * (len(BARS) - 1))] for v in means)


@verb
@click.argument("name", required=False)
def recipes(name: str | None, as_json: bool) -> None:
    """List the recipes for `--recipe`; with NAME, the fields of one.

    Example: sightline recipes vit_finetune
    """
    if name is None:
        show([{"recipe": n, "what": what} for n, what in sl.recipes.about().items()], as_json)
        return
    recipe = sl.recipes.get(name, model="vit-b16", data=None, num_images=50_000, image_area=1024)
    facts = asdict(recipe)
    if not as_json:  # by the names that --set takes
        inner = {f"augment.{field}": value for field, value in facts.pop("augment").items()}
        facts |= inner
    show(facts, as_json, title=f"{name}; --set NAME=VALUE changes a field")
