"""`sightline study`: list, show, run, status, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import sightline as sl
from sightline.cli.options import FOLDER, Words
from sightline.cli.shell import Group, help_without_verb, memory, show, tell, verb_of

out_option = click.option("--out", default="studies", show_default=True, type=FOLDER, help="Folder for everything.")


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def study(context: click.Context) -> None:
    """Run the papers' experiments over training seeds, and say which claims hold.

    Example: sightline study run data --smoke
    """
    help_without_verb(context)


study_verb = verb_of(study)


@study_verb
def list_(as_json: bool) -> None:
    """List the studies, and which claims each decides.

    Example: sightline study list
    """
    rows = [
        {
            "study": s.name,
            "varies": ", ".join(s.axes),
            "decides": ", ".join(d.claim for d in s.decides),
            "question": s.question,
        }
        for s in sl.studies.list_studies()
    ]
    show(rows, as_json, title="Studies; sightline study show NAME has the whole design")


class Seeds(click.ParamType):
    """A number of seeds, or seeds with commas between."""

    name = "number|list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdecimal() for part in parts):
            self.fail(f"expected a number such as 5, or a list such as 0,1,2; got {value!r}.", param, ctx)
        return int(parts[0]) if len(parts) == 1 else tuple(map(int, parts))


seeds_option = click.option("--seeds", type=Seeds(), help="Training seeds: a number, or a list such as 0,1,2.")


@study_verb
@click.argument("name")
@seeds_option
def show_(name: str, seeds: Any, as_json: bool) -> None:
    """Print the design of the study NAME: grid, statistics and bounds, core-hours and memory.

    Example: sightline study show data
    """
    described = sl.studies.describe_study(name, seeds=seeds)
    if as_json:
        show(described, True)
        return
    about = {k: described[k] for k in ("study", "question", "source", "scale")}
    show({**about, **described["fixed"]}, False)
    show([{"axis": k, "levels": v} for k, v in described["axes"].items()], False, title="What varies")
    rows = [{k: row[k] for k in ("claim", "statistic", "required", "control")} for row in described["statistics"]]
    show(rows, False, title="Statistics: one number per training seed, its 95 % interval must lie where required")
    cost = described["cost"]
    cost = {**cost, "memory of one process": memory(cost["memory of one process"])}
    show(cost, False, title="Before anything runs")


@study_verb
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@seeds_option
@click.option("--only", multiple=True, metavar="AXIS=LEVEL,...", help="Some levels of an axis.")
@click.option("--on", type=click.Choice(["local", "slurm"]), default="local", show_default=True,
              help="Run on this machine, or submit jobs to Slurm.")  # fmt: skip
@click.option("--jobs", default=1, show_default=True, help="Processes with one thread each; on Slurm, jobs at a time.")
@click.option("--minutes", type=float, help="Start nothing new after this long, and save.")
@click.option("--smoke", is_flag=True, help="Three steps on a few images, to see that everything works.")
@click.option("--partition", help="Slurm: the partition.")
@click.option("--hours", default=4.0, show_default=True, help="Slurm: time limit of a job, which then is requeued.")
@click.option("--gpus", default=0, show_default=True, help="Slurm: GPUs of a job.")
@click.option("--group", default=4, show_default=True, help="Slurm: tasks in one job.")
@click.option("--models", type=Words(), default="", help="seeing: judge these networks instead, a ViT first.")
@click.option("--data", help="With --models: images by name or folder.")
@click.option("--num", default=256, show_default=True, help="With --models: number of images.")
@out_option
def run(names: Sequence[str], seeds: Any, only: Sequence[str], as_json: bool, out: str, **how: Any) -> None:
    """Run studies (all: every one), and write results and a page. The same command resumes.

    Example: sightline study run data positions --jobs 2 --out studies
    """
    check_belongs(how)
    if how["models"] or how["data"]:
        judge_given(names, out, as_json, **{k: how[k] for k in ("models", "data", "num")})
        return
    chosen = [s.name for s in sl.studies.list_studies()] if names == ("all",) else list(names)
    place: Any = "local"
    if how["on"] == "slurm":
        keys = ("partition", "hours", "gpus", "group")
        place = sl.studies.Cluster(**{k: how[k] for k in keys})
    files = sl.studies.run_studies(
        chosen,
        out=out,
        seeds=seeds,
        smoke=how["smoke"],
        only=levels(only),
        on=place,
        jobs=how["jobs"],
        minutes=how["minutes"],
        say=lambda text: click.echo(text, err=True),
    )
    page = sl.report.write_atlas(Path(out) / "results")
    rows = [claim_row(row) for file in files for row in sl.studies.judge_results(file)]
    if as_json:
        show({"claims": rows, "results": [str(f) for f in files], "page": str(page)}, True)
        return
    show(rows, False, title="Claims" + ("; a smoke test decides nothing" if how["smoke"] else ""))
    show_status(sl.studies.studies_status(out, jobs=how["jobs"]), "Progress")
    click.echo(f"Page: {page}")


def check_belongs(how: dict[str, Any]) -> None:
    """Refuse options that would say nothing: those of Slurm without it, and of training for given networks."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    typed = {o.name: o.opts[0] for o in context.command.params if context.get_parameter_source(o.name or "") == source}
    if how["models"] or how["data"]:
        training = ("seeds", "only", "on", "jobs", "minutes", "smoke", "partition", "hours", "gpus", "group")
        if lost := [typed[name] for name in training if name in typed]:
            raise click.UsageError(f"{lost[0]} is for trainings, and with --models nothing is trained: leave it out.")
    elif "num" in typed:
        raise click.UsageError("--num belongs to --models and --data.")
    if how["on"] == "local" and (lost := [typed[k] for k in ("partition", "hours", "gpus", "group") if k in typed]):
        raise click.UsageError(f"{lost[0]} is for jobs of Slurm: add --on slurm, or leave it out.")


