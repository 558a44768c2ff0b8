"""Training on a machine that does something else: `python -m benchmarks.busy [rounds] [steps]`, about ten minutes.

`sightline train` on vit-nano4, alone and beside one and two processes that never rest, with threads that sleep while
they wait (as the command line sets it) and with threads that spin (OpenMP's default). Both take turns, round by round.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.race import save

# GOMP_SPINCOUNT overrides the policy that the command line sets; 300,000 is what libgomp takes without a policy
WAYS = {"sleeping": {}, "spinning": {"GOMP_SPINCOUNT": "300000"}}
LONGEST = 120  # seconds of one training: beside others, threads that spin may take a hundred times as long


@contextmanager
def competitors(count: int) -> Iterator[None]:
    """So many processes, each of which would fill a core."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def speed(way: str, steps: int) -> float:
    """Images per second of a training; what it had done by then, where it was cut off."""
    words = ["train", "scenes/shape", "--num", "2000", "--model", "vit-nano4", "--val", "none"]
    settings = [f"--set=steps={steps}", "--set=log_every=1", "--set=warmup=1"]
    around = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "sightline", *words, *settings, "--out", str(out)]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=around | WAYS[way], capture_output=True, timeout=LONGEST, check=True)
        log = out / "log.jsonl"
        rows = [json.loads(line)["images/s"] for line in log.read_text().splitlines()] if log.exists() else []
    return statistics.harmonic_mean(rows[1:] or rows) if rows else 0.0


def main(rounds: int = 3, steps: int = 20) -> None:
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for count in (0, 1, 2):
            for way in WAYS:
                with competitors(count):
                    found.setdefault(str(count), {}).setdefault(way, []).append(speed(way, steps))
    for count, ways in found.items():
        row = {way: f"{statistics.median(v):,.0f} ({min(v):,.0f} to {max(v):,.0f})" for way, v in ways.items()}
        told = ", ".join(f"{way} {speeds} images/s" for way, speeds in row.items())
        print(f"beside {count} others: {told}")
    save("busy", {"images_per_second": found, "load": os.getloadavg(), "cores": os.cpu_count()})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
