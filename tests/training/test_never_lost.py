"""Killed without warning at ten moments, also inside a checkpoint's writing, and resumed: the same bytes."""

import subprocess
import sys

import pytest

KILLS = 10  # `make attack` has a hundred


@pytest.mark.slow
def test_kill_minus_nine():
    command = [sys.executable, "-m", "tests.attack.kills", str(KILLS), "train"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert f"train{KILLS:19}" in run.stdout
