"""Results from wherever they are: objects, files, folders. What cannot be read is told, not hidden."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sightline.spec import Result, from_json
from sightline.training.run.folder import Run

Given = Result | str | Path | Mapping[str, Result] | Sequence[Any]
MADE = "`sightline look MODEL DATA --out DIR` makes some"


@dataclass(frozen=True)
class Entry:
    """A result and what to call it, in file names and anchors."""

    name: str
    result: Result


@dataclass
class Collection:
    """Everything that was found, and what is worth telling about the rest."""

    entries: list[Entry] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def add(self, name: str, result: Result) -> None:
        """Names are made fit for files, and unique."""
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "result"
        taken = {e.name for e in self.entries}
        free = (base if i == 1 else f"{base}-{i}" for i in range(1, len(taken) + 2))
        self.entries.append(Entry(next(n for n in free if n not in taken), result))


def collect(results: Given) -> Collection:
    """Results as entries with names. Raises if there is nothing to report."""
    found = Collection()
    for name, item in _items(results):
        if isinstance(item, Result):
            found.add(name or str(item.about.analysis or type(item).__name__), item)
        elif isinstance(item, str | Path):
            _path(Path(item), found)
        else:
            raise ValueError(f"A report is made of results, files or folders; got a {type(item).__name__}.")
    if not found.entries:
        told = f" {found.notices[0]}" if found.notices else ""
        raise ValueError(f"There are no results to report; {MADE}.{told}")
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


def _path(path: Path, found: Collection) -> None:
    if path.is_dir():
        _folder(path, found)
    elif path.exists():
        found.add(path.stem, Result.load(path))
    else:
        raise ValueError(f"{path} does not exist; give files or folders of results. {MADE[0].upper()}{MADE[1:]}.")


def _folder(path: Path, found: Collection) -> None:
    """All results in a folder, or in the folders within it; other files there are passed over and named. A run folder
    gives its curves."""
    if (path / "run.json").exists():
        found.add(path.name, Run(path).curves())
        return
    files = sorted(path.glob("*.npz")) or sorted(p for p in path.glob("*/*.npz") if p.parent.name != "data")
    if not files:
        raise ValueError(f"{path} holds no saved results (*.npz); {MADE}.")
    for file in files:
        try:
            found.add(file.stem, Result.load(file))
        except ValueError as error:
            found.notices.append(f"Left out: {_nameless(str(error), file)}")
    for listed in sorted({f.parent / "summary.json" for f in files}):
        found.notices.extend(_listed(listed))


def _nameless(text: str, file: Path) -> str:
    """The file's own name instead of its path: a page must not tell where it was made."""
    return text.replace(str(file), file.name)


def _listed(path: Path) -> Iterator[str]:
    """What `look` noted as not applicable or failed."""
    try:
        rows = from_json(path.read_text())
    except (OSError, ValueError):
        return
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("state") in ("does not apply", "failed"):
            yield f"{row.get('name')}: {row['state']} ({row.get('why')})."
