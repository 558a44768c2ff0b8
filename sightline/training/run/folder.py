"""The run folder: run.json, log.jsonl, weights and state."""

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import sightline.weights.saving as weights
from sightline.files import atomic
from sightline.models.construct import Model
from sightline.spec import from_json, to_json
from sightline.training.run.curves import Curves
from sightline.training.run.identity import find_difference
from sightline.training.system import try_lock
from sightline.weights.loading import load

LAST, BEST, MODEL = "last.safetensors", "best.safetensors", "model.safetensors"


@dataclass(frozen=True)
class Run:
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
        try:
            about = from_json((self.path / "run.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"{self.folder} contains no run: there is no run.json.") from None
        except ValueError as error:
            raise ValueError(f"{self.path / 'run.json'} is damaged ({error}).") from error
        if not isinstance(about, dict) or not all(isinstance(about.get(k), dict) for k in ("identity", "plan", "data")):
            raise ValueError(f"{self.path / 'run.json'} was not written by Sightline.")
        return about

    @property
    def finished(self) -> bool:
        """Whether training is complete."""
        return "ended" in self.about

    @property
    def model(self) -> Model:
        """The trained model, read from model.safetensors."""
        return load(self.path)

    def rows(self) -> list[dict[str, Any]]:
        """The log, one dict per line; an incomplete last line is left out."""
        try:
            lines = (self.path / "log.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path / 'log.jsonl'} is damaged ({error}): remove it to resume.") from error
        rows = []
        for line in lines:
            try:
                rows.append(from_json(line))
            except ValueError:
                break
        return rows

    def curves(self) -> Curves:
        """Everything that was logged, as a result."""
        rows = [row for row in self.rows() if "step" in row]
        names = tuple(dict.fromkeys(k for row in rows for k in row if k != "step" and _is_number(row[k])))
        values = [[float(row[n]) if _is_number(row.get(n)) else math.nan for n in names] for row in rows]
        about = self.about
        return Curves(
            title=f"Training on {about['data']['name']}",
            caption=f"{about['name']}: {about['plan']['steps']:,} steps of {about['plan']['batch']} images.",
            how={"seed": about["seed"], "data": about["data"], "recipe": about["identity"]["recipe"]},
            step=np.array([row["step"] for row in rows], dtype=np.int64),
            names=names,
            values=np.array(values, dtype=np.float64).reshape(len(rows), len(names)),
        )

    def summary(self) -> dict[str, float]:
        """The last values, and the best validation accuracy, or loss where there are no labels."""
        best = self.about.get("ended", {}).get("best")
        last = self.curves().summary()
        return {**last, **({"best": best["score"] if "val/accuracy" in last else -best["score"]} if best else {})}

    # called by the training loop

    def check_identity(self, identity: Mapping[str, Any]) -> None:
        """Refuse a folder that contains anything but this run, or that cannot be written."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.folder} is a file: give a folder as --out. Nothing was changed.")
        existing = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise ValueError(f"{self.folder} cannot be written, because of {existing}: give another --out.")
        if (self.path / "run.json").exists():
            if different := find_difference(self.about["identity"], identity):
                raise ValueError(
                    f"{self.folder} contains another run ({different}): give another --out, or the same settings."
                )
        elif self.path.is_dir() and (other := sorted(p.name for p in self.path.iterdir() if p.name[0] != ".")):
            raise ValueError(f"{self.folder} contains no run but {other[0]}: give another --out. Nothing was changed.")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Refuse a second process that wants to write here. The lock ends with its process, however that ends, and is
        not inherited by the processes that load images."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = self.path / ".lock"
        with lock.open("a") as file:  # "w" would empty whatever a link of this name points to
            if not try_lock(file):
                raise ValueError(f"Another process is training in {self.folder}: let it end, or give another --out.")
            try:
                yield
            finally:
                if [*self.path.iterdir()] == [lock]:  # refused before the first step: leave nothing behind
                    lock.unlink()
                    self.path.rmdir()

    def write_record(self, about: Mapping[str, Any]) -> None:
        with atomic(self.path / "run.json") as partial:
            partial.write_text(to_json(about, indent=1) + "\n")

    def truncate_log(self, step: int) -> None:
        """Drop what was logged after this step: it will be repeated."""
        rows = [row for row in self.rows() if row.get("step", 0) <= step]
        with atomic(self.path / "log.jsonl") as partial:
            partial.write_text("".join(to_json(row) + "\n" for row in rows))

    def log(self, row: Mapping[str, Any]) -> None:
        with (self.path / "log.jsonl").open("a") as file:
            file.write(to_json({k: _to_json_value(v) for k, v in row.items()}) + "\n")

    def save_weights(self, model: Model, name: str, *, probes: bool = False) -> None:
        """Write the model under one of the folder's names."""
        weights.save(model, self.path / name, probes=probes)

    def link_model(self, name: str) -> None:
        """Make model.safetensors this file: a hard link, or a copy where the disk has no links."""
        target = self.path / f".{MODEL}.new"
        target.unlink(missing_ok=True)
        try:
            os.link(self.path / name, target)
        except OSError:
            shutil.copyfile(self.path / name, target)
        os.replace(target, self.path / MODEL)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return value
