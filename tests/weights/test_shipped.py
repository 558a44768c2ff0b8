"""Models that come with the package: small, described, and the same without a network."""

import re
from pathlib import Path

import pytest
import torch

import sightline as sl
from benchmarks import ship
from sightline.weights.card import model_card
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
    assert {"license", "command", "data", "accuracy", "seeds", "training"} <= about.keys()
    assert about["command"].startswith(("sightline train", "python -m benchmarks.records"))
    assert re.fullmatch(r"\d\d\.\d % of 10,000 test images \(this file\)", about["accuracy"])
    assert re.search(r"one seed|mean of \d+ seeds", sl.weights.zoo(name)[0].about)
    assert sl.weights.shipped()[name].facts == {k: v for k, v in about.items() if k != "stored"}


def test_the_card_of_a_shipped_model_has_the_facts_of_its_header():
    model = sl.load("vit-nano4.cifar10")
    facts = sl.weights.shipped()["vit-nano4.cifar10"].facts
    card = model_card(model, name="copy")
    assert "\nlicense: apache-2.0\n" in card
    assert all(facts[key] in card for key in ("command", "accuracy", "seeds", "training"))
    with torch.no_grad():
        model.head.bias += 1  # other weights: nothing is known of them
    assert facts["accuracy"] not in model_card(model, name="copy")


def test_what_a_header_says_is_measured_on_the_file_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(ship, "FOLDER", tmp_path)
    data = sl.dataset("scenes/shape", "test", num=20, size=32)
    path = sl.weights.pack(sl.build("vit-nano4", classes=10), tmp_path / "vit-nano4.x.safetensors", about={"a": "b"})
    before = sl.load(path).state_dict()
    top1 = ship.state_accuracy(path, data)
    assert top1 == sl.evaluate(sl.load(path), data).top1
    head = from_text(open_file(path).header["sightline"])
    assert head.about == {
        "a": "b",
        "stored": "float16",
        "accuracy": f"{100 * top1:.1f} % of 20 test images (this file)",
    }
    assert sl.load(path).loaded.verified is not None
    assert all(torch.equal(value, before[key]) for key, value in sl.load(path).state_dict().items())


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
