"""Models as files for other runtimes: any batch, names and preprocessing inside, the same numbers."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import sightline as sl
from sightline.weights import exporting
from tests import peers


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch):
    """One turn of both runtimes: these tests ask for no speed."""
    monkeypatch.setattr(exporting, "TURNS", 0)
    monkeypatch.setattr(exporting, "SECONDS", 0.0)


# Images, stems, widths and stages as published, with fewer of the blocks and units that repeat;
# benchmarks/export.py has all variants in full depth, in all runtimes
FEW = {
    "vit-nano4": {"depth": 1},
    "vit-ti16": {"depth": 2},
    "bit-r50x1": {"units": (1, 1, 1, 1)},
    "r26-vit-s32": {"depth": 1, "units": (1, 1, 1, 1)},
}


def model(name="vit-nano4"):
    built = peers.fill(sl.build(name, classes=3, **FEW[name]))
    built.class_names = ("cat", "dog", "<b>")
    return built


def probabilities(trained, pixels):
    mean, std = (torch.tensor(v).reshape(1, 3, 1, 1) for v in (trained.image.mean, trained.image.std))
    with torch.no_grad():
        return trained.eval()((torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - mean) / std).softmax(1).numpy()


def test_onnx_takes_bytes_in_any_batch_and_says_what_it_is(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    trained = model("vit-ti16")
    done = sl.weights.export(trained, tmp_path / "vit.onnx", to="onnx", pixels=True)
    assert done.difference < 1e-4
    session = runtime.InferenceSession(tmp_path / "vit.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 224, 224, 3), dtype=np.uint8)
    np.testing.assert_allclose(session.run(None, {"images": pixels})[0], probabilities(trained, pixels), atol=1e-5)
    meta = session.get_modelmeta().custom_metadata_map
    assert json.loads(meta["classes"]) == ["cat", "dog", "<b>"]
    assert meta["input"] == "uint8 (batch, height 224, width 224, channel)"
    assert json.loads(meta["preprocessing"])["mean"] == list(trained.image.mean)
    assert [f.name for f in tmp_path.iterdir()] == ["vit.onnx"]


def test_classes_without_names_are_named_as_predict_names_them(tmp_path):
    """1,000 classes are taken for ImageNet's, and the file says that they were; others are a number."""
    for classes, source in ((1000, "imagenet-1k (assumed)"), (7, "number")):
        nameless = sl.build("vit-nano4", classes=classes, depth=1)
        meta = sl.weights.export(nameless, tmp_path / f"{classes}.pt2", to="torch").meta
        assert meta["named_by"] == source
        names = sl.predict(nameless, np.zeros((32, 32, 3), np.uint8)).classes
        assert meta["classes"] == (list(names) if classes == 1000 else classes)
    features = sl.weights.export(sl.build("vit-nano4", classes=0, depth=1), tmp_path / "0.pt2", to="torch").meta
    assert features["classes"] == 0


def test_openvino(tmp_path):
    openvino = pytest.importorskip("openvino")
    trained = model("bit-r50x1")
    assert sl.weights.export(trained, tmp_path / "bit.xml", to="openvino", pixels=True).difference < 1e-4
    read = openvino.Core().read_model(tmp_path / "bit.xml")
    assert json.loads(read.get_rt_info(["sightline", "classes"]).value) == ["cat", "dog", "<b>"]
    compiled = openvino.Core().compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    pixels = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), dtype=np.uint8)
    np.testing.assert_allclose(compiled(pixels)[0], probabilities(trained, pixels), atol=1e-5)


def test_torch_needs_no_sightline(tmp_path):
    trained = model()
    sl.weights.export(trained, tmp_path / "vit.pt2", to="torch")
    extra = {"sightline.json": ""}
    loaded = torch.export.load(tmp_path / "vit.pt2", extra_files=extra).module()
    images = torch.randn(6, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), trained.eval()(images))
    assert json.loads(extra["sightline.json"])["output"] == "logits"


def test_adopted_models_are_exported_as_well(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    adopted = sl.adopt(net, image=sl.ImageSpec(size=(32, 32)))
    assert sl.weights.export(adopted, tmp_path / "net.pt2", to="torch").difference < 1e-4


@pytest.mark.parametrize("factor", [1 + 1e-3, float("nan")])
def test_what_computes_something_else_is_not_kept(tmp_path, monkeypatch, factor):
    wrong = exporting.WRITERS["torch"]

    def write(program, path, meta):
        run = wrong(program, path, meta)
        return lambda images: run(images) * factor

    monkeypatch.setitem(exporting.WRITERS, "torch", write)
    with pytest.raises(ValueError, match=r"torch computes something else.*was not written"):
        sl.weights.export(model(), tmp_path / "vit.pt2", to="torch")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"to": "tflite"}, "one of onnx, openvino, torch; got 'tflite'"),
        ({"path": "vit.onnx"}, "torch is written to a .pt2 file; got 'vit.onnx'"),
        ({"model": nn.Linear(2, 2)}, "once it is adopted"),
        ({"model": "headless", "pixels": True}, "gives no probabilities"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, change, words):
    how = {"model": model(), "path": "vit.pt2", "to": "torch", **change}
    trained = sl.build("vit-nano4", classes=0) if how["model"] == "headless" else how["model"]
    with pytest.raises(ValueError, match=words):
        sl.weights.export(trained, tmp_path / how["path"], to=how["to"], pixels=how.get("pixels", False))
    assert not list(tmp_path.iterdir())


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs onnx: pip install 'sightline\[export\]'"):
        sl.weights.export(model(), tmp_path / "vit.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bit-r50x1", "r26-vit-s32"])
def test_published_sizes(tmp_path, name):
    pytest.importorskip("onnxruntime")
    assert sl.weights.export(model(name), tmp_path / "model.onnx").difference < 1e-4
    assert (tmp_path / "model.onnx").stat().st_size
