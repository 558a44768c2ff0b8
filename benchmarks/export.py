"""Export: every variant to every runtime, how far its outputs are from ours, and its speed at batch 1.

    python -m benchmarks.export [GLOB]

The smallest come first, each in a process of its own. Results go to benchmarks/results/export.json as they come, so
that a stopped benchmark goes on where it was. A model that needs more than half of the free memory is named and left
out.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import sightline as sl
from benchmarks.race import RESULTS, high_water, save
from sightline.training.preflight.free_memory import free_bytes
from sightline.weights.exporting import SUFFIX

FILE = RESULTS / "export.json"
COPIES = 7  # of the weights at the peak: the model, its graph, the program, the file, the runtime's own


def main(glob: str) -> None:
    for listing in sorted(sl.models.list_models(glob), key=lambda one: one.parameters):
        if 4 * COPIES * listing.parameters > free_bytes(torch.device("cpu")) / 2:
            print(f"{listing.model:<16} left out: {listing.parameters:,} parameters", flush=True)
        elif not all(f"{listing.model} {to}" in read() for to in SUFFIX):
            subprocess.run([sys.executable, "-m", "benchmarks.export", "--only", listing.model], check=True)


def measure(name: str) -> None:
    model = sl.build(name)
    torch.nn.init.normal_(model.head.weight, std=0.02)  # a new head is zero and would hide everything
    for to, suffix in SUFFIX.items():
        if f"{name} {to}" in read():
            continue
        with tempfile.TemporaryDirectory() as folder:
            done = sl.weights.export(model, Path(folder) / f"model{suffix}", to=to)
        row = {"difference": done.difference, "times PyTorch at batch 1": done.speed, "peak MiB so far": high_water()}
        save("export", read() | {f"{name} {to}": row})
        print(f"{name:<16} {to:<9} {done.difference:8.1e} {done.speed:6.2f}x {high_water():8,.0f} MiB", flush=True)


def read() -> dict:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--only", name]:
            measure(name)
        case rest:
            main(*rest or ["*"])
