"""The large attack: python -m tests.attack [--scale 0.1] [--seed 0] [--only TEXT] [--keep FILE].

Exit code 1 if anything gave way.
"""

import argparse
import sys
import time
from pathlib import Path

from tests.attack.runner import HEAD, attack
from tests.attack.targets import TARGETS

SHOWN = 8  # faults of one target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the cases")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--keep", type=Path, help="a file for what each case gave, to go on from after an interruption")
    options = parser.parse_args()
    print(HEAD, flush=True)
    start, total, failed = time.monotonic(), 0, 0
    chosen = {n: t for n, t in TARGETS.items() if options.only in n or options.only == t.group}
    counts = {n: max(1, round(t.count * options.scale)) for n, t in chosen.items()}
    for outcome in attack(counts, seed=options.seed, keep=options.keep):
        print(outcome.row, flush=True)
        total, failed = total + outcome.cases, failed + len(outcome.faults)
        for number, what in list(outcome.faults.items())[:SHOWN]:
            print(f"    case {number}: {what}", flush=True)
    print(f"{total} cases, {failed} of them not held, in {time.monotonic() - start:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
