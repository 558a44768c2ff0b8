"""Who a result is about: fingerprints of models and images, in every result, and what is kept by them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.observe.identity import distinct_names, fingerprint, identify
from sightline.observe.images import ImageSource
from sightline.observe.model import observe
from tests import peers


def scenes(num=16, **settings):
    return sl.dataset("scenes/shape", "test", num=num, size=32, **settings)


def small(seed=0, **changes):
    return peers.fill(sl.build("vit-nano4", classes=10, depth=2, **changes), seed=seed, std=0.1)


def test_the_fingerprint_changes_with_weights_and_configuration():
    model = small()
    same = small()
    assert fingerprint(model) == fingerprint(same)
    with torch.no_grad():
        same.head.bias[3] += 1e-6
    assert fingerprint(same) != fingerprint(model)
    gelu = small(gelu="tanh")  # the same weights, another function
    assert gelu.state_dict().keys() == model.state_dict().keys()
    assert fingerprint(gelu) != fingerprint(model)
    timm = peers.timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5)
    adopted = sl.adopt(timm)
    assert fingerprint(adopted) == fingerprint(sl.adopt(timm))


def test_the_identity_says_kind_and_pool():
    kinds = {name: identify(sl.build(name)) for name in ("vit-nano4", "bit-nano", "conv-vit-nano4")}
    assert [(m.kind, m.pool) for m in kinds.values()] == [("vit", "cls"), ("cnn", "map"), ("hybrid", "cls")]
    assert identify(small(pool="gap"), name="mine").pool == "gap"
    assert identify(small(), name="mine").name == "mine"


def test_names_are_told_apart_by_folder_or_letter():
    assert distinct_names(["a", "b"], ["", ""]) == ("a", "b")
    assert distinct_names(["ViT", "ViT"], ["runs/one/model.safetensors", "runs/two/model.safetensors"]) == (
        "ViT (one)",
        "ViT (two)",
    )
    assert distinct_names(["ViT", "ViT"], ["", "runs/two"]) == ("ViT (a)", "ViT (b)")


def test_images_have_a_fingerprint():
    data = scenes()

    def of(data, **choice):
        return ImageSource(data=data, batch=4, **choice).fingerprint()

    assert of(data) == of(scenes()) == of(data, n=16) == of(data, n=99, seed=3) != ""
    assert len({of(data), of(data, n=8), of(data, n=8, seed=1), of(scenes(num=17))}) == 4
    pixels = torch.rand(4, 3, 32, 32)
    changed = pixels.clone()
    changed[3, 0, 0, 0] += 1e-3
    assert of(pixels) == of(pixels.clone()) != of(changed)
    assert of(list(pixels)) == of(list(pixels.clone())) != of(list(changed))
    assert of(iter(list(pixels))) == ""


def test_results_say_what_they_are_about():
    a, b, data = small(), peers.fill(sl.build("bit-nano", classes=10), std=0.1), scenes()
    both = sl.cka(a, b, data, layers="blocks").about
    assert [m.fingerprint for m in both.models] == [fingerprint(a), fingerprint(b)]
    assert [m.kind for m in both.models] == ["vit", "cnn"]
    assert both.images == data.fingerprint()
    assert len(sl.cka(a, None, data, layers="blocks").about.models) == 1
    assert sl.attention_distance(a, data, n=8).about.images != both.images
    train = sl.dataset("scenes/shape", num=60, size=32)
    known, asked = sl.extract(a, train), sl.extract(a, data)
    few = sl.fewshot(known, asked, shots=(1,), seeds=1).about
    assert few.models == (identify(a),)
    assert few.images == f"{train.fingerprint()}+{data.fingerprint()}"
    assert known.take([0, 1]).about.images not in ("", known.about.images)
    assert (
        sl.fewshot((known.features, known.labels), (asked.features, asked.labels), shots=(1,)).about == sl.spec.About()
    )
    assert sl.evaluate(a, data).about == sl.spec.About(models=(identify(a),), images=data.fingerprint())
    assert sl.analysis.layer_probes({"mine": a}, train, data, shots=1).about.models == (identify(a, name="mine"),)


def test_features_in_a_file_know_their_model(tmp_path):
    e = sl.extract(small(), scenes(), out=tmp_path / "f.safetensors")
    assert sl.evals.FeatureTable.read(tmp_path / "f.safetensors").about == e.about
    assert e.about.models[0].fingerprint
    with pytest.raises(ValueError, match="another model"):
        sl.extract(small(seed=1), scenes(), out=tmp_path / "f.safetensors")


def test_a_kept_result_is_that_of_the_same_model_and_images(tmp_path):
    def state(model, data):
        return sl.look(model, data, tmp_path, only=["residual"], n=8, name="one name")[0].state

    assert state(small(), scenes()) == "done"
    assert state(small(), scenes()) == "kept"
    assert state(small(seed=1), scenes()) == "done"
    assert state(small(seed=1), scenes(num=12)) == "done"
    about = sl.Result.load(tmp_path / "residual.npz").about
    assert (about.names, about.analysis) == (("one name",), "residual")


def test_two_models_of_one_name_are_told_apart(tmp_path):
    sl.compare(small(), small(seed=1), scenes(), tmp_path, only=["cka", "residual-b"], n=8)
    pair = sl.Result.load(tmp_path / "cka.npz").about
    assert pair.names == ("ViT 2x64 (a)", "ViT 2x64 (b)")
    assert len({m.fingerprint for m in pair.models}) == 2
    assert sl.Result.load(tmp_path / "residual-b.npz").about.models == pair.models[1:]


def test_no_blank_image_is_sent_twice(tmp_path):
    """One observation per model: every analysis of one call shares it."""
    models = [small(), peers.fill(sl.build("bit-nano", classes=10, units=(1, 1)), std=0.1)]
    stems = [models[0].embed, models[1].root]  # the first layer sees the image, whichever method was called
    blank = {id(stem): 0 for stem in stems}

    def count(module, args):
        if id(module) in blank:  # not of a copy with scrambled weights
            blank[id(module)] += int(not args[0].any())

    for stem in stems:
        stem.register_forward_pre_hook(count)
    rows = sl.look(models[0], scenes(), tmp_path / "look", n=12)
    assert {row.name for row in rows if row.state != "done"} == {"outlier-tokens-register"}  # it has no outliers
    assert list(blank.values()) == [2, 0]  # to observe it, and to read the position embeddings off a blank image
    sl.compare(*models, scenes(), tmp_path / "compare", n=12)
    assert list(blank.values()) == [3, 2]  # of a CNN the logit lens measures once which units match the last


def test_an_observation_is_not_made_again():
    s = observe(small())
    assert observe(s) is s
    assert s.with_name("x").id == replace(s.id, name="x")
    cnn = observe(sl.build("bit-nano"))
    assert observe(cnn, image=replace(cnn.image, size=(64, 64))).grid == (8, 8)


def test_files_of_version_1_load_without_fingerprints(tmp_path):
    maps = np.ones((1, 4, 4)) / 16
    how = {"n": 8, "side": "before", "analysis": "receptive-field-before"}
    how["models"] = [{"name": "small ViT", "kind": "vit", "pool": "cls"}]
    values = {"title": "t", "caption": "c", "how": how, "names": ["a"], "radii_error": None, "own_error": None}
    head = json.dumps({"type": "ReceptiveField", "version": 1, "values": values})
    arrays = {"maps": maps, "centers": np.ones((1, 2)), "radii": np.ones((1, 2)), "own": np.ones(1)}
    np.savez(tmp_path / "old.npz", __head__=np.array(head), **arrays)
    found = sl.Result.load(tmp_path / "old.npz")
    assert found.about.models == (sl.spec.ModelId(name="small ViT", kind="vit", pool="cls"),)
    assert (found.about.analysis, found.side, found.how) == ("receptive-field-before", "before", {"n": 8})
    np.savez(tmp_path / "gaze.npz", __head__=np.array(head.replace("ReceptiveField", "Gaze")), **arrays)
    with pytest.raises(ValueError, match=r"holds a Gaze, .*compute it again"):
        sl.Result.load(tmp_path / "gaze.npz")
