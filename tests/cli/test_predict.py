"""`sightline predict`, as it is typed."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sightline as sl
from sightline.cli import main
from tests.evals.makers import random_model

ROOT = Path(__file__).parents[2]
NAMES = ("plain.png", "[red] :smile:.png", "über 猫.png", "a[1].png")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Weights with class names that look like markup, and a folder of images with awkward names."""
    place = tmp_path_factory.mktemp("predict")
    sl.save(random_model(classes=3), place / "nano.safetensors", classes=["[bold]cat[/bold]", "dog", "owl"])
    (place / "photos").mkdir()
    rng = np.random.default_rng(0)
    for name in NAMES:
        Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(place / "photos" / name)
    return place


@pytest.fixture(autouse=True)
def _there(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "80")


def run(capsys, *words, code=0):
    if code:
        with pytest.raises(SystemExit) as stop:
            main(("predict", *words))
        assert stop.value.code == code
    else:
        main(("predict", *words))
    return capsys.readouterr()


def test_json_has_everything(capsys):
    said = json.loads(run(capsys, "nano.safetensors", "photos", "--json", "--top", "2").out)
    assert {Path(one["image"]).name for one in said["images"]} == set(NAMES)
    assert (said["by"], said["named by"], said["bad"]) == ("softmax", "model", [])
    for one in said["images"]:
        first, second = one["predictions"]
        assert first["probability"] >= second["probability"]
        assert first["name"] == ("[bold]cat[/bold]", "dog", "owl")[first["index"]]
    want = sl.predict("nano.safetensors", said["images"][0]["image"])
    assert said["images"][0]["predictions"][0]["probability"] == pytest.approx(want[0].probability)


def test_the_table_fits_and_shows_names_as_they_are(capsys):
    out = run(capsys, "nano.safetensors", "photos").out
    assert max(map(len, out.splitlines())) <= 80
    for name in (*NAMES, "[bold]cat[/bold]", "4 images in photos"):
        assert name in out
    assert out.count(" %") == 12
    long = Path("photos") / ("x" * 120 + ".png")
    Image.new("RGB", (8, 8)).save(long)
    try:
        out = run(capsys, "nano.safetensors", "photos").out
        assert max(map(len, out.splitlines())) <= 80
    finally:
        long.unlink()


def test_csv_can_be_read_back(capsys):
    rows = list(csv.DictReader(io.StringIO(run(capsys, "nano.safetensors", "photos", "--csv", "--top", "1").out)))
    assert {row["image"] for row in rows} == {f"photos/{name}" for name in NAMES}
    want = sl.predict("nano.safetensors", [row["image"] for row in rows], top=1)
    assert [row["name"] for row in rows] == [one.name for one in want]
    assert [float(row["probability"]) for row in rows] == pytest.approx(want.probabilities[:, 0], rel=1e-4)


def test_files_patterns_and_standard_input(capsys, monkeypatch):
    lines = "\n".join(["photos/plain.png", "", "photos/a[1].png", "photos/über 猫.png"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    said = json.loads(run(capsys, "nano.safetensors", "-", "photos/p*.png", "photos/a[1].png", "--json").out)
    names = [Path(one["image"]).name for one in said["images"]]
    assert names == ["plain.png", "a[1].png", "über 猫.png", "plain.png", "a[1].png"]


def test_an_image_on_standard_input_is_told_from_paths(capsys, monkeypatch):
    image = Path("photos/plain.png").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(image)))
    assert "one per line" in run(capsys, "nano.safetensors", "-", code=2).err


def test_bad_images_are_named_counted_and_passed_over(place, capsys, caplog):
    (place / "photos" / "not [an] image.png").write_text("text")
    (place / "empty.png").touch()
    try:
        words = ("nano.safetensors", "photos", "none.png", "empty.png", "--json")
        done = typed(place, *words)
        assert done.returncode == 0
        said = json.loads(done.stdout)
        assert len(said["images"]) == 4
        assert [Path(one["image"]).name for one in said["bad"]] == ["not [an] image.png", "none.png", "empty.png"]
        assert "bad image: photos/not [an] image.png is not an image" in done.stderr
        assert "bad image: empty.png is empty." in done.stderr
        assert "3 of 7 images could not be read." in done.stderr
        none = run(capsys, "nano.safetensors", "none.png", "photos/not [an] image.png", code=2)
        assert none.out == ""
        assert "bad image: There is no image none.png." in caplog.text
        assert none.err.strip().splitlines()[-1].startswith("sightline: None of the 2 images can be read.")
    finally:
        (place / "photos" / "not [an] image.png").unlink()


def typed(place, *words):
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    words = (sys.executable, "-m", "sightline", "predict", *words)
    return subprocess.run(words, cwd=place, env=surroundings, capture_output=True, text=True, check=False)


def test_assumed_names_are_said_to_be_assumed(capsys, tmp_path):
    sl.save(random_model(classes=1000), tmp_path / "thousand.safetensors")
    said = run(capsys, str(tmp_path / "thousand.safetensors"), "photos/plain.png", "--top", "1", "--json")
    assert json.loads(said.out)["named by"] == "imagenet-1k (assumed)"
    assert "those of ImageNet-1k are assumed" in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("no-such", "photos"), "no file or folder no-such"),
        (
            ("vit-nano4", "photos"),
            "needs trained ones. Weights for it: vit-nano4.cifar10",
        ),  # a variant has random weights
        (("nano.safetensors", "nothing.png"), "There is no image nothing.png"),
        (("nano.safetensors", "photos/*.gif"), "No file matches photos/*.gif"),
        (("nano.safetensors",), "Missing argument"),
        (("nano.safetensors", "photos", "--top", "0"), "top must be a positive whole number"),
        (("nano.safetensors", "photos", "--csv", "--json"), "exclude each other"),
    ],
)
def test_mistakes_are_one_sentence(capsys, words, sentence):
    said = run(capsys, *words, code=2)
    assert sentence in said.err
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
