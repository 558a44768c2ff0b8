"""Fair races on a noisy machine: contestants take turns, ratios are taken round by round, medians reported."""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def clock() -> Callable[[], float]:
    """Processor time where torch has one thread, which other programs hardly change; else the wall clock."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def matmul_speed(seconds: float = 0.3, dtype: torch.dtype = torch.float32) -> float:
    """Floating-point operations per second of a large matrix product: what the machine could do."""
    a, b = torch.randn(2048, 1024).to(dtype), torch.randn(1024, 2048).to(dtype)
    now = clock()
    best, end = 0.0, now() + seconds
    while now() < end:
        start = now()
        a @ b
        best = max(best, 2 * 2048 * 1024 * 2048 / (now() - start))
    return best


def race(
    contestants: dict[str, Callable[[], object]], *, flops: float, rounds: int = 15, dtype: torch.dtype = torch.float32
) -> dict[str, dict]:
    """Seconds, speed relative to each peer (medians of per-round ratios) and fraction of matrix-product speed.

    The first contestant is ours; the others are the peers. The order within a round rotates.
    """
    names, now = list(contestants), clock()
    for run in contestants.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in names}
    peaks = []
    for i in range(rounds):
        peaks.append(matmul_speed(0.05, dtype))
        for name in names[i % len(names) :] + names[: i % len(names)]:
            start = now()
            contestants[name]()
            times[name].append(now() - start)
    ours, peak = times[names[0]], statistics.median(peaks)
    return {
        name: {
            "seconds": statistics.median(t),
            "ours_is_faster_by": statistics.median(b / a for a, b in zip(ours, t)),
            "of_matmul_speed": flops / statistics.median(t) / peak,
        }
        for name, t in times.items()
    }


def high_water() -> float:
    """MiB at most so far in this process. Not by getrusage: that begins at the parent's memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**10


def report(title: str, rows: dict[str, dict]) -> None:
    print(title)
    for name, row in rows.items():
        ratio = f"{row['ours_is_faster_by']:5.2f}x" if row["ours_is_faster_by"] != 1 else "     -"
        print(
            f"  {name:<14} {row['seconds'] * 1e3:9.2f} ms   ours is faster by {ratio}"
            f"   {row['of_matmul_speed']:5.2f} of matmul speed"
        )


def save(name: str, data: dict) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


def saved(name: str) -> dict:
    """What was measured before; nothing where nothing was."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}
