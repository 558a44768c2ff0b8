"""Training on a machine that does something else: `python -m benchmarks.busy [rounds] [steps]`, about fifteen minutes.

`sightline train` on vit-nano4, alone and beside one and two processes that never rest: as the command line runs it
(threads by what is free, which sleep while they wait), with a thread for every core that sleeps, and with a thread for
every core that spins (OpenMP's default). They take turns, round by round. The fair share beside k competitors is what
the scheduler gives a thread for every core that never waits: cores / (cores + k) of the speed alone.
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
ALL = str(os.cpu_count())
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "ours": ([], {}),
    "sleeping": (["--threads", ALL], {}),
    "spinning": (["--threads", ALL], {"GOMP_SPINCOUNT": "300000"}),
}
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
    around = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")}
    threads, extra = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "sightline", *words, *threads, *settings, "--out", str(out)]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=around | extra, capture_output=True, timeout=LONGEST, check=True)
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
    shares = fair_shares(found)
    for count, ways in found.items():
        for way, v in ways.items():
            speeds = f"{statistics.median(v):,.0f} ({min(v):,.0f} to {max(v):,.0f}) images/s"
            print(f"beside {count} others, {way}: {speeds}, {shares[count][way]:.2f} of the fair share")
    facts = {"load": os.getloadavg(), "cores": os.cpu_count()}
    save("busy", {"images_per_second": found, "of_fair_share": shares, **facts})


def fair_shares(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Speeds beside competitors over what the scheduler would give, by the best speed alone."""
    cores = os.cpu_count() or 1
    alone = max(statistics.median(v) for v in found["0"].values())
    return {
        count: {way: statistics.median(v) * (cores + int(count)) / cores / alone for way, v in ways.items()}
        for count, ways in found.items()
    }


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
