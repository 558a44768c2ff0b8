"""`make bench`: every benchmark, one after the other, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

SHARED = {"__init__", "__main__", "race"}
LONG = {"records", "eighty", "unlabeled"}  # trainings: minutes to a day of a core

if __name__ == "__main__":
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in SHARED | LONG:
            print(f"== {path.stem}", flush=True)
            subprocess.run([sys.executable, "-m", f"benchmarks.{path.stem}"], check=True)
