"""Export: every variant to every runtime, how far its outputs are from ours, and its speed at batch 1.

    python -m benchmarks.export [GLOB]

Results go to benchmarks/results/export.json as they come, so that a stopped benchmark goes on where it was.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

import sightline as sl
from benchmarks.race import RESULTS, save
from sightline.weights.exporting import SUFFIX

FILE = RESULTS / "export.json"


def main(glob: str) -> None:
    rows = json.loads(FILE.read_text()) if FILE.exists() else {}
    for listing in sl.models.list_models(glob):
        for to, suffix in SUFFIX.items():
            name = f"{listing.model} {to}"
            if name in rows:
                continue
            model = sl.build(listing.model)
            if model.config.classes:
                torch.nn.init.normal_(model.head.weight, std=0.02)  # a new head is zero and would hide everything
            with tempfile.TemporaryDirectory() as folder:
                done = sl.weights.export(model, Path(folder) / f"model{suffix}", to=to)
            rows[name] = {"difference": done.difference, "times PyTorch at batch 1": done.speed}
            print(f"{name:<28} {done.difference:8.1e} {done.speed:6.2f}x", flush=True)
            save("export", rows)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "*")
