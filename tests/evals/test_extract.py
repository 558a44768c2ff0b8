"""One pass: the right tensors in the right order, whatever the batch, the worker or the accident on the way."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

import sightline as sl
from sightline.evals import extraction as room
from sightline.observe.selection import like_last
from tests.evals.makers import random_model, scenes

MODELS = ("vit-nano4", "bit-nano", "vit-nano4-gap")


def make(name):
    return random_model("vit-nano4", pool="gap") if name.endswith("gap") else random_model(name)


def pixels(model, dataset):
    return torch.cat([x for x, _ in dataset.batches(model.image, batch=len(dataset))])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tokens", ["pooled", "gap", "mean", "first", "all"])
def test_what_is_kept_is_what_the_model_says(name, tokens):
    model, data = make(name), scenes(num=7)
    with torch.no_grad():
        f = model.features(pixels(model, data))
    every = torch.cat([f.prefix, f.tokens], 1)
    expected = {
        "pooled": f.pooled,
        "gap": f.tokens.mean(1),
        "mean": every.mean(1),
        "first": every[:, 0],
        "all": every,
    }[tokens]
    e = sl.extract(model, data, tokens=tokens, batch=3)
    torch.testing.assert_close(e.features, expected, atol=5e-5, rtol=1e-5)  # another batch: 5e-6 on some CPUs
    assert e.labels.tolist() == data.labels.tolist()
    assert e.classes == data.classes
    if tokens == "all":
        assert e.grids["features"] == f.grid
        assert e.prefix["features"] == f.prefix.shape[1]


@pytest.mark.parametrize("name", MODELS)
def test_many_layers_in_one_pass_are_those_that_record_sees(name, monkeypatch):
    model, data = make(name), scenes(num=5)
    calls = []
    whole = model.features
    monkeypatch.setattr(model, "features", lambda x: (calls.append(len(x)), whole(x))[1])
    e = sl.extract(model, data, layers="blocks", tokens="gap", batch=5)
    assert calls.count(5) == 1
    with torch.no_grad(), sl.record(model, *e.layers) as tape:
        whole(pixels(model, data))
    for path, value in e.layers.items():
        said = tape[path]
        mean = said.mean((2, 3)) if said.ndim == 4 else said[:, said.shape[1] - 64 :].mean(1)
        torch.testing.assert_close(value, mean, atol=5e-5, rtol=1e-5)
    assert len(e.layers) == len({p.block for p in sl.anatomy(model) if p.block is not None})


def test_layers_by_number_path_and_glob():
    model, data = make("vit-nano4"), scenes(num=3)
    e = sl.extract(model, data, layers=[-1, "blocks.0.attn.q", "embed", "pooled", "features"], tokens="gap")
    assert list(e.layers) == ["blocks.5.mlp_sum", "blocks.0.attn.q", "embed", "pooled", "features"]
    assert {v.shape for v in e.layers.values()} == {(3, 64)}
    torch.testing.assert_close(e["embed"], sl.extract(model, data, layers="embed", tokens="all")["embed"].mean(1))
    for wrong in ("nothing.*", 6, []):
        with pytest.raises(ValueError, match=r"matches|no block|empty"):
            sl.extract(model, data, layers=wrong)
    with pytest.raises(ValueError, match="probabilities"):
        sl.extract(model, data, layers="blocks.0.attn.probs")
    with pytest.raises(ValueError, match="class token"):
        sl.extract(make("bit-nano"), data, tokens="cls")
    with pytest.raises(ValueError, match="tokens is one of"):
        sl.extract(model, data, tokens="best")
    with pytest.raises(ValueError, match=r"sl\.adopt"):
        sl.extract(torch.nn.Linear(2, 2), data)


def test_results_do_not_depend_on_batch_or_workers():
    model, train, test = make("vit-nano4"), scenes(num=60), scenes(num=40, split="test")
    found = []
    for batch, workers in ((64, 0), (7, 0), (16, 2)):
        both = [sl.extract(model, d, batch=batch, workers=workers) for d in (train, test)]
        found.append((both[0].features, sl.fewshot(*both, shots=(1, 5), seeds=3)))
    for features, few in found[1:]:
        torch.testing.assert_close(features, found[0][0], atol=2e-5, rtol=1e-5)
        assert np.array_equal(few.accuracy, found[0][1].accuracy)


def test_mode_and_gradients_are_left_as_they_were():
    model = make("vit-nano4").train()
    e = sl.extract(model, scenes(num=3))
    assert model.training
    assert not e.features.is_inference()
    assert not e.features.requires_grad


def test_a_map_is_brought_to_the_last_size_as_the_paper_does():
    x = torch.arange(2 * 8 * 16 * 16.0).reshape(2, 8, 16, 16)
    y = like_last(x, channels=32, grid=(4, 4))  # 8 channels: 2 x 2 patches make 32
    assert y.shape == (2, 32, 4, 4)
    torch.testing.assert_close(y.unflatten(1, (8, 4)).mean(2), torch.nn.functional.adaptive_avg_pool2d(x, (4, 4)))
    model, data = make("bit-nano"), scenes(num=3)
    e = sl.extract(model, data, layers="blocks", tokens="all", maps="last")
    last = model.features(pixels(model, data)).grid
    assert set(e.grids.values()) == {last}
    assert len({v.shape[1] for v in e.layers.values()}) == 1


def test_a_file_is_read_lazily_and_is_plain_safetensors(tmp_path):
    model, data, path = make("vit-nano4"), scenes(num=9), tmp_path / "deep" / "f.safetensors"
    there = sl.extract(model, data, layers=[0, "features"], tokens="all", out=path, batch=4)
    here = sl.extract(model, data, layers=[0, "features"], tokens="all", batch=4)
    for name in here.layers:
        assert torch.equal(there[name], here[name])
    assert (there.grids, there.prefix, there.classes) == (here.grids, here.prefix, here.classes)
    assert np.array_equal(there.labels, here.labels)
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("features"), here["features"])
    assert [p.name for p in path.parent.iterdir()] == ["f.safetensors"]
    again = here.save(tmp_path / "copy.safetensors")
    assert torch.equal(again["features"], here["features"])
    torch.testing.assert_close(there.reduce("gap")["features"], sl.extract(model, data, tokens="gap").features)
    assert there.take([3, 1]).labels.tolist() == [3, 1]
    with pytest.raises(ValueError, match="not a file of features"):
        sl.evals.FeatureTable.read(__file__)


def test_a_stopped_pass_goes_on_where_it_stopped(tmp_path, monkeypatch):
    model, data, path = make("vit-nano4"), scenes(num=20), tmp_path / "f.safetensors"
    whole, seen = model.features, []

    def features(x):
        if len(seen) == 3:  # a blank image and two batches
            raise KeyboardInterrupt
        seen.append(len(x))
        return whole(x)

    monkeypatch.setattr(model, "features", features)
    with pytest.raises(KeyboardInterrupt):
        sl.extract(model, data, out=path, batch=5)
    assert not path.exists()
    assert json.loads((tmp_path / ".f.safetensors.part.json").read_text())["done"] == 10
    seen.clear()
    monkeypatch.setattr(model, "features", lambda x: (seen.append(len(x)), whole(x))[1])
    e = sl.extract(model, data, out=path, batch=5)
    assert seen.count(5) == 2  # the other call looks at a blank image
    monkeypatch.undo()
    assert torch.equal(e.features, sl.extract(model, data, batch=5).features)
    monkeypatch.setattr(room.ExtractionPass, "run", None)  # it is all there: no pass is made
    assert torch.equal(sl.extract(model, data, out=path).features, e.features)
    with pytest.raises(ValueError, match="another model"):
        sl.extract(make("bit-nano"), data, out=path)
    with pytest.raises(ValueError, match="another model"):
        sl.extract(model, scenes(num=19), out=path)


def test_a_part_of_another_job_is_not_taken_up(tmp_path, monkeypatch):
    model, path = make("vit-nano4"), tmp_path / "f.safetensors"
    run = room.ExtractionPass.run

    def half(self, dataset, store, **settings):
        run(self, dataset.subset(indices=range(5)), store, **settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(room.ExtractionPass, "run", half)
    with pytest.raises(KeyboardInterrupt):
        sl.extract(model, scenes("texture", num=10), out=path, batch=5)
    monkeypatch.undo()
    e = sl.extract(model, scenes("shape", num=10), out=path, batch=5)
    assert torch.equal(e.features, sl.extract(model, scenes("shape", num=10), batch=5).features)


def test_adopted_models_are_measured_alike():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.Conv2d(8, 12, 3, 2), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(12, 5),
    )  # fmt: skip
    model = sl.adopt(net, image=sl.ImageSpec(size=(32, 32)))
    e = sl.extract(model, scenes(num=4), tokens="all")
    assert e.features.shape == (4, 49, 12)
    torch.testing.assert_close(e.reduce("gap").features, sl.extract(model, scenes(num=4)).features)


def test_features_from_elsewhere_are_checked():
    e = sl.evals.FeatureTable.of(torch.eye(3, requires_grad=True), torch.arange(3))
    assert not e.features.requires_grad
    assert len(e.take([])) == 0
    assert e.take(np.array([True, False, True])).labels.tolist() == [0, 2]
    with pytest.raises(ValueError, match="n labels"):
        sl.evals.FeatureTable.of(np.zeros((3, 2)), [0, 1])
    with pytest.raises(ValueError, match="class numbers"):
        sl.evals.FeatureTable.of(np.zeros((2, 2)), [0, -1])
    with pytest.raises(ValueError, match="but 1 classes"):
        sl.evals.FeatureTable.of(np.zeros((2, 2)), [0, 1], classes=("a",))
    with pytest.raises(ValueError, match="no layer"):
        sl.evals.FeatureTable.of(np.zeros((2, 2)), [0, 1])["other"]


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64])
def test_labels_may_be_whole_numbers_of_any_kind(kind):
    made = sl.evals.FeatureTable.of(np.eye(3), np.array([0, 2, 2], kind))
    assert (made.labels.tolist(), made.labels.dtype, made.classes) == ([0, 2, 2], np.int64, ("0", "1", "2"))
    assert sl.evals.FeatureTable.of(np.eye(3)[:0], np.zeros(0, kind)).classes == ()
