"""A few damaged files of every type from outside: our own errors, bounded memory, no hang. `make attack` has more."""

import os

import pytest

from tests.attack.runner import attack
from tests.attack.targets import TARGETS

GROUPS = ("images", "weights", "data", "configs", "own")
CASES = 12
MOST = 1600  # MB: the largest image that is read, on its way to RGB

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="limits are those of Linux")


def test_damaged_files_are_refused_in_our_words():
    counts = {name: CASES for name, target in TARGETS.items() if target.group in GROUPS}
    for outcome in list(attack(counts, seed="small")):
        assert not outcome.faults, f"{outcome.name}: {outcome.faults}"
        assert outcome.cases == CASES
        assert outcome.megabytes < MOST
        assert outcome.counts["refused"] + outcome.counts["loaded"] == CASES
