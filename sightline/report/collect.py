"""Collect results from objects, files and folders. What cannot be read is listed on the page."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sightline.spec import Result, from_json
from sightline.studies.evidence import tell_apart
from sightline.training.run.folder import Run
from sightline.untrusted import read_text

Given = Result | str | Path | Mapping[str, Result] | Sequence[Any]
MAKE_SOME = "`sightline look MODEL DATA --out DIR` computes some"


@dataclass(frozen=True)
class PageEntry:
    """A result, its name for files and anchors, and the folder it was read from."""

    name: str
    result: Result
    folder: str = ""


@dataclass
class Collection:
    """All results of a page, and notices about what is missing from it."""

    entries: list[PageEntry] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def add(self, name: str, result: Result, folder: str = "") -> None:
        """Add a result under a unique name that is valid as a file name."""
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "result"
        taken = {e.name for e in self.entries}
        free = (base if i == 1 else f"{base}-{i}" for i in range(1, len(taken) + 2))
        self.entries.append(PageEntry(next(n for n in free if n not in taken), result, folder))


def collect(results: Given) -> Collection:
    """Results as named entries; different models get different display names. Raises ValueError if there are none."""
    found = Collection()
    for name, item in _items(results):
        if isinstance(item, Result):
            found.add(name or item.about.analysis or type(item).__name__, item)
        elif isinstance(item, str | Path):
            _add_path(Path(item), found)
        else:
            raise ValueError(f"A report is made of results, files or folders; got a {type(item).__name__}.")
    if not found.entries:
        why = f" {found.notices[0]}" if found.notices else ""
        raise ValueError(f"There are no results to report; {MAKE_SOME}.{why}")
    named = tell_apart([e.result for e in found.entries], [e.folder for e in found.entries])
    found.entries = [replace(e, result=r) for e, r in zip(found.entries, named)]
    return found


def _items(results: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(results, Result | str | Path):
        yield "", results
    elif isinstance(results, Mapping):
        yield from ((str(k), v) for k, v in results.items())
    elif isinstance(results, Iterable):
        yield from (("", item) for item in results)
    else:
        raise ValueError(f"A report is made of results, files or folders; got a {type(results).__name__}.")


def _add_path(path: Path, found: Collection) -> None:
    if path.is_dir():
        _add_folder(path, found)
    elif path.exists():
        found.add(path.stem, Result.load(path), path.absolute().parent.name)
    else:
        make = f"{MAKE_SOME[0].upper()}{MAKE_SOME[1:]}"
        raise ValueError(f"{path} does not exist; give files or folders of results. {make}.")


def _add_folder(path: Path, found: Collection) -> None:
    """Add all results in a folder or its subfolders; a notice names files that are not results. A run folder gives its
    training curves."""
    if (path / "run.json").exists():
        _add_run(Run(path), found)
        return
    files = sorted(path.glob("*.npz")) or sorted(p for p in path.glob("*/*.npz") if p.parent.name != "data")
    if not files:
        raise ValueError(f"{path} has no saved results (*.npz); {MAKE_SOME}.")
    for file in files:
        try:
            found.add(file.stem, Result.load(file), file.absolute().parent.name)
        except ValueError as error:
            # the file's name instead of its path: a page must not contain local paths
            found.notices.append(f"Left out: {str(error).replace(str(file), file.name)}")
    for summary in sorted({f.parent / "summary.json" for f in files}):
        found.notices.extend(_summary_notices(summary))


def _add_run(run: Run, found: Collection) -> None:
    """What a run did on its test data, where it was tested, and its curves."""
    if (run.path / "test.npz").exists():
        found.add(f"{run.path.name}-test", Result.load(run.path / "test.npz"), run.path.absolute().name)
    found.add(run.path.name, run.curves(), run.path.absolute().name)


def _summary_notices(path: Path) -> Iterator[str]:
    """Notices about analyses that `look` listed as not applicable or failed."""
    try:
        rows = from_json(read_text(path))
    except (OSError, ValueError):
        return
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("state") in ("does not apply", "failed"):
            yield f"{row.get('name')}: {row['state']} ({row.get('why')})."
