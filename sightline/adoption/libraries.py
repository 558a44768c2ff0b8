"""Models of other libraries by name: `timm:NAME`, `hf:NAME_OR_FOLDER`, `torchvision:NAME[:WEIGHTS]`."""

import difflib
import importlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from torch import nn

from sightline.adoption.wrapper import AdoptionError

FAILED = "{} cannot be loaded by {}: {}. Without a network its weights must be in the cache of {}."

TORCHVISION_HOST = "download.pytorch.org"  # where the addresses of its weights point to


def from_library(name: str) -> nn.Module | None:
    """The live module that LIBRARY:NAME stands for, with its trained weights; None if the name has no such form.

    Weights come from the library's own cache, or are downloaded by it.

    >>> sl.adoption.from_library("vit-b16") is None
    True
    """
    library, colon, rest = name.partition(":")
    if not colon or library not in LIBRARIES:
        return None
    if not rest:
        raise AdoptionError(f"{name} names no model; expected {USAGE[library]}.")
    return LIBRARIES[library](rest)


def _timm(name: str) -> nn.Module:
    timm = _import("timm")
    if name.split(".")[0] not in timm.list_models():
        raise _unknown("timm", name, timm.list_models() + timm.list_pretrained())
    if not timm.is_model_pretrained(name):
        raise AdoptionError(
            f"timm has no trained weights for {name}. For random ones, write a function that returns "
            f"timm.create_model({name!r}), and give FILE.py:FUNCTION."
        )
    return _load("timm", name, lambda: timm.create_model(name, pretrained=True))


def _torchvision(name: str) -> nn.Module:
    models = _import("torchvision.models")
    name, _, weights = name.partition(":")
    if name not in models.list_models():
        raise _unknown("torchvision", name, models.list_models())
    known = [w.name for w in models.get_model_weights(name)]
    if weights and weights != "DEFAULT" and weights not in known:
        raise AdoptionError(f"torchvision has no weights {weights} for {name}; expected one of {', '.join(known)}.")
    return _load("torchvision", name, lambda: models.get_model(name, weights=weights or "DEFAULT"))


def _transformers(name: str) -> nn.Module:
    """With its classifier if it was trained with one, else the bare encoder. Code in a repository is never run."""
    transformers = _import("transformers")
    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise AdoptionError(f"There is no folder {name}; expected hf:NAME of the hub or hf:FOLDER.")
    place = str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name
    config = _load(
        "transformers", name, lambda: transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
    )
    classifies = any("Classification" in architecture for architecture in config.architectures or ())
    kind = transformers.AutoModelForImageClassification if classifies else transformers.AutoModel
    return _load("transformers", name, lambda: kind.from_pretrained(place, trust_remote_code=False))


LIBRARIES: dict[str, Callable[[str], nn.Module]] = {"timm": _timm, "torchvision": _torchvision, "hf": _transformers}
USAGE = {
    "timm": "timm:NAME, such as timm:resnet50.a1_in1k",
    "torchvision": "torchvision:NAME or torchvision:NAME:WEIGHTS, such as torchvision:resnet50:IMAGENET1K_V2",
    "hf": "hf:NAME_OR_FOLDER, such as hf:facebook/dinov2-base",
}


def _import(module: str) -> ModuleType:
    library = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise AdoptionError(f"{library} is not installed; type pip install {library}.") from error
    except RuntimeError as error:  # compiled for another build of torch
        raise AdoptionError(
            f"{library} is installed but does not load beside this build of torch ({error}): install torch and "
            "torchvision of the same build."
        ) from error


def _load(library: str, name: str, load: Callable[[], Any]) -> Any:
    """Load through the library; if it fails, one sentence in place of its traceback."""
    with _without_retries(TORCHVISION_HOST if library == "torchvision" else "") as unreachable:
        try:
            return load()
        except (OSError, RuntimeError, ValueError) as error:  # each library has its own way to say that it is offline
            said = f"{unreachable} cannot be reached" if unreachable else str(error)
            reason = " ".join(said.split()).rstrip(".")[:200]
            raise AdoptionError(FAILED.format(name, library, reason, library)) from error


@contextmanager
def _without_retries(host: str = "") -> Iterator[str]:
    """Where the name of the hub's server (or `host`) is not known, its library looks into its cache only, in place of
    half a minute of attempts; gives the name of that server, else nothing."""
    try:
        from huggingface_hub import constants
    except ImportError:
        yield ""
        return
    host = host or urlsplit(constants.ENDPOINT).hostname or ""
    before = constants.HF_HUB_OFFLINE
    unreachable = not before and not _known(host)
    constants.HF_HUB_OFFLINE = before or unreachable
    try:
        yield host if unreachable else ""
    finally:
        constants.HF_HUB_OFFLINE = before


def _known(host: str) -> bool:
    """Whether this machine, or a proxy for it, knows the address of a server."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False


def _unknown(library: str, name: str, names: list[str]) -> AdoptionError:
    near = "".join(f" Did you mean {match}?" for match in difflib.get_close_matches(name, names, 1))
    return AdoptionError(f"{library} has no model {name}.{near} Expected {USAGE[library]}.")
