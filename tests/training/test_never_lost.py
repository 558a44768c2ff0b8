"""Killed without warning at ten moments, also inside a checkpoint's writing, and resumed: the same bytes."""

import subprocess
import sys

import pytest

KILLS = 6  # `make attack` has a hundred


@pytest.mark.slow
def test_kill_minus_nine():
    command = [sys.executable, "-m", "tests.attack.kills", str(KILLS), "train"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    name, kills, *_, differ, failed = run.stdout.splitlines()[-1].split()
    assert (name, int(kills), int(differ), int(failed)) == ("train", KILLS, 0, 0)
