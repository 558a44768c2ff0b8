"""The public names: listed, lazy, and helpful when misspelled."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import sightline as sl

ROOMS = sorted(p.parent.name for p in Path(sl.__file__).parent.glob("*/__init__.pyi"))


def test_dir_lists_rooms_and_names():
    assert {"load", "fit", "look", "Dataset", "recipes", *ROOMS} <= set(dir(sl))
    assert "cka" in dir(sl.analysis)


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_of_a_stub_is_there(room):
    space = importlib.import_module(f"sightline.{room}")
    assert all(getattr(space, name) is not None for name in space.__all__)


def test_an_unknown_name_is_an_attribute_error_with_a_suggestion():
    """Python itself suggests names from `dir` when the error reaches the user."""
    code = "import sightline as sl; sl.attention_distanze"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("AttributeError")
    assert "attention_distanze" in last
    assert "attention_distance'" in last
