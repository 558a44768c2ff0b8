"""The results of a study as one small JSON file, and the verdicts that follow from it."""

import importlib.resources
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from sightline.evals.interval import t95
from sightline.files import set_aside
from sightline.spec import from_json
from sightline.studies.definitions.table import STUDIES, get_study
from sightline.studies.effects import FEWEST_SEEDS, Effect, holm
from sightline.studies.engine.specs import VERSION, Measurement, Task, Training
from sightline.studies.engine.store import RESULT, SPENT, Store, core_seconds, read, with_needs, write
from sightline.studies.engine.study import Decides, Label, SeedNumbers
from sightline.studies.verdict import Verdict
from sightline.training.run.identity import environment
from sightline.untrusted import escape_controls, printable

Numbers = dict[int, dict[Label, dict[str, Any]]]
KEY = re.compile("[0-9a-f]{16}")
EARLIER = "earlier.json"
MOST_NEEDED = 1000  # training seeds that are tried for a claim that is undecided


def write_results(store: Store, name: str, plan: Mapping[int, Mapping[Label, Measurement]], *, smoke: bool) -> Path:
    """results/NAME.json: every number that there is, in the order of the plan, with nothing that depends on when or
    how it was computed. What it cost, and by which command and commit, is beside it in NAME.spent.json."""
    rows, tasks = [], with_needs([m for row in plan.values() for m in row.values()])
    for seed, measurements in plan.items():
        for (measured, cell), m in measurements.items():
            if store.state(m) == "done":
                label = {"name": measured, "cell": dict(cell), "seed": seed, "key": m.key}
                rows.append({**label, "numbers": store.result(m)})
    before, runs = earlier_runs(store), {}
    for t in (t for t in tasks if isinstance(t, Training)):
        if store.state(t) == "done":
            runs[t.key] = counts(store.result(t))
        elif t.key in before:
            runs[t.key] = before[t.key]
    total = {k: sum(run.get(k, 0) for run in runs.values()) for k in ("images", "macs")}
    failed = [{"key": t.key, "reason": store.reason(t)} for t in tasks if store.state(t) == "failed"]
    complete = all(store.state(t) == "done" for t in tasks if isinstance(t, Measurement))
    head = {"study": name, "version": VERSION, "smoke": smoke, "seeds": list(plan), "complete": complete}
    known = earlier_seconds(store)
    seconds = {t.key: round(store.spent(t) or known.get(t.key, 0.0), 1) for t in tasks}
    folder, command = store.path / "results", f"sightline study run {name}{' --smoke' if smoke else ''}"
    cost = {"core_hours": round(sum(seconds.values()) / 3600, 3), "tasks": len(tasks), "failed": failed}
    cost |= {**environment(), "command": command, "seconds": seconds}
    with store.writing():
        write(folder / f"{name}.spent.json", cost)
        write(folder / f"{name}.json", {**head, "trainings": len(runs), **total, "runs": runs, "rows": rows})
    return folder / f"{name}.json"


def restore(store: Store, say: Callable[[str], None]) -> None:
    """Take over every measurement that a file of results holds: its models need not be trained for it again."""
    seconds = earlier_seconds(store)
    for path in result_paths(store):
        try:
            found = dict(measured(read(path)))
        except ValueError:
            say(f"{path} was damaged: it is now {set_aside(path).name}, and what it alone held is measured again")
            continue
        for key, numbers in found.items():
            folder = store.path / "measurements" / key
            if not (folder / RESULT).exists():
                write(folder / SPENT, {"core_seconds": seconds.get(key, 0.0)})
                write(folder / RESULT, numbers)
    keep_earlier(store, seconds)


def keep_earlier(store: Store, seconds: Mapping[str, float]) -> None:
    """Note what trainings that are not in the folder cost: a run over fewer seeds or levels writes the results anew."""
    known = {k: row for k, row in earlier_runs(store).items() if KEY.fullmatch(k)}
    runs = {k: row for k, row in known.items() if not (store.path / "runs" / k).exists()}
    if runs:
        spent = {k: seconds[k] for k in runs if k in seconds}
        write(store.path / EARLIER, {"runs": runs, "seconds": spent})


def unfinished_tasks(store: Store, tasks: Sequence[Task]) -> list[Task]:
    """The measurements that are not done, the trainings that they need, and every training that was begun here."""
    waiting = [t for t in tasks if isinstance(t, Measurement) and store.state(t) != "done"]
    needed = {t.key for t in with_needs(waiting)}
    return [t for t in tasks if store.state(t) != "done" and (t.key in needed or store.folder(t).exists())]


def earlier_runs(store: Store) -> dict[str, dict[str, int]]:
    """Images and multiply-adds of the trainings that the files of results rest on, by key."""
    found: dict[str, dict[str, int]] = {}
    for held in whole_files([*kept_file(store), *result_paths(store)]):
        runs = held.get("runs")
        rows = runs.items() if isinstance(runs, dict) else ()
        found |= {k: numbers for k, row in rows if isinstance(row, dict) and (numbers := counts(row))}
    return found


