"""Loading: time and peak memory of vit-l16, ours beside timm's loader, each in a process of its own, interleaved.

python -m benchmarks.weights            results go to benchmarks/results/weights.json; docs/weights.md quotes them
python -m benchmarks.weights checksums  only what the checksums cost: loading against reading the same bytes
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL, TIMM, REPEATS = "vit-l16", "vit_large_patch16_224", 3
RESULTS = Path(__file__).parent / "results" / "weights.json"

# Each job runs alone in a fresh process: it prints seconds and the growth of its peak memory over the imports.
START = """
import sys, time, zipfile
import numpy as np, torch
torch.set_num_threads(2)
import sightline as sl
from sightline.models.construct import from_config
import sightline.weights.loading, sightline.weights.probe  # imports are not loading
timm = None
if "timm" in sys.argv[1]:
    from tests.peers import timm
path = sys.argv[2]
from benchmarks.race import high_water as peak
before, t, c = peak(), time.perf_counter(), time.process_time()
"""
END = """
print(time.perf_counter() - t, time.process_time() - c, peak() - before)
"""
BYTES = """
with open(path, "rb", buffering=0) as file:
    held = bytearray(file.seek(0, 2)); file.seek(0)
    view = memoryview(held)
    while view:
        view = view[file.readinto(view):]
"""
ARRAYS = """
with np.load(path, allow_pickle=False) as file:
    held = {k: file[k] for k in file.files}
"""
BUILD = """
with torch.device("meta"):
    model = from_config(sl.models.config("vit-l16"))
"""
JOBS = {
    "bytes of safetensors + meta build": ("plain.safetensors", BYTES + BUILD),
    "sightline: our safetensors": ("safetensors", "model = sl.load(path, verify=False)"),
    "sightline: our safetensors, checksums compared": ("plain.safetensors", "model = sl.load(path)"),
    "sightline: our safetensors, probes, too": ("safetensors", "model = sl.load(path)"),
    "sightline: timm's safetensors": ("timm.safetensors", "model = sl.load(path, verify=False)"),
    "timm: its safetensors": (
        "timm.safetensors",
        "model = timm.create_model('vit_large_patch16_224', checkpoint_path=path)",
    ),
    "arrays of npz + meta build": ("npz", ARRAYS + BUILD),
    "sightline: npz": ("npz", "model = sl.load(path, verify=False)"),
    "timm: npz": ("npz", "model = timm.create_model('vit_large_patch16_224'); model.load_pretrained(path)"),
    "sl.build alone": ("safetensors", "model = sl.build('vit-l16')"),
}


READ, CHECKED = "bytes of safetensors + meta build", "sightline: our safetensors, checksums compared"


def run(name: str, code: str, path: Path) -> tuple[float, float, float]:
    script = START + code + END
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, name, str(path)], capture_output=True, text=True, check=True
    )
    seconds, processor, mebibytes = map(float, done.stdout.split()[-3:])
    return seconds, processor, mebibytes


# In a process of its own, too: a child's peak memory starts at that of its parent.
FILES = """
import sys, torch
import sightline as sl
model = sl.build("vit-l16", gelu="erf")
with torch.no_grad():
    model.head.weight.normal_(std=0.02)
forms = {"safetensors": "sightline", "plain.safetensors": "sightline", "timm.safetensors": "timm", "npz": "npz"}
for name in sys.argv[2:]:
    sl.save(model, f"{sys.argv[1]}/model.{name}", to=forms[name], probes=name != "plain.safetensors")
"""


def files(folder: Path, names: set[str]) -> dict[str, Path]:
    subprocess.run([sys.executable, "-c", FILES, str(folder), *sorted(names)], check=True)
    return {name: folder / f"model.{name}" for name in names}


def main() -> None:
    chosen = {n: JOBS[n] for n in (READ, CHECKED)} if sys.argv[1:] == ["checksums"] else JOBS
    with tempfile.TemporaryDirectory() as folder:
        made = files(Path(folder), {file for file, _ in chosen.values()})
        size = made["plain.safetensors"].stat().st_size / 2**20
        seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in chosen}
        for name, (file, code) in chosen.items():
            run(name, code, made[file])  # once unmeasured: the page cache is warm for all
        for _ in range(REPEATS):
            for name, (file, code) in chosen.items():
                seen[name].append(run(name, code, made[file]))
    rows = {
        name: {
            "seconds": round(statistics.median(s for s, _, _ in runs), 3),
            "processor_seconds": round(statistics.median(c for _, c, _ in runs), 3),
            "peak_mib": round(statistics.median(m for _, _, m in runs)),
        }
        for name, runs in seen.items()
    }
    about = {"model": MODEL, "file_mib": round(size), "repeats": REPEATS, "cores": os.cpu_count()}
    about |= {"machine": platform.machine(), "python": platform.python_version()}
    if chosen is JOBS:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    for name, row in rows.items():
        print(f"{name:48} {row['seconds']:8.3f} s {row['processor_seconds']:8.3f} s CPU {row['peak_mib']:8} MiB")
    ratios = [c[1] / b[1] for b, c in zip(seen[READ], seen[CHECKED])]
    middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
    print(f"checksums compared / bytes, processor time: {middle:.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
