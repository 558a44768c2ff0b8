"""Fetch a file once: resumable, verified, atomic, and safe for two processes that want the same file."""

import contextlib
import hashlib
import json
import logging
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

from sightline.weights.report import WeightsError, atomic

log = logging.getLogger("sightline")
CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte


class OfflineError(WeightsError):
    """The file is not here and cannot be fetched now."""


def cache() -> Path:
    """Where downloads live: $SIGHTLINE_CACHE, or `sightline` in the user's cache folder."""
    if given := os.environ.get("SIGHTLINE_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sightline"


def fetch(url: str, target: Path, *, sha256: str | None = None) -> Path:
    """The file at `url`, in the cache as `target`. A part left by an earlier try is continued, not fetched again.

    `sha256` may be the beginning of the checksum, as file names of torch's hub carry it.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target):
        if target.exists():  # another process was faster
            return target
        part = target.with_name(target.name + ".part")
        _receive(url, part)
        _verify(part, sha256, url)
        os.replace(part, target)
        part.with_suffix(".tag").unlink(missing_ok=True)
    return target


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """One process at a time per file; the lock is freed by the system even when its owner dies."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: both fetch, and the last one wins with the same bytes
        yield
        return
    with target.with_name(target.name + ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _receive(url: str, part: Path) -> None:
    """Append to the part what is missing of it."""
    if os.environ.get("SIGHTLINE_OFFLINE"):
        raise OfflineError(f"{url} is not in the cache, and SIGHTLINE_OFFLINE forbids to fetch it.")
    tag = part.with_suffix(".tag")
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "sightline"}
    if have and tag.exists():  # If-Range: continue only the very same file
        headers |= {"Range": f"bytes={have}-", "If-Range": tag.read_text()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
            _append(answer, part, tag, have if answer.status == 206 else 0)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is no beginning of that file
            part.unlink(missing_ok=True)
        raise WeightsError(f"{url} answered {error.code} {error.reason}.") from error
    except (OSError, HTTPException) as error:
        got = part.stat().st_size if part.exists() else 0
        kept = f" {got} bytes are kept; the next try continues there." if got else ""
        raise OfflineError(f"{urllib.parse.urlsplit(url).netloc or url} cannot be reached ({error}).{kept}") from error


def _append(answer: Any, part: Path, tag: Path, have: int) -> None:
    """Write the answer's body behind the first `have` bytes, and insist on its full length."""
    mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    if mark and not mark.startswith("W/"):
        tag.write_text(mark)
    else:
        tag.unlink(missing_ok=True)
    length = answer.headers.get("Content-Length")
    total = have + int(length) if length and length.isdigit() else None
    if total:
        log.warning("Fetching %s (%.0f MiB)%s", answer.url, total / 2**20, f", from byte {have}" if have else "")
    with part.open("r+b" if have else "wb") as file:
        file.truncate(have)
        file.seek(have)
        while chunk := answer.read(CHUNK):
            file.write(chunk)
        done = file.tell()
        file.flush()
        os.fsync(file.fileno())
    if total is not None and done < total:
        raise ConnectionError(f"the connection broke after {done} of {total} bytes")


def _verify(part: Path, sha256: str | None, url: str) -> None:
    if sha256 is None:
        return
    digest = hashlib.sha256()
    with part.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    if not digest.hexdigest().startswith(sha256.lower()):
        part.unlink()
        raise WeightsError(
            f"{url} came with checksum {digest.hexdigest()[:16]}..., expected {sha256[:16]}...: removed."
        )


def fetch_hub(repo: str, revision: str | None) -> Path:
    """The folder of a Hugging Face repository, through huggingface_hub's own cache."""
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise WeightsError(
            f"Fetching {repo} from the Hugging Face Hub needs huggingface_hub: pip install 'sightline[hub]'."
        ) from error
    wanted = ["config.json", "preprocessor_config.json", "model.safetensors"]
    try:
        folder = hub.snapshot_download(repo, revision=revision, allow_patterns=wanted)
        if not (Path(folder) / "model.safetensors").exists():
            folder = hub.snapshot_download(repo, revision=revision, allow_patterns=[*wanted[:2], "pytorch_model.bin"])
    except Exception as error:  # the hub raises a dozen types from three libraries
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise OfflineError(f"The Hugging Face repository {repo} cannot be fetched ({first}).") from error
    return Path(folder)


def remember(path: Path, entries: dict[str, Any]) -> None:
    """Write the user's own zoo."""
    with atomic(path) as partial:
        partial.write_text(json.dumps(entries, indent=1))


def recall(path: Path) -> dict[str, Any]:
    """Read it; none is an empty one."""
    if not path.exists():
        return {}
    with contextlib.suppress(ValueError, OSError):
        held = json.loads(path.read_text())
        if isinstance(held, dict):
            return held
    raise WeightsError(f"{path} is damaged: mend or remove it.")
