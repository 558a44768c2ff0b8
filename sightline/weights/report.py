"""The loading report: what happened to every key of a checkpoint."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sightline.files import atomic
from sightline.untrusted import read_json

Fate = Literal["taken", "resized", "new", "left"]
Shape = tuple[int, ...]


class WeightsError(ValueError):
    """A checkpoint that cannot be used, in one sentence: what was found, what was expected, what to do.

    >>> issubclass(sl.weights.WeightsError, ValueError)
    True
    """


@dataclass(frozen=True, kw_only=True)
class KeyFate:
    """What happened to one key: where it came from, where it went, what was done and why."""

    key: str | None  # in the file; None: the model needs a value that the file does not have
    ours: str | None  # in the model; None: left over
    fate: Fate
    found: Shape | None = None
    wanted: Shape | None = None
    method: str | None = None  # how a position table was resized
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The loading report: what happened to every key, warnings, and the numeric settings that the format implies.

    It is attached to a model as `model.loaded`, saved as JSON and read back unchanged.

    >>> report = Report(source="vit.npz", format="google", entries=(), warnings=("The head is all zeros.",))
    >>> print(report)
    vit.npz (google): 0 taken, 0 resized, 0 new, 0 left over; 1 warning.
    """

    source: str
    format: str
    entries: tuple[KeyFate, ...]
    warnings: tuple[str, ...] = ()
    switches: tuple[tuple[str, Any], ...] = ()  # set from the format: GELU form, epsilons, padding
    verified: float | None = None  # largest relative difference of the replayed probes; None: nothing to replay

    def count(self, fate: Fate) -> int:
        """The number of keys with this fate."""
        return Counter(e.fate for e in self.entries)[fate]

    def rows(self) -> list[dict[str, Any]]:
        """One plain dict per key, for tables."""
        return [asdict(e) for e in self.entries]

    def save(self, path: str | Path) -> Path:
        """Write as JSON, atomically."""
        with atomic(path) as partial:
            partial.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "Report":
        """Read a report written by `save`."""
        try:
            held = read_json(path)
            entries = tuple(KeyFate(**{k: _tuple(v) for k, v in e.items()}) for e in held.pop("entries"))
            return cls(entries=entries, **{k: _tuple(v) for k, v in held.items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{path} is not a saved loading report ({error}).") from error

    def __str__(self) -> str:
        words = {"taken": "taken", "resized": "resized", "new": "new", "left": "left over"}
        counts = ", ".join(f"{self.count(fate)} {word}" for fate, word in words.items())  # type: ignore[arg-type]
        some = f"; {len(self.warnings)} warning{'s' if len(self.warnings) != 1 else ''}" if self.warnings else ""
        return f"{self.source} ({self.format}): {counts}{some}."


def _tuple(value: Any) -> Any:
    return tuple(_tuple(v) for v in value) if isinstance(value, list) else value
