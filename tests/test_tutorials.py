"""The tutorial notebooks run from top to bottom, and what is saved in them is what the site shows."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sightline as sl
from tests import peers

DOCS = Path(__file__).parent.parent / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
PRIVATE = re.compile(r"/(?:home|root|tmp|work|Users)/")  # paths of a machine


def tool():
    spec = importlib.util.spec_from_file_location("tutorials", DOCS / "tools" / "tutorials.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(cell):
    return [sorted(output.get("data", {"stdout": None})) for output in cell["outputs"]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_saved_small_and_without_anybodys_paths(path):
    notebook = tool().read(path)
    shown = [cell for cell in code(notebook) if cell["outputs"]]
    assert len(shown) >= 5, "run docs/tools/tutorials.py"
    text = path.read_text(encoding="utf-8")
    assert len(text) < 900_000
    assert not PRIVATE.search(re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
    page = tool().to_markdown(notebook, path.name)
    assert page.startswith("# ")
    assert page.count("```python") == len(code(notebook))
    assert page.count("<img") == sum(
        str(cell["outputs"]).count("<img") + str(kinds(cell)).count("image/png") for cell in shown
    )
    assert f"]({path.name})" in page


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder of small drawings in place of photographs, and weights of models that know nothing."""
    desk = tmp_path_factory.mktemp("desk")
    scenes = sl.dataset("scenes/shape", num=24, size=32)
    for index, (pixels, label) in enumerate(scenes):
        place = desk / "photos" / scenes.classes[label % 3] / f"{index}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place)
    for name in ("vit-nano4", "bit-nano"):
        sl.save(peers.fill(sl.build(name)), desk / f"{name}.safetensors")
    return desk


def parameters(name):
    if name == "papers":
        return {"vit": "vit-nano4.safetensors", "bit": "bit-nano.safetensors", "images": 16, "steps": 2}
    if name == "photographs":
        return {"model": "vit-nano4.safetensors", "each": 4}
    np.savez("timm.npz", **{k: v.numpy() for k, v in peers.timm.create_model("test_vit").state_dict().items()})
    return {"name": "test_vit", "checkpoint": "timm.npz", "measured": 4}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, desk, monkeypatch):
    monkeypatch.chdir(desk)
    saved = tool().read(path)
    fresh = tool().run(saved, **parameters(path.stem))
    assert [kinds(cell) for cell in code(fresh)] == [kinds(cell) for cell in code(saved)]


def test_a_cell_prints_and_shows_its_last_expression():
    said = tool().outputs("a = 2\nprint(a)\na + 1", {}, 1)
    assert said[0]["text"] == ["2\n"]
    assert said[1]["data"] == {"text/plain": ["3"]}
    assert tool().outputs("a = 2", {}, 1) == []
