"""One version everywhere, and a wheel that holds everything that the package reads and works where it is installed."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image

import sightline as sl

ROOT = Path(__file__).parent.parent
DATA = {".py", ".pyi", ".typed", ".csv", ".css", ".js", ".json", ".html", ".safetensors"}
OURS = [p for p in (ROOT / "sightline").rglob("*") if p.is_file() and p.suffix in DATA]


def test_one_version():
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert citation
    assert citation[1] == sl.__version__
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert sections[0] in ("Unreleased", sl.__version__)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", section) for section in sections[1:])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built offline, of a copy, so that nothing is left in the tree."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("a wheel is built by setuptools")
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    for path in [*OURS, *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))]:
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    pip("wheel", source, "--no-build-isolation", "-w", place)
    (wheel,) = place.glob("*.whl")
    return wheel


def pip(*words):
    offline = ("--no-deps", "--no-index", "-q")
    subprocess.run([sys.executable, "-m", "pip", *words, *offline], check=True, capture_output=True, timeout=300)


@pytest.mark.slow
def test_the_wheel_holds_every_file(wheel):
    assert wheel.name.startswith(f"sightline-{sl.__version__}-")
    with zipfile.ZipFile(wheel) as file:
        held = set(file.namelist())
    assert {str(p.relative_to(ROOT)) for p in OURS} <= held
    assert {"sightline/py.typed", "sightline/__init__.pyi", "sightline/data/named/imagenet.csv"} <= held


@pytest.mark.slow
def test_the_installed_wheel_works_away_from_the_checkout(wheel, tmp_path):
    """The command that pip installs, in an empty folder, with nothing of the checkout on the path."""
    site, desk = tmp_path / "site", tmp_path / "desk"
    desk.mkdir()
    pip("install", wheel, "--target", site)
    Image.new("RGB", (50, 40), "red").save(desk / "photo.png")
    sl.save(sl.build("vit-nano4", classes=1000, depth=1), desk / "nano.safetensors")

    def command(*words):
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": str(site), "COLUMNS": "80"}
        done = subprocess.run(words, cwd=desk, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(site) in command(sys.executable, "-c", "import sightline; print(sightline.__file__)")
    sightline = site / "bin" / "sightline"
    assert "predict" in command(sightline, "--help")
    assert "vit-l16" in command(sightline, "models", "vit-l*")
    said = json.loads(command(sightline, "predict", "nano.safetensors", "photo.png", "--json"))
    assert "tench" in str(said)  # the classes of ImageNet come with the package
