"""Models that come with the package: small, described, and the same without a network."""

import re
from pathlib import Path

import pytest
import torch

import sightline as sl
from sightline.weights.containers.files import open_file
from sightline.weights.containers.header import from_text


@pytest.mark.parametrize("name", list(sl.weights.shipped()))
def test_a_shipped_model_loads_and_says_what_it_is(name, monkeypatch):
    monkeypatch.setattr("sightline.data.download.download", None)  # nothing is fetched
    model = sl.load(name)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.loaded.verified is not None
    assert len(model.class_names) == model.config.classes
    about = from_text(open_file(Path(sl.weights.shipped()[name].source)).header["sightline"]).about
    assert {"license", "command", "data", "accuracy", "training"} <= about.keys()
    assert about["command"].startswith("sightline train")
    assert re.search(r"one seed|mean of \d+ seeds", sl.weights.zoo(name)[0].about)


def test_they_are_few_and_small():
    files = [Path(entry.source) for entry in sl.weights.shipped().values()]
    assert len(files) >= 3
    assert sum(f.stat().st_size for f in files) <= 6_000_000


def test_packing_halves_the_file_and_keeps_the_answers(tmp_path):
    model = sl.build("bit-nano", classes=3)
    torch.nn.init.normal_(model.head.weight)
    model.class_names = ("a", "b", "c")
    whole = sl.save(model, tmp_path / "whole.safetensors")
    packed = sl.weights.pack(model, tmp_path / "packed.safetensors", about={"license": "mine"})
    assert packed.stat().st_size < 0.6 * whole.stat().st_size
    x = torch.rand(2, 3, 32, 32)
    again = sl.load(packed)
    assert again.class_names == ("a", "b", "c")
    with torch.no_grad():
        assert (again(x) - model.eval()(x)).abs().max() < 0.02 * again(x).abs().max() + 1e-3
