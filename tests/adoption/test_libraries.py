"""Models of other libraries by name: timm:NAME, torchvision:NAME[:WEIGHTS], hf:NAME_OR_FOLDER."""

import builtins
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import sightline as sl
from tests import peers


@pytest.fixture
def offline_timm(monkeypatch):
    """timm's own builder with random weights, as if they had been in its cache."""
    timm, asked = peers.timm, []
    create = timm.create_model

    def from_cache(name, *, pretrained):
        asked.append((name, pretrained))
        return create(name)

    monkeypatch.setattr(timm, "create_model", from_cache)
    return asked


def test_timm_by_name(offline_timm):
    model = sl.observe.open_model("timm:test_vit.r160_in1k")
    assert offline_timm == [("test_vit.r160_in1k", True)]
    assert (model.config.library, model.config.kind, model.training) == ("timm", "vit", False)
    assert sl.observe.model_names(["timm:test_vit.r160_in1k"]) == ("timm:test_vit.r160_in1k",)


def test_torchvision_by_name_and_weights(monkeypatch):
    models = pytest.importorskip("torchvision.models", exc_type=ImportError)
    asked, build = [], models.get_model
    monkeypatch.setattr(models, "get_model", lambda name, weights: asked.append((name, weights)) or build(name))
    sl.adoption.from_library("torchvision:resnet18")
    sl.adoption.from_library("torchvision:resnet18:IMAGENET1K_V1")
    assert asked == [("resnet18", "DEFAULT"), ("resnet18", "IMAGENET1K_V1")]
    with pytest.raises(ValueError, match="no weights BEST for resnet18; expected one of IMAGENET1K_V1"):
        sl.adoption.from_library("torchvision:resnet18:BEST")


def test_folders_of_transformers(tmp_path):
    """What Sightline knows is loaded as its own; every other model is adopted."""
    t = peers.transformers
    small = t.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    t.ViTForImageClassification(small).save_pretrained(tmp_path / "vit")
    stages = t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=3)
    t.ResNetForImageClassification(stages).save_pretrained(tmp_path / "resnet")
    assert isinstance(sl.observe.open_model(f"hf:{tmp_path}/vit"), sl.models.ViT)
    resnet = sl.observe.open_model(f"hf:{tmp_path}/resnet")
    assert (resnet.config.kind, resnet.config.classes) == ("cnn", 3)
    with torch.no_grad():
        assert resnet(torch.zeros(1, 3, 64, 64)).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:test_vitt", "timm has no model test_vitt. Did you mean test_vit"),
        ("timm:", "names no model; expected timm:NAME"),
        ("torchvision:resnet19", "torchvision has no model resnet19. Did you mean resnet1"),
        ("hf:./nowhere", "nowhere"),
    ],
)
def test_mistakes_are_one_sentence(name, words):
    peers.timm, peers.torchvision  # noqa: B018 (skips without them)
    with pytest.raises(ValueError, match=words):
        sl.observe.open_model(name)


def test_without_network_and_without_library(offline_timm, monkeypatch):
    def unreachable(name, *, pretrained):
        raise OSError("no route to the hub")

    monkeypatch.setattr(peers.timm, "create_model", unreachable)
    monkeypatch.setattr("sightline.adoption.libraries._known", lambda host: True)
    with pytest.raises(ValueError, match=r"cannot be loaded by timm: no route.*must be in the cache of timm"):
        sl.observe.open_model("timm:test_vit")
    find = builtins.__import__
    monkeypatch.delitem(__import__("sys").modules, "timm")
    monkeypatch.setattr(
        "importlib.import_module", lambda name: find("nothing_of_this_name") if name == "timm" else find(name)
    )
    with pytest.raises(ValueError, match="timm is not installed; type pip install timm"):
        sl.adoption.from_library("timm:test_vit")


def test_a_hub_that_cannot_be_reached_is_not_tried_for_half_a_minute(offline_timm, monkeypatch):
    """Its library then looks into its cache only, and knows the network again afterwards."""
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("sightline.adoption.libraries._known", lambda host: False)
    asked = []

    def refused(name, **how):
        asked.append(constants.HF_HUB_OFFLINE)
        raise OSError("offline mode is enabled")

    monkeypatch.setattr(peers.timm, "create_model", refused)
    with pytest.raises(ValueError, match=r"cannot be loaded by timm: \S+ cannot be reached\. Without a network"):
        sl.adoption.from_library("timm:test_vit")
    assert asked == [True]
    assert constants.HF_HUB_OFFLINE is False


def test_the_server_that_cannot_be_reached_is_the_one_of_the_library(monkeypatch):
    """Weights of torchvision are not on the Hugging Face Hub."""
    pytest.importorskip("huggingface_hub")
    models = peers.torchvision.models
    monkeypatch.setattr("sightline.adoption.libraries._known", lambda host: False)

    def refused(name, *, weights):
        raise OSError("no address")

    monkeypatch.setattr(models, "get_model", refused)
    with pytest.raises(ValueError, match=r"by torchvision: download\.pytorch\.org cannot be reached"):
        sl.adoption.from_library("torchvision:resnet18")


def test_other_names_are_none_of_these():
    assert sl.adoption.from_library("vit-b16.augreg-i21k") is None
    assert sl.adoption.from_library("nets.py:small") is None


def test_live_models_have_no_size_to_choose(offline_timm):
    with pytest.raises(ValueError, match="leave out the size"):
        sl.observe.open_model("timm:test_vit", size=64)


def test_norms_of_the_gallery_have_the_epsilon_of_their_file(tmp_path):
    """Keras' weights of the ResNet-50 say 1e-3, not what keras.applications builds; nothing of a file is left over."""
    assert peers.torchvision
    gallery = runpy.run_path(str(Path(__file__).parents[2] / "docs/gallery/resnet50.py"))
    names = ["c/kernel", "c/bias", "n/gamma", "n/beta", "n/moving_mean", "n/moving_variance"]
    shapes = [[1, 1, 2, 3]] + [[3]] * 5
    values = [np.full(shape, 1.0 + i, np.float32) for i, shape in enumerate(shapes)]
    (tmp_path / "weights").write_bytes(b"".join(v.tobytes() for v in values))
    weights = [{"name": n, "shape": s} for n, s in zip(names, shapes)]
    norm = {"class_name": "BatchNormalization", "config": {"name": "n", "epsilon": 0.001}}
    about = {"modelTopology": {"model_config": {"config": {"layers": [norm]}}}}
    about["weightsManifest"] = [{"paths": ["weights"], "weights": weights}]
    (tmp_path / "model.json").write_text(json.dumps(about))
    held, conv, bn = gallery["tensors"](tmp_path), torch.nn.Conv2d(2, 3, 1, bias=False), torch.nn.BatchNorm2d(3)
    gallery["put"](held, conv, bn, ("c", "n"))
    assert bn.eps == 0.001
    assert not held
    x = torch.ones(1, 2, 1, 1)  # Keras: (2 + 2 - 5) / sqrt(6 + 1e-3) * 3 + 4
    got = bn.eval()(conv(x)).flatten().tolist()
    assert got == pytest.approx([(2 * 1.0 + 2 - 5) / (6 + 1e-3) ** 0.5 * 3 + 4] * 3)
