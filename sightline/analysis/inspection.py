"""`sl.look` and `sl.compare`: every analysis that applies, one file each, resumed where it stopped."""

import hashlib
import logging
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from sightline.analysis.catalog import LOOK, Analysis, Inspection, comparison, inspection
from sightline.data.datasets import Dataset
from sightline.data.errors import TooManyBad
from sightline.data.quality.readable import without_unreadable
from sightline.files import atomic, exclusive, set_aside
from sightline.observe.images import known_fingerprint
from sightline.observe.model import Model
from sightline.progress import stages
from sightline.sharing import sharing
from sightline.spec import Result, to_json

METHOD = 2  # raised when analyses compute something else: what an earlier version finished is then computed again
log = logging.getLogger("sightline.analysis")
# what takes a second or two of one image: what the model says, where it looks, what its features are
QUICK = (
    "attention-distance",
    "attention-maps",
    "head-attention",
    "logit-lens",
    "outlier-tokens",
    "feature-pca",
    "rollout",
    "residual",
    "attribution",
    "patch-filters",
    "positions",
)
# how long each takes in comparison, for the time that is left; the others about one
EFFORT = {
    "what-if": 18,
    "attention-distance": 3,
    "logit-lens": 3,
    "outlier-tokens": 3,
    "position-content": 4,
    "residual": 3,
    "localization": 3,
    "attribution": 12,
    "attribution-rollout": 6,
    "attribution-rollout-gradient": 8,
    "receptive-field": 14,
    "receptive-field-before": 13,
    "activation-patching": 20,
    "inductive-bias": 3,
    "cka": 15,
    "probes": 7,
    "token-probes": 4,
    "head-subsets": 4,
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one analysis.

    >>> sl.analysis.Outcome(name="rollout", state="does not apply", why="a CNN has no attention").ok
    True
    """

    name: str
    state: Literal["done", "kept", "does not apply", "failed"]  # kept: an earlier call had done it
    why: str = ""
    path: str = ""
    seconds: float = 0.0
    numbers: dict[str, float] | None = None  # of the summary

    @property
    def ok(self) -> bool:
        """Whether nothing is left to do."""
        return self.state != "failed"


def look(
    model: Model,
    data: Dataset,
    out: str | Path,
    *,
    only: str | Sequence[str] = (),
    n: int = 256,
    seed: int = 0,
    name: str = "",
) -> list[Outcome]:
    """Every analysis that applies to a model, on up to `n` images, one `.npz` each in the folder `out`.

    `only` names some of them, or is "quick": those that take a second or two. What an earlier call has finished for the
    same model, images and settings is kept. What does not apply is listed with its reason, what fails with its error;
    the others continue. `name` is what a report calls the model.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     rows = sl.look(sl.build("bit-nano", classes=5), sl.dataset("scenes/shape", num=8, size=32), out,
    ...                    only=["cka", "rollout"])
    >>> [(row.name, row.state) for row in rows]
    [('cka', 'done'), ('rollout', 'does not apply')]
    """
    return _all(inspection((model,), data, n=n, seed=seed, names=(name,) if name else ()), LOOK, Path(out), only)


def compare(
    a: Model,
    b: Model,
    data: Dataset,
    out: str | Path,
    *,
    only: str | Sequence[str] = (),
    n: int = 256,
    seed: int = 0,
    names: Sequence[str] = (),
) -> list[Outcome]:
    """Every analysis of two models side by side, as `look` does it; each model prepares its own images.

    `names` are what a report calls the two models.

    >>> import tempfile
    >>> a, b = sl.build("vit-nano4", classes=5), sl.build("bit-nano", classes=5)
    >>> with tempfile.TemporaryDirectory() as out:
    ...     rows = sl.compare(a, b, sl.dataset("scenes/shape", num=8, size=32), out, only=["cka-pooled"])
    >>> rows[0].state
    'done'
    """
    return _all(inspection((a, b), data, n=n, seed=seed, names=names), comparison(), Path(out), only)


def _choose_names(catalog: dict[str, Analysis], asked: Sequence[str]) -> list[str]:
    """The analyses that were asked for; "residual" is that of both models where there are residual-a and residual-b."""
    bases = {base_name(n) for n in catalog}
    unknown = [name for name in asked if name not in catalog and name not in bases and name != "quick"]
    if unknown:
        known = ", ".join((*catalog, "quick"))
        raise ValueError(f"There is no analysis {', '.join(map(repr, unknown))}; there is {known}.")
    both = {name for name in asked if name not in catalog}
    quick = QUICK if "quick" in asked else ()
    return [n for n in catalog if not asked or n in asked or base_name(n) in both or base_name(n) in quick]


def _all(t: Inspection, catalog: dict[str, Analysis], out: Path, only: str | Sequence[str]) -> list[Outcome]:
    names = _choose_names(catalog, (only,) if isinstance(only, str) else tuple(only))
    try:
        return _series(t, catalog, out, names)
    except TooManyBad as error:
        readable = without_unreadable(t.data, error)
        return _series(replace(t, data=readable, n=min(t.n, len(readable))), catalog, out, names)


def _series(t: Inspection, catalog: dict[str, Analysis], out: Path, names: Sequence[str]) -> list[Outcome]:
    with exclusive(out), known_fingerprint(t.data) as images, sharing():
        key = question(t, images)
        rows = [
            _one(name, catalog[name], t, out=out, key=key)
            for name in stages(names, [EFFORT.get(base_name(name), 1) for name in names])
        ]
        states = {"kept": "done"}  # the file says what there is, whichever call computed it
        summary = [
            {"name": r.name, "state": states.get(r.state, r.state), "why": r.why, "numbers": r.numbers} for r in rows
        ]
        with atomic(out / "summary.json") as partial:
            partial.write_text(to_json(summary, indent=1) + "\n", encoding="utf-8")
    return rows


def _one(name: str, analysis: Analysis, t: Inspection, *, out: Path, key: str) -> Outcome:
    """One analysis: refused with a reason, found finished, or run. A failure is noted and does not stop the others."""
    begun = time.monotonic()
    try:
        if (reason := analysis.refuses(t)) is not None:
            return Outcome(name=name, state="does not apply", why=reason)
        path = out / f"{name}.npz"
        done = _kept(path, key)
        if done is not None:
            return Outcome(name=name, state="kept", path=path.name, numbers=numbers(done))
        found = analysis.run(t)
        how = {**found.how, "key": key, "data": t.data.name}
        found = replace(found, how=how, about=replace(found.about, analysis=name))
        found.save(path)
        spent = round(time.monotonic() - begun, 2)
        return Outcome(name=name, state="done", path=path.name, seconds=spent, numbers=numbers(found))
    except (OSError, TooManyBad):  # a full disk, broken images: no other analysis would do better
        raise
    except Exception as error:
        log.warning("%s failed: %s", name, error)
        return Outcome(name=name, state="failed", why=" ".join(str(error).split()) or type(error).__name__)


def base_name(name: str) -> str:
    """The name of an analysis without the side of a comparison."""
    return name[:-2] if name.endswith(("-a", "-b")) else name


def numbers(found: Result) -> dict[str, float]:
    """The summary, as plain numbers; means of nothing are NaN, and are written so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return {name: float(v) for name, v in found.summary().items()}


def _kept(path: Path, key: str) -> Result | None:
    """A finished result of the same question. A damaged one is set aside."""
    if not path.exists():
        return None
    try:
        found = Result.load(path)
    except ValueError as error:
        log.warning("%s It is set aside as %s and computed again.", error, set_aside(path).name)
        return None
    return found if found.how.get("key") == key else None


def question(t: Inspection, images: str) -> str:
    """What a kept result must agree in: method, models (by fingerprint and name), images, their number, the seed."""
    asked = (METHOD, [asdict(s.id) for s in t.models], images, t.n, t.seed)
    return hashlib.blake2b(to_json(asked).encode(), digest_size=16).hexdigest()
