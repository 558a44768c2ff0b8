"""A model from whatever a user has, and what it is called."""

import numpy as np
import pytest
import torch
from torch import nn

import sightline as sl

FILE = """
from torch import nn
import sightline as sl

def small():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

def adopted():
    return sl.adopt(small(), image=sl.ImageSpec(size=(32, 32)))

def ours():
    return sl.build("vit-nano4", classes=4)

def nothing():
    return None
"""


@pytest.fixture
def trained(tmp_path):
    model = sl.build("vit-nano4", classes=4, seed=3)
    nn.init.normal_(model.head.weight)
    sl.save(model, tmp_path / "run" / "model.safetensors")
    return model


def same(a, b):
    return all(torch.equal(x, b.state_dict()[name]) for name, x in a.state_dict().items())


def test_files_folders_and_modules(trained, tmp_path):
    for source in (tmp_path / "run", str(tmp_path / "run" / "model.safetensors")):
        assert same(trained, sl.observe.open_model(source))
    assert sl.observe.open_model(trained) is trained


def test_a_variant_is_untrained_and_says_so(caplog):
    model = sl.observe.open_model("vit-nano4", size=16, classes=7)
    assert "untrained" in caplog.text
    assert (model.config.size, model.config.classes, model.training) == ((16, 16), 7, False)
    with pytest.raises(ValueError, match=r"vit-nano4 alone is a variant.*vit-nano4\.cifar10"):
        sl.observe.open_model("vit-nano4", untrained=False)


def test_a_folder_comes_before_a_variant_of_the_same_name(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").rename("bit-nano")
    assert same(trained, sl.observe.open_model("bit-nano"))


def test_a_function_of_a_file(tmp_path):
    (tmp_path / "nets.py").write_text(FILE)
    assert isinstance(sl.observe.open_model(f"{tmp_path}/nets.py:ours"), sl.models.ViT)
    with pytest.raises(ValueError, match=r"nets\.py is Python: name the function.*nets\.py:FUNCTION"):
        sl.observe.open_model(f"{tmp_path}/nets.py")
    assert sl.observe.open_model(f"{tmp_path}/nets.py:adopted").config.classes == 4
    for function, words in (("nothing", "returned None"), ("nobody", "no function 'nobody'")):
        with pytest.raises(ValueError, match=words):
            sl.observe.open_model(f"{tmp_path}/nets.py:{function}")


def test_what_is_no_model():
    with pytest.raises(ValueError, match="A model is a module"):
        sl.observe.open_model(np.zeros(3))


def test_predict_opens_models_the_same_way(tmp_path):
    (tmp_path / "nets.py").write_text(FILE)
    predictions = sl.predict(f"{tmp_path}/nets.py:ours", np.zeros((32, 32, 3), np.uint8))
    assert len(predictions.classes) == 4


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["runs/a", "runs/b"], ("a", "b")),
        (["runs/a/model.safetensors", "runs/b/model.safetensors"], ("a", "b")),
        (["runs/a", "other/a"], ("runs/a", "other/a")),
        (["runs/lr0.1", "runs/lr0.2"], ("lr0.1", "lr0.2")),
        (["vit.safetensors", "bit.safetensors"], ("vit", "bit")),
        (["vit-b16.augreg-i21k", "vit-b16.augreg-i1k"], ("vit-b16.augreg-i21k", "vit-b16.augreg-i1k")),
        (["nets.py:a", "nets.py:b"], ("a", "b")),
        (["one.py:a", "two.py:a"], ("one/a", "two/a")),
        (["vit-b16", "vit-b16"], ("vit-b16 (1)", "vit-b16 (2)")),
        (["runs/a/."], ("a",)),
    ],
)
def test_names(sources, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/a", "runs/b", "other/a", "runs/lr0.1", "runs/lr0.2"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.safetensors").touch()
    for file in ("vit.safetensors", "bit.safetensors"):
        (tmp_path / file).touch()
    assert sl.observe.model_names(sources) == names


def test_a_file_runs_once_for_all_of_its_functions(tmp_path):
    count = f"from pathlib import Path\np = Path({str(tmp_path / 'runs')!r})\np.write_text(p.read_text() + 'x')\n"
    (tmp_path / "runs").write_text("")
    (tmp_path / "nets.py").write_text(count + FILE)
    for function in ("ours", "adopted", "ours"):
        sl.observe.open_model(f"{tmp_path}/nets.py:{function}")
    assert (tmp_path / "runs").read_text() == "x"