def earlier_seconds(store: Store) -> dict[str, float]:
    """Core-seconds of every task that the files beside the results name, by key."""
    found: dict[str, float] = {}
    for held in whole_files([*kept_file(store), *sorted((store.path / "results").glob("*.spent.json"))]):
        seconds = held.get("seconds")
        if isinstance(seconds, dict):
            found |= {str(k): core_seconds({"core_seconds": v}) for k, v in seconds.items()}
    return found


def counts(row: dict[str, Any]) -> dict[str, int]:
    """The whole numbers of a training that results add up."""
    return {k: n for k in ("images", "macs") if type(n := row.get(k)) is int and 0 <= n < 2**100}


def measured(held: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Key and numbers of each measurement in a file of results; files of version 0.2.0 have no keys."""
    rows = held.get("rows")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and KEY.fullmatch(str(row.get("key"))) and isinstance(row.get("numbers"), dict):
            yield row["key"], row["numbers"]


def kept_file(store: Store) -> list[Path]:
    """The file of `keep_earlier`, where there is one."""
    return [store.path / EARLIER] if (store.path / EARLIER).exists() else []


def result_paths(store: Store) -> list[Path]:
    """The files of results in a folder of studies."""
    paths = sorted((store.path / "results").glob("*.json"))
    return [p for p in paths if not p.name.endswith(".spent.json")]


def whole_files(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The files that can be read; what a damaged one held is not needed for any number."""
    for path in paths:
        try:
            yield read(path)
        except ValueError:
            continue


def read_results(path: Path) -> tuple[dict[str, Any], Numbers]:
    """A file of results: what it says of itself, and the numbers by seed and label."""
    held = read(path)
    if str(held.get("study")) not in STUDIES or "rows" not in held:
        raise ValueError(f"{printable(path)} holds no results of a study.")
    with sentence(path):
        axes = list(get_study(held["study"]).axes)
        numbers: Numbers = {operator.index(seed): {} for seed in held["seeds"]}
        for row in held["rows"]:
            cell = tuple((axis, row["cell"][axis]) for axis in axes if axis in row["cell"])
            numbers[row["seed"]][row["name"], cell] = {**row["numbers"]}
        counts = {k: operator.index(held[k]) for k in ("trainings", "images", "macs")}
        if max(counts.values()).bit_length() > 100:
            raise ValueError("a count is too large")
        return {**held, **counts, "complete": bool(held["complete"]), "smoke": bool(held["smoke"])}, numbers


@contextmanager
def sentence(path: Path) -> Iterator[None]:
    """Whatever a file of another origin makes the statistics stumble over is its fault, and said of it."""
    try:
        yield
    except (TypeError, LookupError, AttributeError, ArithmeticError, ValueError) as error:
        why = f"{type(error).__name__}: {escape_controls(str(error)):.100}"
        raise ValueError(f"{printable(path)} does not hold what its study writes ({why}).") from error


def judge_results(path: str | Path) -> list[dict[str, Any]]:
    """One row per claim of a file of results: state, seeds, scale, effects, controls.

    >>> sl.studies.judge_results("pyproject.toml")
    Traceback (most recent call last):
        ...
    ValueError: ...
    """
    held, numbers = read_results(Path(path))
    study = get_study(held["study"])
    seeds = [SeedNumbers(study, numbers, seed) for seed in sorted(numbers)]
    rows = []
    with sentence(Path(path)):
        for d in study.decides:
            v = d.verdict(seeds)
            found = controls(d, seeds)
            more = {
                "controls": found,
                "constructed": constructed().get(f"{study.name}/{d.claim}", []),
                "takes": takes(v),
                "caution": caution(found, v.state),
                "smoke": held["smoke"],
            }
            rows.append(claim_row(v, study.name, study.scale, d.paper) | more)
    return rows


def controls(d: Decides, seeds: Sequence[SeedNumbers]) -> dict[str, dict[str, Any]]:
    """The effects of a claim's controls: a null, for which it must not hold, a positive one, for which it must; and
    for claims about trained networks what their untrained twins say."""
    asked = (("null", d.null), ("positive control", d.control))
    found = {kind: plain_effect(q.effect(seeds)) for kind, q in asked if q is not None}
    if d.beside:
        twins = replace(d, from_verdicts=d.beside).verdict(seeds)
        for i, e in enumerate(twins.effects):
            found["untrained twins" + f", {i + 1}" * (len(twins.effects) > 1)] = plain_effect(e)
    return found


def caution(found: Mapping[str, Mapping[str, Any]], state: str = "") -> str:
    """A sentence where a control did not come out as it must, so that the statistic may not show what it is for; and
    where a claim holds for untrained networks as well, so that it is not about training."""
    null, positive = found.get("null"), found.get("positive control")
    if null is not None and null["state"] == "holds":
        return "the null holds, so the statistic finds the effect where there is none."
    if positive is not None and math.isfinite(positive["low"]) and positive["state"] != "holds":
        said = "is undecided" if positive["state"] == "undecided" else "does not hold"
        return f"the positive control {said}, so an effect of this size might not be found here."
    twins = [e["state"] for kind, e in found.items() if kind.startswith("untrained twins")]
    if state == "holds" and twins and set(twins) == {"holds"}:
        return "it holds for the untrained twins, too, so the architecture is enough for it."
    return ""


@cache
def constructed() -> dict[str, list[dict[str, str]]]:
    """What the code says of numbers made up for each claim: a case that must hold, and one that must not. A test
    computes the table again."""
    text = (importlib.resources.files("sightline.studies.definitions") / "controls.json").read_text(encoding="utf-8")
    return dict(from_json(text))


def takes(v: Verdict) -> str:
    """What it would take to decide an undecided claim."""
    if v.state != "undecided":
        return ""
    open_ = [e for e in v.effects if e.state == "undecided"]
    if not open_ or not all(math.isfinite(e.low) for e in open_):
        return f"To be decided it needs all its measurements for at least {FEWEST_SEEDS} training seeds."
    refuting = [e for e in open_ if not on_claimed_side(e)]  # one of them is enough
    needed = list(map(seeds_needed, refuting or open_))
    seeds = min(needed) if refuting else max(needed)
    if not math.isfinite(seeds):
        return f"An effect lies so near its bound that {MOST_NEEDED:,} training seeds would not decide it."
    answer = "it would then not hold" if refuting else "it would then hold"
    return f"If effects and spread stay as they are, about {seeds:.0f} training seeds would decide it: {answer}."


def on_claimed_side(e: Effect) -> bool:
    """Whether the value, whatever its interval, lies where the claim has it."""
    gap = e.value - e.bound
    return {"above": gap > 0, "below": gap < 0}.get(e.side, abs(gap) < e.margin)


def seeds_needed(e: Effect) -> float:
    """Training seeds after which the interval no longer holds the edge nearest to the value."""
    gap = abs(e.value - e.bound)
    gap = abs(gap - e.margin) if e.side == "within" else gap
    spread = (e.high - e.low) / 2 * math.sqrt(e.n) / t95(e.n - 1) if e.n > 1 else math.nan
    wanted = (n for n in range(FEWEST_SEEDS, MOST_NEEDED + 1) if t95(n - 1) * spread / math.sqrt(n) < gap)
    return next(wanted, math.inf)


def claim_row(v: Verdict, study: str, scale: str, paper: str) -> dict[str, Any]:
    """A verdict as the atlas shows it."""
    return {
        "claim": v.claim,
        "state": v.state,
        "seeds": v.seeds,
        "study": study,
        "scale": scale,
        "source": v.source,
        "statement": v.statement,
        "paper": paper,
        "why": v.why(),
        "p": v.p,
        "effects": [plain_effect(e) for e in v.effects],
    }


def plain_effect(e: Any) -> dict[str, Any]:
    """An effect as plain values, with its state."""
    return {**vars(e), "state": e.state}


def judge_folder(folder: str | Path) -> list[dict[str, Any]]:
    """One row per claim of all results in a folder; `survives` says whether it does after Holm's correction.

    >>> sl.studies.judge_folder("no such folder")
    Traceback (most recent call last):
        ...
    ValueError: There are no results of studies in no such folder: sightline study run NAME writes them.
    """
    files = result_files(folder)
    rows = [row for file in files for row in judge_results(file)]
    kept = holm([row["p"] for row in rows])
    return [{**row, "survives": survives} for row, survives in zip(rows, kept)]


def result_files(folder: str | Path) -> list[Path]:
    """The results in a folder, in the order of the studies."""
    files = [Path(folder) / f"{name}.json" for name in STUDIES]
    there = [file for file in files if file.exists()]
    if not there:
        raise ValueError(f"There are no results of studies in {folder}: sightline study run NAME writes them.")
    return there


def core_hours(paths: Iterable[Path]) -> float:
    """What studies cost together: what two of them share was computed once."""
    costs = [read_spent(path) for path in paths]
    seconds = {key: float(n) for cost in costs for key, n in cost.get("seconds", {}).items()}
    return sum(seconds.values()) / 3600 + sum(c.get("core_hours", 0.0) for c in costs if not c.get("seconds"))


def read_spent(path: Path) -> dict[str, Any]:
    """What a study cost, from the file beside its results; empty where there is none."""
    beside = path.with_name(f"{path.stem}.spent.json")
    if not beside.exists():
        return {}
    held = read(beside)
    with sentence(beside):
        texts = {k: escape_controls(str(held.get(k) or "")) for k in ("commit", "command")}
        return {**held, **texts, "core_hours": float(held.get("core_hours", 0.0))}
