"""Kill a study at random moments, its command, its workers or both, and run it again; also on Slurm.

    python -m tests.attack.study_kills [KILLS] [local|slurm]        20 kills on this machine by default

Whenever the study reaches its end, its numbers must be the bytes of one that nobody disturbed. Prints a table; exits 1
if anything differs.
"""

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.studies.test_killed import children, finish, kill, outcome, start

KILLS, SEED = 20, 7


def main(kills: int, place: str) -> bool:
    """Whether every study that came to its end has the same bytes."""
    draw = random.Random(SEED)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        finish(Path(folder) / "whole")
        takes, whole = time.monotonic() - began, outcome(Path(folder) / "whole")
        ends, wrong, out = 0, 0, Path(folder) / "0"
        for _ in range(kills):
            attempt(out, place, draw.uniform(0.1, 0.8) * takes, draw.choice(("command", "workers", "both")))
            if not (out / "results" / "tiny.json").exists():
                continue
            finish(out, place)
            ends, wrong, out = ends + 1, wrong + (outcome(out) != whole), out.with_name(str(ends + 1))
        finish(out, place)
        wrong += outcome(out) != whole
    print(f"{place}: {kills} kills, {ends + 1} studies ended, {wrong} with other bytes")
    return not wrong


def attempt(out: Path, place: str, delay: float, victim: str) -> None:
    """Start the study, or resume it, and kill something after a delay; a command that survives is killed later."""
    process = start(out, place)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(delay)
    if process.poll() is None:
        workers = children(process.pid)
        kill([process.pid] * (victim != "workers") + workers * (victim != "command"))
        if place == "slurm" and victim != "command":
            arrays = [p.name for p in (out / "slurm").glob("*") if p.name.isdecimal()]
            for signal in (["--signal=KILL", "--full"], []):
                subprocess.run(["scancel", *signal, *arrays], check=False, capture_output=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=delay)
    kill([process.pid])
    process.communicate()


if __name__ == "__main__":
    words = [w for w in sys.argv[1:] if not w.isdecimal()]
    counts = [int(w) for w in sys.argv[1:] if w.isdecimal()]
    sys.exit(not main(counts[0] if counts else KILLS, words[0] if words else "local"))
