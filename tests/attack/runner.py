"""Runs the cases of a target in a child process, and starts another child where one dies or hangs."""

import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # seconds without a word from the child: it hangs where no signal reaches it


@dataclass
class Outcome:
    """What became of the cases of one target."""

    name: str
    cases: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0  # of the slowest
    megabytes: float = 0.0  # of the greediest
    faults: dict[int, str] = field(default_factory=dict)  # what must not happen, by the number of the case

    @property
    def row(self) -> str:
        counts = [self.counts[what] for what in ("loaded", "refused", "foreign", "slow", "died")]
        return LINE.format(self.name, self.cases, *counts, round(self.seconds, 1), round(self.megabytes))


LINE = "{:26} {:>6} {:>7} {:>8} {:>8} {:>5} {:>5} {:>10} {:>8}"
HEAD = LINE.format("file", "cases", "loaded", "refused", "foreign", "hung", "died", "slowest s", "most MB")


def attack(counts: dict[str, int], *, seed: str = "0", keep: Path | None = None) -> Iterator[Outcome]:
    """Open so many damaged files of each type, in one child after another: a new one where one dies or hangs.

    `keep` is a file for what every case gave; an attack that was interrupted goes on after the last one in it.
    """
    jobs = [[name, 0, count] for name, count in counts.items()]
    outcomes = {name: Outcome(name) for name in counts}
    for told in _kept(keep, seed):
        job = next((job for job in jobs if job[0] == told["name"]), None)
        if job is not None and told["case"] < job[2]:
            _note(outcomes[told["name"]], told)
            job[1] = told["case"] + 1
    while jobs and jobs[0][1] >= jobs[0][2]:
        yield outcomes[jobs.pop(0)[0]]
    while jobs:
        for told in _talk(jobs, seed):
            _note(outcomes[told["name"]], told)
            if keep is not None:
                with keep.open("a") as file:
                    file.write(json.dumps({"seed": seed, **told}) + "\n")
            while jobs and jobs[0][0] != told["name"]:
                yield outcomes[jobs.pop(0)[0]]
            jobs[0][1] = told["case"] + 1
        while jobs and jobs[0][1] >= jobs[0][2]:
            yield outcomes[jobs.pop(0)[0]]


def _kept(keep: Path | None, seed: str) -> Iterator[dict[str, Any]]:
    if keep is not None and keep.exists():
        for line in keep.read_text().splitlines():
            told = json.loads(line)
            if told.pop("seed") == seed:
                yield told


def _note(outcome: Outcome, told: dict[str, Any]) -> None:
    outcome.cases += 1
    outcome.counts[told["what"]] += 1
    outcome.seconds = max(outcome.seconds, told["seconds"])
    outcome.megabytes = max(outcome.megabytes, told["megabytes"])
    if told["what"] not in ("loaded", "refused"):
        outcome.faults[told["case"]] = told["error"] or "it took too long"


def _talk(jobs: list[list[Any]], seed: str) -> Iterator[dict[str, Any]]:
    """What one child says of its cases; if it ends before its time, the case that it did not survive."""
    name, at, heard = jobs[0][0], jobs[0][1], 0
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as noise:
        command = [sys.executable, "-m", "tests.attack.child", seed, folder, json.dumps(jobs)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=noise, text=True, cwd=ROOT)
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=_forward, args=(child.stdout, lines), daemon=True)
        reader.start()
        try:
            while line := _next(lines):
                told = json.loads(line)
                name, at, heard = told["name"], told["case"] + 1, heard + 1
                yield told
        finally:
            child.kill()
            child.wait()
            reader.join()
        noise.seek(0)
        said = noise.read()[-1500:]
    if not heard:
        raise RuntimeError(f"The attack on {name} did not start: {said}")
    if any(at < last for job, _, last in jobs if job == name):
        error = f"the process died or hung: {said.strip()[-200:]}"
        yield {"name": name, "case": at, "what": "died", "error": error, "seconds": 0.0, "megabytes": 0.0}
    elif name != jobs[-1][0]:
        raise RuntimeError(f"The attack after {name} did not start: {said}")


def _forward(stream: Any, lines: "queue.Queue[str]") -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put("")


def _next(lines: "queue.Queue[str]") -> str:
    try:
        return lines.get(timeout=PATIENCE)
    except queue.Empty:
        return ""
