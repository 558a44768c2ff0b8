"""Export: every variant to ONNX Runtime and OpenVINO, how far its outputs are from ours, and its speed at batch 1.

    OMP_NUM_THREADS=1 python -m benchmarks.export [GLOB] [--gib 6] [--minutes 25]

The papers' sizes come first, the smallest of them at the head, then ours for 32 pixels, every file in a process of its
own. Results go to benchmarks/results/export.json as they come, so that a stopped benchmark resumes. With one thread,
speed is processor time, the best of many turns; the load of the machine is saved beside it. A model that needs more
memory than there is, or than --gib allows, gets a row that says so, and is tried again the next time. After --minutes
of processor time no other one begins.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import sightline as sl
from benchmarks.race import RESULTS, high_water, save
from sightline.training.preflight.free_memory import free_bytes
from sightline.weights.exporting import SUFFIX

FILE = RESULTS / "export.json"
RUNTIMES = ("onnx", "openvino")
COPIES = {"onnx": 5.5, "openvino": 5.5}  # of the weights at the peak; see "peak MiB" of the largest rows
SPARE = 1.5 * 2**30  # bytes, for the libraries, for activations and for other programs


def main(glob: str, gib: float, minutes: float) -> None:
    for listing in sorted(sl.models.list_models(glob), key=lambda one: (one.size[0] < 224, one.parameters)):
        for to in RUNTIMES:
            done = read().get(f"{listing.model} {to}", {})
            if "difference" not in done and spent_minutes() < minutes:
                attempt(listing.model, to, 4 * COPIES[to] * listing.parameters + SPARE, gib=gib)


def spent_minutes() -> float:
    """Processor time of the exports so far, in minutes."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (children.ru_utime + children.ru_stime) / 60


def attempt(name: str, to: str, needed: float, *, gib: float = float("inf")) -> None:
    """Export in a child process, which the system ends first if memory runs out after all."""
    free = min(free_bytes(torch.device("cpu")), gib * 2**30)
    if needed > free:
        return leave_out(name, to, f"needs about {needed / 2**30:.0f} GiB, {free / 2**30:.0f} GiB could be used")
    child = subprocess.run([sys.executable, "-m", "benchmarks.export", "--only", name, to], stderr=subprocess.PIPE)
    if child.returncode:
        lines = child.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {child.returncode}"]
        leave_out(name, to, "ended by the system: out of memory" if child.returncode == -9 else lines[-1])


def leave_out(name: str, to: str, reason: str) -> None:
    save("export", read() | {f"{name} {to}": {"left out": reason}})
    print(f"{name:<16} {to:<9} left out: {reason}", flush=True)


def measure(name: str, to: str) -> None:
    Path("/proc/self/oom_score_adj").write_text("1000")
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        done = sl.weights.export(with_head(name), Path(folder) / f"model{SUFFIX[to]}", to=to)
    row = {
        "difference": done.difference,
        "times PyTorch at batch 1": done.speed,
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "core-seconds": time.process_time() - begun,
        "peak MiB": high_water(),
    }
    save("export", read() | {f"{name} {to}": row})
    print(f"{name:<16} {to:<9} {done.difference:8.1e} {done.speed:6.2f}x {high_water():8,.0f} MiB", flush=True)


def with_head(name: str) -> nn.Module:
    model = sl.build(name)
    nn.init.normal_(model.head.weight, std=0.02)  # a new head is zero and would hide everything
    return model


def read() -> dict:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--only", name, to]:
            measure(name, to)
        case _:
            parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
            parser.add_argument("glob", nargs="?", default="*")
            parser.add_argument("--gib", type=float, default=float("inf"), help="Memory that an export may take.")
            parser.add_argument("--minutes", type=float, default=float("inf"), help="Processor time for all of it.")
            main(**vars(parser.parse_args()))
