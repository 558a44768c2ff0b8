"""Repositories of the Hugging Face Hub, downloaded by huggingface_hub into its own cache."""

import logging
from pathlib import Path

from sightline.data.download import has_checksum
from sightline.data.errors import FetchError, UnreachableError
from sightline.untrusted import printable
from sightline.weights.report import WeightsError

log = logging.getLogger("sightline.weights")
CONFIGS = ["config.json", "preprocessor_config.json"]


def download_repository(repository: str, revision: str | None = None, *, sha256: str | None = None) -> Path:
    """The folder of a repository with its configuration and one file of weights, safetensors where it has that."""
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise WeightsError(
            f"Downloading {repository} from the Hugging Face Hub needs huggingface_hub: pip install 'sightline[hub]'."
        ) from error
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
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise UnreachableError(f"The Hugging Face repository {repository} cannot be downloaded ({first}).") from error
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
