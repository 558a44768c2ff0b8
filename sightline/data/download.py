"""Download one file by HTTP: resumed after an interruption, verified, and never left incomplete."""

import base64
import binascii
import contextlib
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sightline.data.errors import FetchError, UnreachableError
from sightline.files import lock
from sightline.progress import byte_progress

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
DEADLINE = 6 * 3600.0  # seconds for one transfer; the next run resumes it
MAX_BYTES = 16 << 30  # the largest published file here, BiT-M-R152x4, has 4 GB
PAGES = (b"<!doctype html", b"<html", b"<head", b"<?xml")


def download(
    url: str, target: Path, checksum: str = "", *, check: Callable[[Path], object] = lambda path: None
) -> Path:
    """Download `url` to `target`. If it is there already with the right checksum, nothing is transferred.

    `checksum` is "md5:..." or "sha256:...", possibly shortened, or empty where none is published; then the checksum
    that the server sends along is compared, if it sends one. `check` raises ValueError if the file is not what it
    should be. The bytes go to a `.part` file, which a later call resumes and which is renamed once everything is right;
    a wrong one is deleted.
    """
    with lock(target.with_name(f".{target.name}.lock")):
        if target.exists() and has_checksum(target, checksum):  # another process may have been faster
            return target
        part = target.with_name(target.name + ".part")
        resumed = part.exists()
        sent = _receive(url, part, unversioned=bool(checksum))
        if not has_checksum(part, checksum or sent) and resumed:  # perhaps the old part is wrong: start from zero
            part.unlink()
            sent = _receive(url, part, unversioned=False)
        _check(url, part, checksum or sent, check)
        os.replace(part, target)
        _version_file(part).unlink(missing_ok=True)
    return target


def _check(url: str, part: Path, checksum: str, check: Callable[[Path], object]) -> None:
    """Delete what is not the file that was asked for, such as the page of a network that wants a login first."""
    with part.open("rb") as file:
        start = file.read(512).lstrip().lower()
    try:
        if not start:
            raise FetchError(f"{url} is empty.")
        if start.startswith(PAGES):
            raise FetchError(f"{url} answered with a web page instead of the file: does this network want a login?")
        if not has_checksum(part, checksum):
            raise FetchError(f"{url} does not have the checksum {checksum} and was deleted.")
        check(part)
    except ValueError as error:
        part.unlink()
        _version_file(part).unlink(missing_ok=True)
        if isinstance(error, FetchError):
            raise
        raise FetchError(f"{url} is not what it should be and was deleted ({error}).") from error


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


def _receive(url: str, part: Path, *, unversioned: bool) -> str:
    """Append what `part` is missing; returns the checksum that the server gives for the whole, or nothing. If the
    version of `part` is unknown, it is resumed only with `unversioned`, that is where a checksum will tell."""
    if os.environ.get("SIGHTLINE_OFFLINE"):
        raise UnreachableError(f"{url} is not on disk, and SIGHTLINE_OFFLINE forbids downloading it.")
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "sightline"}
    if have and _version_file(part).exists():  # resume only the same version of the file
        headers |= {"Range": f"bytes={have}-", "If-Range": _version_file(part).read_text(encoding="utf-8")}
    elif have and unversioned:
        headers["Range"] = f"bytes={have}-"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as reply:
            if url.startswith("https:") and not reply.url.startswith("https:"):
                raise FetchError(f"{url} leads to {reply.url}, which is not encrypted: refused.")
            _append(reply, part, have if reply.status == http.client.PARTIAL_CONTENT else 0)
            return _server_checksum(reply)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return ""  # the part is complete: its checksum will tell
        raise FetchError(f"{url} answered {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        resume = "; run again to resume" if part.exists() and part.stat().st_size else ""
        raise UnreachableError(f"{url} cannot be reached ({_reason(error)}){resume}.") from error


def _server_checksum(reply: Any) -> str:
    """Google's storage sends the MD5 of a file along: no proof of its origin, but of an unharmed journey."""
    for entry in ",".join(reply.headers.get_all("x-goog-hash") or ()).split(","):
        kind, _, value = entry.strip().partition("=")
        if kind == "md5":
            with contextlib.suppress(binascii.Error):
                return f"md5:{base64.b64decode(value, validate=True).hex()}"
    return ""


def _append(reply: Any, part: Path, have: int) -> None:
    """Append the body of the reply after the first `have` bytes, and check its full length."""
    version = reply.headers.get("ETag") or reply.headers.get("Last-Modified") or ""
    if version and not version.startswith("W/"):  # a weak tag does not promise the same bytes
        _version_file(part).write_text(version, encoding="utf-8")
    else:
        _version_file(part).unlink(missing_ok=True)
    length = reply.headers.get("Content-Length") or ""
    total = have + int(length) if length.isdigit() else None
    if total is not None and total > MAX_BYTES:
        raise FetchError(f"{reply.url} has {total:,} bytes; at most {MAX_BYTES:,} are downloaded.")
    end = time.monotonic() + DEADLINE
    name = part.name.removesuffix(".part")
    with part.open("r+b" if have else "wb") as file, byte_progress(name, total=total, completed=have) as advance:
        file.truncate(have)
        file.seek(have)
        while chunk := reply.read1(CHUNK):  # what has arrived: a slow server is asked for the time, too
            file.write(chunk)
            advance(len(chunk))
            if file.tell() > MAX_BYTES:
                raise FetchError(f"{reply.url} has more than {MAX_BYTES:,} bytes, the most that are downloaded.")
            if time.monotonic() > end:
                raise TimeoutError(f"not complete after {DEADLINE / 3600:.0f} hours")
        size = file.tell()
        file.flush()
        os.fsync(file.fileno())
    if total is not None and size < total:  # read1 ends quietly
        raise http.client.IncompleteRead(b"", total - size)


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended early"
    return str(getattr(error, "reason", None) or error or type(error).__name__)
