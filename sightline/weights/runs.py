"""What the folder of a run says of weights that were loaded from it: whose they are, how sure they may sound, whether
their training collapsed, and whether it had labels."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from sightline import fingerprints
from sightline.untrusted import read_json

COLDEST, HOTTEST = 0.2, 20.0  # temperatures
UNLABELED = ("masked", "mae", "lejepa")  # tasks that leave the head of a model as it was


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
    ended = _record_beside(source).get("ended")
    found = ended.get("temperature") if isinstance(ended, Mapping) else None
    return float(found) if isinstance(found, int | float) and COLDEST <= found <= HOTTEST else 1.0


def untrained_head(model: Any) -> str:
    """The run that a model was loaded from and its task, if that learned without labels and the head is all zeros."""
    source, head = str(getattr(getattr(model, "loaded", None), "source", "")), getattr(model, "head", None)
    if not isinstance(head, nn.Linear) or head.weight.any():
        return ""
    match _record_beside(source):
        case {"identity": {"recipe": {"task": str(task)}}} if task in UNLABELED:
            return f"{source} ({task})"
    return ""


def collapse_warnings(source: str) -> tuple[str, ...]:
    """A sentence if the weights are those of a run without labels that has collapsed."""
    try:
        record = _record_beside(source)
    except (OSError, ValueError):  # weights can be read without their record
        return ()
    match record.get("collapsed"):
        case {"step": int(step), "of": str(what)}:
            said = f"since step {step:,} the {what[:20]} of all images were alike"
            return (f"Its training without labels has collapsed ({said}): expect little from these weights.",)
    return ()


def _record_beside(source: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The record of the run whose folder or model.safetensors this is; nothing for anything else."""
    folder = Path(source)
    home = folder if folder.is_dir() else folder.parent
    if not os.fspath(source) or not (home / "run.json").is_file():
        return {}
    return read_record(home) if folder.is_dir() or folder.name == "model.safetensors" else {}
