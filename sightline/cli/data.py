"""`sightline data`: list, get, info, check, shard."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict

import click

import sightline as sl
from sightline.cli.shell import Group, help_without_verb, show, tell, verb_of

SHOWN_CLASSES = 12
SHOWN_FINDINGS = 20  # findings of each kind in the table; --json has all of them
split_option = click.option("--split", default=None, help="Which split, if there are several.")


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def data(context: click.Context) -> None:
    """List, fetch, describe, check and shard datasets.

    Example: sightline data list
    """
    help_without_verb(context)


data_verb = verb_of(data)


@data_verb
def list_(as_json: bool) -> None:
    """List named datasets, and whether they are on this machine.

    Example: sightline data list
    """
    rows = [
        {
            "name": d.name,
            "classes": d.classes,
            "images": d.images,
            "splits": ", ".join(d.splits),
            "here": d.here,
            "about": d.about,
        }
        for d in sl.data.list_datasets()
    ]
    if not as_json:  # so that "about" has room in 80 columns
        rows = [{k: v for k, v in row.items() if k != "splits"} for row in rows]
    show(rows, as_json, title=f"Named datasets are kept in {sl.data.data_folder()}")


@data_verb
@click.argument("name")
def get(name: str, as_json: bool) -> None:
    """Download the dataset NAME, and print where it came from.

    Example: sightline data get cifar10
    """
    show(asdict(sl.data.get_dataset(name)), as_json)


@data_verb
@click.argument("where", metavar="DATA")
@split_option
def info(where: str, split: str | None, as_json: bool) -> None:
    """Describe DATA: classes, counts, image sizes.

    Example: sightline data info flowers/ --split train
    """
    d = sl.data.describe_dataset(sl.dataset(where, split=split))
    more = " ..." if len(d.classes) > SHOWN_CLASSES else ""
    facts = {
        "name": d.name,
        "images": d.images,
        "classes": len(d.classes),
        "per class, fewest": d.fewest,
        "per class, most": d.most,
        "height, median": d.height,
        "width, median": d.width,
        "fingerprint": d.fingerprint,
        "class names": d.classes if as_json else ", ".join(d.classes[:SHOWN_CLASSES]) + more,
    }
    show({**facts, "per class": d.per_class} if as_json else facts, as_json)


@data_verb
@click.argument("where", metavar="DATA")
@split_option
@click.option("--against", default=None, help="Another split or dataset, which must not share images with it.")
@click.option("--sheet", type=click.Path(dir_okay=False), default=None, help="Draw a contact sheet (PNG or JPEG).")
@click.option("--strict", is_flag=True, help="Exit with code 1 if a finding would harm training or evaluation.")
def check(where: str, split: str | None, against: str | None, sheet: str | None, strict: bool, as_json: bool) -> None:
    """Check DATA for broken files, duplicates and leaks.

    Also for unusual sizes and colors. A train split is compared with test or val.

    Example: sightline data check flowers/ --sheet flowers.png --strict
    """
    report = sl.data.check(*sl.data.dataset_pair(where, split, against), sheet=sheet)
    if as_json:
        show({**asdict(report), "counts": report.counts()}, True)
    else:
        print_findings(report)
    if strict and any(f.serious for f in report.findings):
        sys.exit(1)


def print_findings(report: sl.data.CheckReport) -> None:
    """The first findings of each kind, and how many more there are."""
    count: Counter[str] = Counter()
    rows = []
    for f in report.findings:
        count[f.kind] += 1
        if count[f.kind] <= SHOWN_FINDINGS:
            rows.append({"finding": f.kind, "where": f.where, "what": f.detail})
    for kind, n in count.items():
        if n > SHOWN_FINDINGS:
            rows.append({"finding": kind, "where": f"... {n - SHOWN_FINDINGS} more", "what": "see --json"})
    size = f"{report.name}: {report.images:,} images"
    if rows:
        show(rows, False, title=f"{size}, {len(report.findings):,} findings")
    else:
        tell(f"{size}, no findings", err=False)
    if report.sheet:
        tell(f"contact sheet: {report.sheet}", err=False)


@data_verb
@click.argument("where", metavar="DATA")
@click.argument("out")
@split_option
@click.option("--per-shard", default=10_000, show_default=True, help="Images per shard.")
@click.option("--seed", default=0, show_default=True, help="Random seed of the shuffle.")
def shard(where: str, out: str, split: str | None, per_shard: int, seed: int, as_json: bool) -> None:
    """Write DATA as tar shards in WebDataset format to the folder OUT.

    Example: sightline data shard flowers/ shards/ --split train
    """
    show(asdict(sl.data.shard(sl.dataset(where, split=split), out, per_shard=per_shard, seed=seed)), as_json)
