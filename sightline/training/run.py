"""The run folder: what ran (run.json), what happened (log.jsonl), what came out (weights), how to go on (state/)."""

import errno
import hashlib
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import sightline.weights.saving as weights
from sightline.data.datasets import Dataset
from sightline.models.construct import Model
from sightline.spec import Result, atomic, from_json, to_json
from sightline.training.recipe import Recipe
from sightline.weights.containers.safetensors import bytes_of
from sightline.weights.loading import load

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

MAY_CHANGE = ("log_every", "save_every", "tensorboard", "micro", "name")  # of a recipe, between two starts of one run
LAST, BEST, MODEL = "last.safetensors", "best.safetensors", "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Curves(Result):
    """What a run logged, by step: one row per line of its log, NaN where a line does not say.

    >>> import numpy as np
    >>> values = np.array([[2.0], [1.0]])
    >>> c = sl.training.Curves(title="", caption="", step=np.array([1, 2]), names=("train/loss",), values=values)
    >>> c.of("train/loss")
    (array([1, 2]), array([2., 1.]))
    """

    step: NDArray[np.int64]  # (n,)
    names: tuple[str, ...]
    values: NDArray[np.float64]  # (n, names)

    def of(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and values of one series, where it has any."""
        column = self.values[:, self.names.index(name)]
        there = np.isfinite(column)
        return self.step[there], column[there]

    def summary(self) -> dict[str, float]:
        """The last value of each series."""
        return {name: float(values[-1]) for name in self.names if len(values := self.of(name)[1])}


@dataclass(frozen=True)
class Run:
    """A run folder. `sl.fit` returns it; `sl.Run("runs/x")` opens one that is there.

    >>> import tempfile
    >>> sl.Run(tempfile.mkdtemp()).about
    Traceback (most recent call last):
        ...
    ValueError: ... holds no run: there is no run.json.
    """

    folder: str | Path

    def __fspath__(self) -> str:
        """A run can be given wherever its folder can: `sl.load(run)`."""
        return os.fspath(self.folder)

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def state(self) -> Path:
        """The folder of what is needed to go on."""
        return self.path / "state"

    @property
    def about(self) -> dict[str, Any]:
        """run.json: model, recipe, data, seed, versions, preflight, and how it ended."""
        try:
            about = from_json((self.path / "run.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"{self.folder} holds no run: there is no run.json.") from None
        except ValueError as error:
            raise ValueError(f"{self.path / 'run.json'} is damaged ({error}).") from error
        if not isinstance(about, dict) or not all(isinstance(about.get(k), dict) for k in ("identity", "plan", "data")):
            raise ValueError(f"{self.path / 'run.json'} was not written by Sightline.")
        return about

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return "ended" in self.about

    @property
    def model(self) -> Model:
        """What came out, read from model.safetensors."""
        return load(self.path)

    def rows(self) -> list[dict[str, Any]]:
        """The log, one dict a line; a last line that was cut off is left out."""
        try:
            lines = (self.path / "log.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path / 'log.jsonl'} is damaged ({error}): remove it to go on.") from error
        found = []
        for line in lines:
            try:
                found.append(from_json(line))
            except ValueError:
                break
        return found

    def curves(self) -> Curves:
        """Everything that was logged, as a Result."""
        rows = [row for row in self.rows() if "step" in row]
        names = tuple(dict.fromkeys(k for row in rows for k in row if k != "step" and _number(row[k])))
        values = [[float(row[n]) if _number(row.get(n)) else math.nan for n in names] for row in rows]
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
        """The last values, and the best of the validation: its accuracy, or its loss where there are no labels."""
        best = self.about.get("ended", {}).get("best")
        last = self.curves().summary()
        return {**last, **({"best": best["score"] if "val/accuracy" in last else -best["score"]} if best else {})}

    # what the loop writes

    def check(self, identity: Mapping[str, Any]) -> None:
        """Refuse a folder that holds something else than this very run, or that cannot be made."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.folder} is a file: give a folder as --out, nothing was touched.")
        there = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ValueError(f"{self.folder} cannot be written, because of {there}: give another --out.")
        if (self.path / "run.json").exists():
            if different := difference(self.about["identity"], identity):
                raise ValueError(
                    f"{self.folder} holds another run ({different}): give another --out, or the same settings."
                )
        elif self.path.is_dir() and (strange := sorted(p.name for p in self.path.iterdir() if p.name[0] != ".")):
            raise ValueError(f"{self.folder} holds no run but {strange[0]}: give another --out, nothing was touched.")

    @contextmanager
    def held(self) -> Iterator[None]:
        """One process at a time writes here, a second one is refused. The lock ends with its process, however it ends,
        and is not handed on to the processes that load images."""
        if fcntl is None:  # Windows
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        lock = self.path / ".lock"
        with lock.open("a") as file:  # "w" would empty whatever a link of this name points to
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):  # otherwise: a disk that knows no locks
                    raise ValueError(
                        f"Another process is training in {self.folder}: let it end, or give another --out."
                    ) from None
            try:
                yield
            finally:
                if [*self.path.iterdir()] == [lock]:  # refused before it began: nothing is left
                    lock.unlink()
                    self.path.rmdir()

    def write(self, about: Mapping[str, Any]) -> None:
        with atomic(self.path / "run.json") as partial:
            partial.write_text(to_json(about, indent=1) + "\n")

    def cut(self, step: int) -> None:
        """Forget what was logged behind this step: it will be done again."""
        rows = [row for row in self.rows() if row.get("step", 0) <= step]
        with atomic(self.path / "log.jsonl") as partial:
            partial.write_text("".join(to_json(row) + "\n" for row in rows))

    def log(self, row: Mapping[str, Any]) -> None:
        with (self.path / "log.jsonl").open("a") as file:
            file.write(to_json({k: _plain(v) for k, v in row.items()}) + "\n")

    def keep(self, model: Model, name: str, *, probes: bool = False) -> None:
        """Weights under one of the folder's names; model.safetensors is always the last or the best of them."""
        weights.save(model, self.path / name, probes=probes)

    def point(self, name: str) -> None:
        """model.safetensors becomes this file: the same bytes, not a second copy where the disk can do that."""
        target = self.path / f".{MODEL}.new"
        target.unlink(missing_ok=True)
        try:
            os.link(self.path / name, target)
        except OSError:
            shutil.copyfile(self.path / name, target)
        os.replace(target, self.path / MODEL)


