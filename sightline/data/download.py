"""One file by HTTP: continued where it broke off, checked, whole or not at all, and shared by processes."""

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from sightline.data.errors import FetchError, UnreachableError

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte


def download(url: str, target: Path, checksum: str = "") -> Path:
    """The file at `url`, as `target`. One that is there already, with the right checksum, costs no byte.

    `checksum` is "md5:..." or "sha256:...", or the beginning of one, or empty where none is published. Bytes go to a
    `.part` file that a later try continues; it gets its name only once the checksum is right.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target):
        if target.exists() and verified(target, checksum):  # perhaps another process was faster
            return target
        part = target.with_name(target.name + ".part")
        resumed = part.exists()
        _receive(url, part, blindly=bool(checksum))
        if not verified(part, checksum) and resumed:  # the old beginning may be at fault: once more, from the start
            part.unlink()
            _receive(url, part, blindly=False)
        if not verified(part, checksum):
            part.unlink()
            raise FetchError(f"{url} does not have the checksum {checksum}; it was not kept.")
        os.replace(part, target)
        _tag(part).unlink(missing_ok=True)
    return target


def digest(path: Path, kind: str) -> str:
    """The checksum of a file, read in pieces."""
    found = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while piece := file.read(CHUNK):
            found.update(piece)
    return found.hexdigest()


def verified(path: Path, checksum: str) -> bool:
    """Whether a file has this checksum."""
    kind, _, want = checksum.partition(":")
    return not checksum or digest(path, kind).startswith(want.lower())


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """One process at a time per file; the lock is freed by the system even when its owner dies."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: both fetch, and the last one wins with the same bytes
        yield
        return
    with target.with_name(f".{target.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _tag(part: Path) -> Path:
    """Where the server's mark of the version that a part belongs to is kept."""
    return part.with_name(part.name + ".tag")


def _receive(url: str, part: Path, *, blindly: bool) -> None:
    """Append to `part` what it lacks. A part whose version is not known is continued only `blindly`: where a checksum
    will tell."""
    if os.environ.get("SIGHTLINE_OFFLINE"):
        raise UnreachableError(f"{url} is not here, and SIGHTLINE_OFFLINE forbids to fetch it.")
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "sightline"}
    if have and _tag(part).exists():  # continue only the very same file
        headers |= {"Range": f"bytes={have}-", "If-Range": _tag(part).read_text()}
    elif have and blindly:
        headers["Range"] = f"bytes={have}-"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as reply:
            _append(reply, part, have if reply.status == http.client.PARTIAL_CONTENT else 0)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return  # all of it is here already: the checksum will tell
        raise FetchError(f"{url} answered {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        kept = "; what came is kept, run again to go on" if part.exists() and part.stat().st_size else ""
        raise UnreachableError(f"{url} cannot be reached ({_why(error)}){kept}.") from error


def _append(reply: Any, part: Path, have: int) -> None:
    """Write the reply's body behind the first `have` bytes, and insist on its full length."""
    mark = reply.headers.get("ETag") or reply.headers.get("Last-Modified") or ""
    if mark and not mark.startswith("W/"):
        _tag(part).write_text(mark)
    else:
        _tag(part).unlink(missing_ok=True)
    length = reply.headers.get("Content-Length") or ""
    total = have + int(length) if length.isdigit() else None
    name = part.name.removesuffix(".part")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with (
        part.open("r+b" if have else "wb") as file,
        Progress(*columns, transient=True, disable=not sys.stderr.isatty()) as progress,
    ):
        bar = progress.add_task(name, total=total, completed=have)
        file.truncate(have)
        file.seek(have)
        while piece := reply.read(CHUNK):
            file.write(piece)
            progress.advance(bar, len(piece))
        done = file.tell()
        file.flush()
        os.fsync(file.fileno())
    if total is not None and done < total:
        raise http.client.IncompleteRead(b"", total - done)


def _why(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended early"
    return str(getattr(error, "reason", None) or error or type(error).__name__)
