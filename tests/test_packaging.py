"""One version everywhere, and a wheel that holds everything that the package reads."""

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import sightline as sl

ROOT = Path(__file__).parent.parent
DATA = {".pyi", ".typed", ".csv", ".css", ".js", ".json", ".html", ".safetensors"}


def test_one_version():
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert citation
    assert citation[1] == sl.__version__
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert sections[0] in ("Unreleased", sl.__version__)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", section) for section in sections[1:])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="a wheel is built by setuptools")
def test_the_wheel_holds_every_file(tmp_path):
    """Built offline, of a copy, so that nothing is left in the tree."""
    source = tmp_path / "source"
    ours = [p for p in (ROOT / "sightline").rglob("*") if p.is_file() and (p.suffix in DATA or p.suffix == ".py")]
    for path in [*ours, *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))]:
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    words = ("pip", "wheel", source, "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", tmp_path)
    subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"sightline-{sl.__version__}-")
    with zipfile.ZipFile(wheel) as file:
        held = set(file.namelist())
    assert {str(p.relative_to(ROOT)) for p in ours} <= held
    assert {"sightline/py.typed", "sightline/__init__.pyi", "sightline/data/named/imagenet.csv"} <= held
