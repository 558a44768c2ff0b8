"""What the folder of a run says of weights that were loaded from it: whose they are, and how sure they may sound."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from sightline import fingerprints
from sightline.untrusted import read_json

COLDEST, HOTTEST = 0.2, 20.0  # temperatures


def find_run(model: Any) -> Path | None:
    """The run folder that the model was loaded from, if its weights are still those of the run."""
    loaded: Any = getattr(model, "loaded", None)
    if loaded is None:
        return None
    source = Path(loaded.source)
    folder = next((p for p in (source, source.parent) if (p / "run.json").is_file()), None)
    ended = read_record(folder).get("ended")
    weights = ended.get("weights") if isinstance(ended, Mapping) else None
    return folder if weights is not None and weights == fingerprints.of_tensors(model.state_dict()) else None


def read_record(run: Path | None) -> Mapping[str, Any]:
    """The contents of run.json; nothing for no folder."""
    if run is None:
        return {}
    held = read_json(run / "run.json")
    return held if isinstance(held, Mapping) else {}


def run_temperature(source: Any) -> float:
    """What a run's logits are divided by, as its run.json says; 1 for everything else. A run is given as such, by its
    folder or its model.safetensors, or as the model that was loaded from it."""
    if isinstance(source, nn.Module):
        source = find_run(source) or ""
    elif not isinstance(source, str | os.PathLike):
        source = getattr(source, "path", "")  # of a run
    folder = Path(source)
    home = folder if folder.is_dir() else folder.parent
    if not os.fspath(source) or not (home / "run.json").is_file():
        return 1.0
    if folder.is_file() and folder.name != "model.safetensors":
        return 1.0
    ended = read_record(home).get("ended")
    found = ended.get("temperature") if isinstance(ended, Mapping) else None
    return float(found) if isinstance(found, int | float) and COLDEST <= found <= HOTTEST else 1.0
