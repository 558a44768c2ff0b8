"""The run folder: run.json, log.jsonl, weights and state."""

import logging
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import sightline.weights.saving as weights
from sightline.files import append, atomic, set_aside, sync
from sightline.models.construct import Model
from sightline.spec import Displayable, from_json, to_json
from sightline.training.run.curves import Curves
from sightline.training.run.identity import comparable, find_difference
from sightline.untrusted import read_bytes, read_text
from sightline.weights.loading import load

log = logging.getLogger("sightline.training")
LOG = "log.jsonl"
LAST, BEST, MODEL = "last.safetensors", "best.safetensors", "model.safetensors"


@dataclass(frozen=True)
class Run(Displayable):
    """A run folder. `sl.fit` returns it; `sl.Run("runs/x")` opens an existing one.

    >>> import tempfile
    >>> sl.Run(tempfile.mkdtemp()).about
    Traceback (most recent call last):
        ...
    ValueError: ... contains no run: there is no run.json.
    """

    folder: str | Path

    def __fspath__(self) -> str:
        """A run works wherever its folder does: `sl.load(run)`."""
        return os.fspath(self.folder)

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def state(self) -> Path:
        """The folder with everything needed to resume."""
        return self.path / "state"

    @property
    def about(self) -> dict[str, Any]:
        """run.json: model, recipe, data, seed, versions, preflight, and how it ended."""
        path = self.path / "run.json"
        try:
            about = from_json(read_text(path))
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"{self.folder} contains no run: there is no run.json.") from None
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error!s:.200}).") from error
        match about:
            case {
                "name": str(),
                "seed": int(),
                "data": {"name": str()},
                "plan": {"steps": int(), "batch": int()},
                "identity": {"recipe": dict(), "model": dict(), "data": dict()},
            } if isinstance(about.get("ended", {}), dict):
                return about
        raise ValueError(f"{path} is damaged, or was not written by Sightline: it lacks what every run records.")

    @property
    def finished(self) -> bool:
        """Whether training is complete."""
        return "ended" in self.about

    @property
    def collapsed(self) -> str:
        """When the features of a run without labels have collapsed, in a sentence; empty if they have not."""
        match self.about.get("collapsed"):
            case {"step": int(step), "rank": int() | float() as rank, "of": str(what)}:
                return f"Collapsed: since step {step:,} the {what[:20]} of all images lie in {rank:.1f} dimensions."
        return ""

    @property
    def model(self) -> Model:
        """The trained model, read from model.safetensors."""
        return load(self.path)

    def rows(self) -> list[dict[str, Any]]:
        """The log, one dict per line; an incomplete last line is left out."""
        rows, damaged = self._read_log()
        if damaged:
            raise ValueError(
                f"{self.path / LOG} is damaged in line {damaged[0]}: resuming the run sets it aside and keeps the rest."
            )
        return rows

    def _read_log(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The sound rows, and the numbers of the damaged lines."""
        try:
            lines = read_bytes(self.path / LOG).split(b"\n")  # one that is no UTF-8 is damaged, the others are not
        except FileNotFoundError:
            return [], []
        *whole, _ = lines  # what follows the last line break was never completed
        rows = [_row(line) for line in whole]
        return [r for r in rows if r is not None], [i + 1 for i, r in enumerate(rows) if r is None]

    def curves(self) -> Curves:
        """Everything that was logged, as a result."""
        rows = [row for row in self.rows() if "step" in row]
        names = tuple(dict.fromkeys(k for row in rows for k in row if k != "step" and _is_number(row[k])))
        values = [[float(row[n]) if _is_number(row.get(n)) else math.nan for n in names] for row in rows]
        about = self.about
        return Curves(
            title=f"Training on {about['data']['name']}",
            caption=f"{about['name']}: {about['plan']['steps']:,} steps of {about['plan']['batch']} images. "
            f"{self.collapsed}".strip(),
            how={"seed": about["seed"], "data": about["data"], "recipe": about["identity"]["recipe"]},
            step=np.array([row["step"] for row in rows], dtype=np.int64),
            names=names,
            values=np.array(values, dtype=np.float64).reshape(len(rows), len(names)),
        )

    def summary(self) -> dict[str, float]:
        """The last values, and the best validation accuracy; without labels, the best loss or accuracy of neighbors."""
        ended = self.about.get("ended")
        best = ended.get("best") if isinstance(ended, dict) else None
        score: Any = best.get("score") if isinstance(best, dict) else None
        last = self.curves().summary()
        by_loss = "val/loss" in last and "val/accuracy" not in last
        return {**last, **({"best": -score if by_loss else score} if _is_number(score) else {})}

    # called by the training loop

    def check_identity(self, identity: Mapping[str, Any]) -> None:
        """Refuse a folder that contains anything but this run, or that cannot be written."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.folder} is a file: give a folder as --out. Nothing was changed.")
        existing = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise ValueError(f"{self.folder} cannot be written, because of {existing}: give another --out.")
        if (self.path / "run.json").exists():
            there = self.about["identity"]
            if there.get("version") != identity["version"]:
                log.warning(
                    "%s was recorded by an earlier Sightline: whether data and starting weights are still the same "
                    "cannot be compared.",
                    self.path / "run.json",
                )
            if different := find_difference(there, comparable(there, identity)):
                raise ValueError(
                    f"{self.folder} contains another run ({different}): give another --out, or the same settings."
                )
        elif self.path.is_dir() and (other := sorted(p.name for p in self.path.iterdir() if p.name[0] != ".")):
            raise ValueError(f"{self.folder} contains no run but {other[0]}: give another --out. Nothing was changed.")

    def write_record(self, about: Mapping[str, Any]) -> None:
        with atomic(self.path / "run.json") as partial:
            partial.write_text(to_json(about, indent=1) + "\n", encoding="utf-8")

    def truncate_log(self, step: int) -> None:
        """Drop what was logged after this step: it will be repeated."""
        rows, damaged = self._read_log()
        if damaged:
            aside = set_aside(self.path / LOG).name
            log.warning("%s is damaged in line %d: it is set aside as %s.", self.path / LOG, damaged[0], aside)
        with atomic(self.path / LOG) as partial:
            partial.write_text(
                "".join(to_json(row) + "\n" for row in rows if row.get("step", 0) <= step), encoding="utf-8"
            )

    def log(self, row: Mapping[str, Any]) -> None:
        append(self.path / LOG, to_json({k: _to_json_value(v) for k, v in row.items()}) + "\n")

    def sync_log(self) -> None:
        """Before a state is saved: after a power failure, the log must reach as far as the state."""
        if (self.path / LOG).exists():
            sync(self.path / LOG)

    def save_weights(self, model: Model, name: str, *, probes: bool = False) -> None:
        """Write the model under one of the folder's names."""
        weights.save(model, self.path / name, probes=probes)

    def link_model(self, name: str) -> None:
        """Make model.safetensors this file: a hard link, or a copy where the disk has no links."""
        with atomic(self.path / MODEL) as partial:
            partial.unlink()
            try:
                os.link(self.path / name, partial)
            except OSError:
                shutil.copyfile(self.path / name, partial)


def _row(line: bytes) -> dict[str, Any] | None:
    """A line of the log; None if it is damaged."""
    try:
        row = from_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or type(row.get("step", 0)) is not int:
        return None
    # no step and no value that was logged is an integer beyond 64 bits
    return None if any(isinstance(v, int) and v.bit_length() > 63 for v in row.values()) else row


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return value
