"""`sightline data`: list, get, info, check, shard."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

import sightline as sl
from sightline.cli.shell import cli, show
from sightline.data.named.store import data_folder, is_here
from sightline.data.named.table import KNOWN
from sightline.data.scenes.tasks import TASKS

SHOWN = 20  # findings of one kind in the table; --json has them all


@cli.group()
def data() -> None:
    """Datasets: what there is, fetch, describe, check, shard."""


def data_verb(function: Callable[..., Any]) -> click.Command:
    """A command of this group with --json."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print machine-readable JSON.")
    return data.command(function.__name__.rstrip("_"))(as_json(function))


split_option = click.option("--split", default=None, help="Which split, where there are several.")


@data_verb
def list_(as_json: bool) -> None:
    """Datasets that are known by name, and whether they are here."""
    rows = [
        {
            "name": known.name,
            "classes": known.count,
            "images": sum(known.splits.values()),
            "splits": ", ".join(known.splits),
            "here": is_here(known.name),
            "about": known.about,
        }
        for known in KNOWN.values()
    ]
    rows += [
        {
            "name": f"scenes/{name}",
            "classes": len(task.classes) or None,
            "images": None,
            "splits": "train, val, test",
            "here": True,
            "about": task.about,
        }
        for name, task in TASKS.items()
    ]
    show(rows, as_json, title=f"kept in {data_folder()}")


@data_verb
@click.argument("name")
def get(name: str, as_json: bool) -> None:
    """Make the dataset NAME ready, and say which source served."""
    show(asdict(sl.data.get_dataset(name)), as_json)


@data_verb
@click.argument("where", metavar="DATA")
@split_option
def info(where: str, split: str | None, as_json: bool) -> None:
    """Describe DATA: a name, a folder, a manifest, arrays or shards."""
    d = sl.dataset(where, split=split)
    counts = d.counts()
    sizes = [pixels.shape[:2] for pixels in _some(d)] or [(0, 0)]
    heights, widths = np.array(sizes).T
    facts = {
        "name": d.name,
        "images": len(d),
        "classes": len(d.classes),
        "per class, fewest": min(counts),
        "per class, most": max(counts),
        "height, median": int(np.median(heights)),
        "width, median": int(np.median(widths)),
        "fingerprint": d.fingerprint(),
    }
    if as_json:
        facts["class names"] = d.classes
        facts["per class"] = counts
    else:
        facts["class names"] = ", ".join(d.classes[:12]) + (" ..." if len(d.classes) > 12 else "")
    show(facts, as_json)


def _some(d: sl.Dataset) -> Iterator[np.ndarray]:
    """Up to 64 images; bad ones are for `check` to name."""
    few = d.sample(min(len(d), 64), seed=0)
    for i in range(len(few)):
        with contextlib.suppress(sl.data.BadImage):
            yield few[i][0]


@data_verb
@click.argument("where", metavar="DATA")
@split_option
@click.option("--against", default=None, help="Another split, or another dataset, that must share no image with it.")
@click.option("--sheet", type=click.Path(dir_okay=False), default=None, help="Draw a contact sheet here (PNG or JPEG).")
@click.option("--strict", is_flag=True, help="Exit with 1 if something would spoil training or a measurement.")
def check(where: str, split: str | None, against: str | None, sheet: str | None, strict: bool, as_json: bool) -> None:
    """Find what is wrong with DATA: broken and odd files, twins, leaks. A train split is compared with its test."""
    d, other = _two(where, split, against)
    report = sl.data.check(d, other, sheet=sheet)
    if as_json:
        show({**asdict(report), "counts": report.counts()}, True)
    else:
        per_kind: dict[str, int] = {}
        rows = []
        for f in report.findings:
            per_kind[f.kind] = per_kind.get(f.kind, 0) + 1
            if per_kind[f.kind] <= SHOWN:
                rows.append({"finding": f.kind, "where": f.where, "what": f.detail})
        rows += [
            {"finding": k, "where": f"... {n - SHOWN} more", "what": "see --json"}
            for k, n in per_kind.items()
            if n > SHOWN
        ]
        title = f"{report.name}: {report.images:,} images, {len(report.findings):,} findings"
        show(rows or [{"finding": "none", "where": report.name, "what": ""}], False, title=title)
        if report.sheet:
            click.echo(f"contact sheet: {report.sheet}")
    if strict and any(f.serious for f in report.findings):
        sys.exit(1)


def _two(where: str, split: str | None, against: str | None) -> tuple[sl.Dataset, sl.Dataset | None]:
    """The dataset, and what it must not overlap with: what was named, or else its own test or val split."""
    if split is None and against is None:
        splits = _splits(where)
        if "train" in splits and len(splits) > 1:
            other = next(s for s in ("test", "val", *splits) if s in splits and s != "train")
            return sl.dataset(where, split="train"), sl.dataset(where, split=other)
    d = sl.dataset(where, split=split)
    if against is None:
        return d, None
    return d, sl.dataset(where, split=against) if against in _splits(where) else sl.dataset(against)


def _splits(where: str) -> tuple[str, ...]:
    if where in KNOWN:
        return tuple(KNOWN[where].splits)
    if where.startswith("scenes/"):
        return ("train", "val", "test")
    here = Path(where)
    return tuple(
        s for s in ("train", "val", "test") if (here / s).is_dir() and any(p.is_dir() for p in (here / s).iterdir())
    )


@data_verb
@click.argument("where", metavar="DATA")
@click.argument("out")
@split_option
@click.option("--per-shard", default=10_000, show_default=True, help="Images in a shard.")
@click.option("--seed", default=0, show_default=True, help="Of the shuffle.")
def shard(where: str, out: str, split: str | None, per_shard: int, seed: int, as_json: bool) -> None:
    """Write DATA as tar shards in WebDataset format into the folder OUT."""
    show(asdict(sl.data.shard(sl.dataset(where, split=split), out, per_shard=per_shard, seed=seed)), as_json)
