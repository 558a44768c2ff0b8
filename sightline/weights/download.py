"""Where weights are kept, and how they come there: from an address or from the Hugging Face Hub."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from sightline.data.download import download
from sightline.data.errors import FetchError, UnreachableError
from sightline.spec import atomic
from sightline.weights.report import WeightsError


class OfflineError(WeightsError):
    """The file is not here and cannot be fetched now."""


def cache() -> Path:
    """Where downloads live: $SIGHTLINE_CACHE, or `sightline` in the user's cache folder."""
    if given := os.environ.get("SIGHTLINE_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sightline"


def fetch(url: str, target: Path, *, sha256: str | None = None) -> Path:
    """The file at `url`, in the cache as `target`; one that is there was checked when it came.

    `sha256` may be the beginning of the checksum, as file names of torch's hub carry it.
    """
    if target.exists():
        return target
    try:
        return download(url, target, f"sha256:{sha256}" if sha256 else "")
    except UnreachableError as error:
        raise OfflineError(str(error)) from error
    except FetchError as error:
        raise WeightsError(str(error)) from error


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
