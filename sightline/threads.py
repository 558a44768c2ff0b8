"""How threads wait for each other. OpenMP reads this once, when torch is loaded, so it is decided before."""

import os
import sys
from itertools import pairwise
from pathlib import Path


def is_command_line() -> bool:
    """Whether this process was started as `sightline` or `python -m sightline`, which includes what torchrun starts."""
    return Path(sys.argv[0]).stem == "sightline" or ("-m", "sightline") in pairwise(sys.orig_argv)


# By default a thread that waits spins for some milliseconds. On a machine that does something else, it spins away the
# very time that the others need to get ready, and training falls to a fraction of its fair share (docs/log.md). In a
# library this is the caller's choice; processes that are started from here inherit it.
if is_command_line():
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
