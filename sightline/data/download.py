"""Download one file by HTTP: resumed after an interruption, verified, and never left incomplete."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from sightline.data.errors import FetchError, UnreachableError
from sightline.files import lock
from sightline.progress import byte_progress

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte


def download(url: str, target: Path, checksum: str = "") -> Path:
    """Download `url` to `target`. If it is there already with the right checksum, nothing is transferred.

    `checksum` is "md5:..." or "sha256:...", possibly shortened, or empty where none is published. The bytes go to a
    `.part` file, which a later call resumes and which is renamed once its checksum is right.
    """
    with lock(target.with_name(f".{target.name}.lock")):
        if target.exists() and has_checksum(target, checksum):  # another process may have been faster
            return target
        part = target.with_name(target.name + ".part")
        resumed = part.exists()
        _receive(url, part, unversioned=bool(checksum))
        if not has_checksum(part, checksum) and resumed:  # perhaps the old part is wrong: start from zero
            part.unlink()
            _receive(url, part, unversioned=False)
        if not has_checksum(part, checksum):
            part.unlink()
            raise FetchError(f"{url} does not have the checksum {checksum} and was deleted.")
        os.replace(part, target)
        _version_file(part).unlink(missing_ok=True)
    return target


def digest(path: Path, kind: str) -> str:
    """The checksum of a file ("md5" or "sha256"), read in chunks."""
    checksum = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            checksum.update(chunk)
    return checksum.hexdigest()


def has_checksum(path: Path, checksum: str) -> bool:
    """Whether a file has this checksum; an empty checksum matches every file."""
    kind, _, expected = checksum.partition(":")
    return not checksum or digest(path, kind).startswith(expected.lower())


def _version_file(part: Path) -> Path:
    """The file that stores the server's version tag (ETag) of a partial file."""
    return part.with_name(part.name + ".tag")


def _receive(url: str, part: Path, *, unversioned: bool) -> None:
    """Append what `part` is missing. If its version is unknown, it is resumed only with `unversioned`, that is where a
    checksum will tell."""
    if os.environ.get("SIGHTLINE_OFFLINE"):
        raise UnreachableError(f"{url} is not on disk, and SIGHTLINE_OFFLINE forbids downloading it.")
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "sightline"}
    if have and _version_file(part).exists():  # resume only the same version of the file
        headers |= {"Range": f"bytes={have}-", "If-Range": _version_file(part).read_text()}
    elif have and unversioned:
        headers["Range"] = f"bytes={have}-"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as reply:
            _append(reply, part, have if reply.status == http.client.PARTIAL_CONTENT else 0)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return  # the part is complete: its checksum will tell
        raise FetchError(f"{url} answered {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        resume = "; run again to resume" if part.exists() and part.stat().st_size else ""
        raise UnreachableError(f"{url} cannot be reached ({_reason(error)}){resume}.") from error


def _append(reply: Any, part: Path, have: int) -> None:
    """Append the body of the reply after the first `have` bytes, and check its full length."""
    version = reply.headers.get("ETag") or reply.headers.get("Last-Modified") or ""
    if version and not version.startswith("W/"):  # a weak tag does not promise the same bytes
        _version_file(part).write_text(version)
    else:
        _version_file(part).unlink(missing_ok=True)
    length = reply.headers.get("Content-Length") or ""
    total = have + int(length) if length.isdigit() else None
    name = part.name.removesuffix(".part")
    with part.open("r+b" if have else "wb") as file, byte_progress(name, total=total, completed=have) as advance:
        file.truncate(have)
        file.seek(have)
        while chunk := reply.read(CHUNK):
            file.write(chunk)
            advance(len(chunk))
        size = file.tell()
        file.flush()
        os.fsync(file.fileno())
    if total is not None and size < total:
        raise http.client.IncompleteRead(b"", total - size)


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended early"
    return str(getattr(error, "reason", None) or error or type(error).__name__)
