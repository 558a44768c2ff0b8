"""Killed without warning at twenty moments, also inside a checkpoint's writing, and gone on with: the same bytes."""

import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 20
SCRIPT = Path(__file__).with_name("kill_and_resume.py")


@pytest.mark.slow
def test_kill_minus_nine(tmp_path):
    run = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path), str(KILLS)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert f"{KILLS} kills, the same bytes" in run.stdout
