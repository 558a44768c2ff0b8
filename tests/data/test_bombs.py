"""A small file that would need much memory is a bad image, named and counted like others, on every path."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import sightline as sl
from sightline.data.images import MAX_ASPECT_RATIO, MAX_RESIZED_PIXELS, check_size, resize_and_crop, resized_size
from tests.data import exploding

BOMBS = ("12000x1", "1x12000", "60000x2")
needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from Linux's /proc")
MOST = 60  # MB that a path may take; the whole image of 12000 x 1, resized to 224 pixels, has 2,400
ROOT = Path(__file__).parents[2]


def dataset(folder, size):
    (folder / "a").mkdir(parents=True)
    for i in range(2):
        noise = np.random.default_rng(i).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "a" / f"{i}.png")
    Image.new("RGB", size).save(folder / "a" / "bomb.png")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What every path says of every bomb, in a process whose memory is limited."""
    root = tmp_path_factory.mktemp("bombs")
    for name in ("good", *BOMBS):
        dataset(root / name, (50, 40) if name == "good" else tuple(int(n) for n in name.split("x")))
    command = [sys.executable, "-m", "tests.data.exploding", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@needs_proc
@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("path", exploding.PATHS)
def test_a_long_thin_image_is_refused_by_name_and_takes_no_memory(path, bomb, told):
    found = told[f"{bomb} {path}"]
    assert found["megabytes"] < MOST
    if path == "sheet":
        assert found["said"] == "crossed out"
        return
    assert found["said"].count(f"{' x '.join(bomb.split('x'))} pixels") == 1
    assert f"{MAX_ASPECT_RATIO} times" in found["said"]
    assert "bomb" in found["said"] or path in ("looking at what is opened", "looking at an array")


@given(st.integers(1, 300), st.integers(1, 30_000))
def test_the_ratio_decides(short, long):
    if long > MAX_ASPECT_RATIO * short:
        with pytest.raises(sl.data.BadImage, match="crop it first"):
            check_size((short, long), "x.png")
    elif long >= short:
        check_size((long, short), "x.png")


@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 64), st.sampled_from([1.0, 0.875]))
def test_what_is_allowed_is_resized_within_bounds(width, height, size, crop):
    """The whole image that evaluation resizes to, before it cuts the center."""
    wide, high = resized_size((width, height), sl.ImageSpec(size=(size, size), crop=crop))
    assert wide * high <= MAX_ASPECT_RATIO * (size / crop) ** 2


def test_a_panorama_at_a_large_size_is_cut_without_the_whole(monkeypatch):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (10, 800, 3), dtype=np.uint8))
    spec = sl.ImageSpec(size=(64, 64), interpolation="bilinear")
    exact = resize_and_crop(image, spec).astype(int)
    monkeypatch.setattr("sightline.data.images.MAX_RESIZED_PIXELS", 64 * 64)
    cut = resize_and_crop(image, spec).astype(int)
    assert cut.shape == exact.shape
    assert np.abs(cut - exact).mean() < 1
    huge = Image.new("RGB", (100, 1), "red")
    assert MAX_RESIZED_PIXELS < 100 * 1024 * 1024
    assert (resize_and_crop(huge, sl.ImageSpec(size=(1024, 1024))) == (255, 0, 0)).all()


@needs_proc
def test_a_batch_holds_one_decoded_image_at_a_time(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("RGB", (2000, 2000), "red").save(tmp_path / "a" / "0.png", compress_level=1)
    for i in range(1, 12):
        shutil.copyfile(tmp_path / "a" / "0.png", tmp_path / "a" / f"{i}.png")
    code = (
        "import sys, torch, sightline as sl; from tests.data.exploding import status\n"
        "torch.set_num_threads(1)\n"
        "b = sl.Folder(sys.argv[1]).batches(sl.ImageSpec(size=(32, 32)), batch=12)\n"
        "start = status('VmHWM'); next(iter(b)); print(status('VmHWM') - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert float(done.stdout) < 80, "each has 16 MB"