def judge_given(names: Sequence[str], out: str, as_json: bool, *, models: Any, data: str | None, num: int) -> None:
    """The claims of the study seeing for given networks over images."""
    if tuple(names) != ("seeing",) or not models or not data:
        usage = "sightline study run seeing --models vit-b16.augreg-i21k,bit-r50x1.i21k --data FOLDER"
        raise click.UsageError(f"--models and --data belong together, with the study seeing: {usage}")
    found = sl.studies.judge_networks(models, data, out=out, n=num)
    place = sl.studies.networks_folder(out, sl.observe.model_names(list(models)))
    saved = {str(p.relative_to(place).with_suffix("")): sl.Result.load(p) for p in sorted(place.rglob("*.npz"))}
    page = sl.write_report(saved, place / "report", f"{' and '.join(models)} on {data}")
    rows = [{**v.plain(), "scale": f"{', '.join(v.models)} on {data}"} for v in found]
    if as_json:
        show({"claims": rows, "page": str(page)}, True)
        return
    short = [{**claim_row({**row, "smoke": False}), "models": ", ".join(row["models"])} for row in rows]
    short = [{k: v for k, v in row.items() if k != "seeds"} for row in short]
    show(short, False, title=f"The claims for these networks; intervals over images of {data}")
    click.echo(f"Page: {page}")


def levels(only: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """`--only AXIS=LEVEL,LEVEL` as axes with levels."""
    found: dict[str, tuple[str, ...]] = {}
    for text in only:
        axis, equals, named = text.partition("=")
        if not equals:
            raise click.UsageError(f"--only takes AXIS=LEVEL,LEVEL, such as family=ViT,BiT; got {text!r}.")
        found[axis] = (*found.get(axis, ()), *named.split(","))
    return found or None


def claim_row(row: dict[str, Any]) -> dict[str, Any]:
    """A claim with the effect that decides it; the page has all of them."""
    effect = sl.studies.decisive_effect(row["effects"])
    return {
        "claim": row["claim"],
        "verdict": "smoke" if row["smoke"] else row["state"],
        "seeds": row["seeds"],
        "effect": sl.studies.effect_text(effect),
        "of": effect["what"] if effect else "",
    }


@study_verb
@click.option("--jobs", default=1, show_default=True, help="Processes that share what is left.")
@out_option
def status(out: str, jobs: int, as_json: bool) -> None:
    """Print how far the studies of a folder are, with failures and the time left.

    Example: sightline study status --out studies
    """
    rows = sl.studies.studies_status(out, jobs=jobs)
    if as_json:
        show(rows, True)
        return
    show_status(rows, f"Studies in {out}")


def show_status(rows: Sequence[dict[str, Any]], title: str) -> None:
    """A table that fits into 80 columns, and the failures below it."""
    show([{k: v for k, v in row.items() if k != "first failure"} for row in rows], False, title=title)
    for row in rows:
        if row["first failure"]:
            tell(f"{row['study']}: {row['failed']} failed, the first because {row['first failure']}", err=False)


@study_verb
@click.argument("results", required=False, metavar="[RESULTS]")
@click.option("--to", type=click.Path(dir_okay=False), help="The page.  [default: atlas.html in RESULTS]")
def report(results: str | None, to: str | None, as_json: bool) -> None:
    """Write the atlas: every claim with its verdict, from the JSON files in RESULTS (by default docs/studies).

    Example: sightline study report studies/results --to atlas.html
    """
    folder = Path(results or "docs/studies")
    page = sl.report.write_atlas(folder, to) if to or not as_json else None
    if as_json:
        show(sl.studies.judge_folder(folder), True)
        return
    show([claim_row(row) for row in sl.studies.judge_folder(folder)], False, title="The papers' claims")
    click.echo(f"Page: {page}")