def difference(there: Mapping[str, Any], here: Mapping[str, Any], at: str = "") -> str:
    """The first thing in which two records differ, in words; empty where they do not."""
    for key in dict.fromkeys((*there, *here)):
        a, b = there.get(key), here.get(key)
        name = f"{at}{key}"
        if isinstance(a, dict) and isinstance(b, dict):
            if found := difference(a, b, f"{name}."):
                return found
        elif a != b and not (at == "recipe." and key in MAY_CHANGE):
            return f"{name} is {a} there, {b} here"
    return ""


def identity(model: Model, train: Dataset, recipe: Recipe, val: Dataset | None) -> dict[str, Any]:
    """What makes a run this run and no other: starting weights, recipe, data."""
    found = {  # what a user changed is told first, and what follows from it (a seed changes the weights) later
        "recipe": asdict(recipe),
        "data": {"train": train.fingerprint(), "val": val.fingerprint() if val is not None else None},
        "model": {"config": asdict(model.config), "image": asdict(model.image), "weights": fingerprint(model)},
    }
    return from_json(to_json(found))  # as it will be read back


def fingerprint(model: nn.Module) -> str:
    """Sixteen hexadecimal digits of all values of a model."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()[:16]


def surroundings() -> dict[str, Any]:
    """Versions, machine, commit and command: what one wants to know a year later."""
    return {
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "machine": {"system": platform.system(), "processor": platform.machine(), "threads": torch.get_num_threads()},
        "commit": _commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _commit() -> str | None:
    """The commit of the code that runs, with a mark where it was changed since."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return value
