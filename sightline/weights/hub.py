"""Repositories of the Hugging Face Hub, downloaded by huggingface_hub into its own cache."""

from pathlib import Path

from sightline.data.errors import UnreachableError
from sightline.weights.report import WeightsError

CONFIGS = ["config.json", "preprocessor_config.json"]


def download_repository(repository: str, revision: str | None = None) -> Path:
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
                break
    except Exception as error:  # the hub raises a dozen types from three libraries
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise UnreachableError(f"The Hugging Face repository {repository} cannot be downloaded ({first}).") from error
    return folder
