"""Repositories of the Hugging Face Hub: downloaded into the cache of huggingface_hub, and uploaded by it."""

import logging
import os
from pathlib import Path
from typing import Any

from sightline.data.download import has_checksum
from sightline.data.errors import FetchError, UnreachableError
from sightline.untrusted import printable
from sightline.weights.report import WeightsError

log = logging.getLogger("sightline.weights")
CONFIGS = ["config.json", "preprocessor_config.json"]
UPLOADED = ["model.safetensors", "README.md"]


def download_repository(repository: str, revision: str | None = None, *, sha256: str | None = None) -> Path:
    """The folder of a repository with its configuration and one file of weights, safetensors where it has that."""
    hub = _library(f"Downloading {repository} from")
    folder = Path()
    try:
        for weights in ("model.safetensors", "pytorch_model.bin"):
            folder = Path(hub.snapshot_download(repository, revision=revision, allow_patterns=[*CONFIGS, weights]))
            if (folder / weights).exists():
                _check(folder / weights, repository, sha256)
                break
    except FetchError:
        raise
    except Exception as error:  # the hub raises a dozen types from three libraries
        why = _first_line(error)
        raise UnreachableError(f"The Hugging Face repository {repository} cannot be downloaded ({why}).") from error
    if revision is None:
        log.warning(
            "%s is taken as its owner offers it today, for no revision of it is on record: hf:%s@%s names these files.",
            *(repository, repository, printable(folder.name)),
        )
    return folder


def _check(weights: Path, repository: str, sha256: str | None) -> None:
    """Compare the checksum on record. The hub's cache consists of links: their target, the bytes, is deleted, too."""
    if sha256 and not has_checksum(weights, f"sha256:{sha256}"):
        weights.resolve().unlink()
        weights.unlink(missing_ok=True)
        raise FetchError(f"{weights.name} of {repository} does not have the checksum {sha256} and was deleted.")


def push(folder: str | os.PathLike[str], repository: str, *, private: bool = True) -> str:
    """Upload a folder that `sl.save(..., to="hf")` wrote to the Hugging Face Hub; returns its address.

    The repository is created if there is none, for you alone unless `private=False`. You are who `hf auth login` or
    the environment variable HF_TOKEN says. Only weights, configuration and model card are uploaded.

    >>> sl.weights.push("nowhere", "me/model")
    Traceback (most recent call last):
        ...
    sightline.weights.report.WeightsError: nowhere has no config.json: write it with sl.save(model, 'nowhere', to='hf').
    """
    path = Path(folder)
    if not (path / CONFIGS[0]).is_file():
        raise WeightsError(f"{path} has no {CONFIGS[0]}: write it with sl.save(model, {str(path)!r}, to='hf').")
    api = _library(f"Uploading {path} to").HfApi()
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=path, allow_patterns=[*CONFIGS, *UPLOADED])
    except Exception as error:  # the hub raises a dozen types from three libraries
        raise UnreachableError(
            f"{path} was not uploaded to {repository} ({_first_line(error)}). The folder is complete: "
            f"try again once the network and your login (hf auth login) work."
        ) from error
    return str(address)


def _library(what: str) -> Any:
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise WeightsError(
            f"{what} the Hugging Face Hub needs huggingface_hub: pip install 'sightline[hub]'."
        ) from error
    return hub


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
