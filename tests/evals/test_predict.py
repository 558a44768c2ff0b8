"""What a model says about images without labels."""

import logging

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import sightline as sl
from sightline.app.serving import Batcher, Limits
from sightline.data.folder import Files
from sightline.weights.exporting import Graph
from tests import peers
from tests.evals.makers import SHARED, needs_shared, random_model


@pytest.fixture
def folder(tmp_path):
    """Six noise images of several sizes and formats, one of them in a subfolder."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    for i, name in enumerate(("a.png", "b.jpg", "c.png", "d.jpg", "e [red] ü.png", "sub/f.png")):
        pixels = rng.integers(0, 255, (40 + 9 * i, 64 - 5 * i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
    return tmp_path / "photos"


def named(classes=10, **changes):
    model = random_model(classes=classes, **changes)
    model.class_names = tuple(f"class {i}" for i in range(classes))
    return model


def close(a, b):
    np.testing.assert_array_equal(a.indices, b.indices)
    np.testing.assert_allclose(a.probabilities, b.probabilities, rtol=1e-4)


def test_predictions_are_those_of_evaluate(folder):
    model = named()
    said = sl.predict(model, folder, top=10)
    data = Files("photos", list(said.images), labels=[0] * 6, classes=model.class_names)
    logits = sl.evals.logits(model, data).astype(np.float64)
    np.testing.assert_array_equal(said.indices, np.argsort(-logits, axis=1))
    want = torch.from_numpy(logits).softmax(1).gather(1, torch.from_numpy(said.indices))
    np.testing.assert_allclose(said.probabilities, want, rtol=1e-5)
    np.testing.assert_allclose(said.probabilities.sum(1), 1)
    pairs = sl.evaluate(model, data).pairs
    assert dict(zip(pairs[:, 1], pairs[:, 2])) == {i: n for i, n in enumerate(np.bincount(said.indices[:, 0])) if n}
    close(sl.predict(model, data, top=10), said)


def test_batch_size_and_company_do_not_matter(folder):
    model = named()
    all_of_them = sl.predict(model, folder)
    assert len(all_of_them) == 6
    assert all_of_them.images[-1].endswith("f.png")
    for batch in (1, 4):
        close(sl.predict(model, folder, batch=batch), all_of_them)
    for one in all_of_them:
        alone = sl.predict(model, one.image)[0]
        assert alone.names == one.names
        assert alone.probabilities == pytest.approx(one.probabilities, rel=1e-4)
    assert one.name == model.class_names[one.indices[0]]
    assert one.probability == max(one.probabilities)


def test_a_path_a_pattern_a_list_pil_arrays_and_tensors_are_the_same_image(folder):
    model = named()
    path = folder / "a.png"
    want = sl.predict(model, path)
    pil = Image.open(path)
    pixels = np.asarray(Image.open(path))
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    prepared = sl.open_images(path, model.image)
    kinds = [str(path), str(folder / "a*"), [path], pil, pixels, tensor, pixels[None], prepared, prepared[0]]
    for given in kinds:
        close(sl.predict(model, given), want)
    both = sl.predict(model, [path, pixels, str(folder / "*.jpg")])
    assert [both.images[0], both.images[1], len(both)] == [str(path), "image 1", 4]
    np.testing.assert_array_equal(both.indices[0], both.indices[1])


def test_an_image_is_turned_upright_whoever_opened_it(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    model = named()
    close(sl.predict(model, Image.open(tmp_path / "turned.png")), sl.predict(model, tmp_path / "turned.png"))
    close(sl.predict(model, np.rot90(pixels, -1)), sl.predict(model, tmp_path / "turned.png"))


def test_bad_images_are_named_and_the_others_predicted(folder, caplog):
    model = named()
    (folder / "broken.jpg").write_bytes((folder / "b.jpg").read_bytes()[:200])
    said = sl.predict(model, [folder, folder / "none.png", str(folder / "*.gif")], batch=2)
    assert len(said) == 6
    assert {name.rsplit("/", 1)[1] for name in said.bad} == {"broken.jpg", "none.png", "*.gif"}
    assert "There is no image" in said.bad[str(folder / "none.png")]
    assert sum("bad image" in record.message for record in caplog.records) == 3
    close(said, sl.predict(model, list(said.images)))


def test_nothing_to_predict_is_an_error(folder, tmp_path, caplog):
    model = named()
    (tmp_path / "empty").mkdir()
    with pytest.raises(sl.data.BadImage, match="has no images"):
        sl.predict(model, tmp_path / "empty")
    with pytest.raises(sl.data.BadImage, match=r"There is no image none\.png"):
        sl.predict(model, "none.png")
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]  # the error says it already
    with pytest.raises(sl.data.BadImage, match=r"None of the 2 images can be read\. The first: There is no .* a\.png"):
        sl.predict(model, ["a.png", "b.png"])
    for given, why in (([], "no images"), (3, "got a int"), (b"x", "got a bytes"), (np.zeros((4, 4)), "An image is")):
        with pytest.raises(ValueError, match=why):
            sl.predict(model, given)
    for wrong in (0, True, 1.5):
        with pytest.raises(ValueError, match="positive whole number"):
            sl.predict(model, folder, top=wrong)
    with pytest.raises(ValueError, match="no classifier"):
        sl.predict(random_model(classes=0), folder)
    with pytest.raises(ValueError, match="A model is a module"):
        sl.predict(3, folder)
    with torch.no_grad():
        model.head.bias[0] = float("nan")
    with pytest.raises(ValueError, match=r"a\.png has NaN"):
        sl.predict(model, folder)


def test_names_are_the_models_or_imagenets_or_numbers(folder):
    path = folder / "a.png"
    assert sl.predict(named(), path).named_by == "model"
    said = sl.predict(random_model(classes=10), path)
    assert said.named_by == "number"
    assert said[0].name == str(said[0].indices[0])
    said = sl.predict(random_model(classes=1000), path)
    assert (said.named_by, said.classes[1], len(said[0].names)) == ("imagenet-1k (assumed)", "goldfish", 5)
    model = named(1000)
    assert sl.predict(model, path).classes == model.class_names
    assert len(sl.predict(named(2), path)[0].names) == 2  # top is at most the number of classes


def test_published_weights_are_known_to_be_imagenets(folder, tmp_path):
    file = sl.save(random_model(classes=1000), tmp_path / "m.safetensors")
    sl.weights.add_weights(sl.weights.Weights(name="vit-nano4.test-i1k", source=str(file)))
    assert sl.predict("vit-nano4.test-i1k", folder / "a.png").named_by == "imagenet-1k"
    assert sl.predict(file, folder / "a.png").named_by == "imagenet-1k (assumed)"


def test_models_of_other_libraries_are_adopted(folder):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    about = peers.transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=3)
    theirs = peers.transformers.ViTForImageClassification(about)
    said = sl.predict(theirs, folder / "a.png")
    assert (said.named_by, said.by) == ("number", "softmax")  # LABEL_0 and so on are no names
    theirs.config.id2label = {0: "no", 1: "yes", 2: "maybe"}
    theirs.config.problem_type = "multi_label_classification"
    said = sl.predict(theirs, folder / "a.png")
    assert (said.classes, said.named_by, said.by) == (("no", "yes", "maybe"), "model", "sigmoid")
    small = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 32}
    theirs = peers.timm.create_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", pretrained=False, **small)
    assert sl.predict(theirs, folder / "a.png").named_by == "imagenet-1k"
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    assert len(sl.predict(net, folder)) == 6


def test_a_sigmoid_stays_with_the_weights(folder, tmp_path):
    model = named(4)
    model.probability = "sigmoid"
    want = sl.predict(model, folder)
    assert want.by == "sigmoid"
    logits = np.log(want.probabilities / (1 - want.probabilities))
    assert abs(want.probabilities.sum(1) - 1).min() > 1e-3
    model.probability = "softmax"
    soft = sl.predict(model, folder)
    np.testing.assert_array_equal(soft.indices, want.indices)
    np.testing.assert_allclose(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), soft.probabilities, rtol=1e-4)
    model.probability = "sigmoid"
    file = sl.save(model, tmp_path / "m.safetensors")
    close(sl.predict(file, folder), want)
    assert sl.load(file, classes=3).probability == "softmax"  # a new head knows nothing yet
    hub = sl.save(random_model("vit-nano4", classes=4), tmp_path / "soft", to="hf")
    assert sl.load(hub).probability == "softmax"
    hub = sl.save(model, tmp_path / "hub", to="hf")
    assert sl.load(hub).probability == "sigmoid"


def test_large_logits_are_ranked_by_logit():
    model = named(3)
    model.probability = "sigmoid"
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([800.0, 900.0, -900.0]))
    said = sl.predict(model, Image.new("RGB", (32, 32)))[0]
    assert said.indices == (1, 0, 2)
    assert said.probabilities == (1.0, 1.0, 0.0)


def test_a_run_predicts_with_its_own_names(folder, tmp_path):
    train, val = sl.dataset("scenes/shape", num=40, size=32).split(0.8)
    recipe = sl.Recipe(lr=1e-3, batch=16, steps=2)
    run = sl.fit(sl.build("vit-nano4", classes=10), train, recipe, out=tmp_path / "run")
    said = sl.predict(run, folder)
    assert (said.classes, said.named_by, said.by) == (train.classes, "model", "softmax")
    close(sl.predict(tmp_path / "run", folder), said)
    close(sl.predict(run.model, folder), said)
    assert len(sl.predict(run, val)) == len(val)


def test_a_run_with_several_labels_predicts_by_sigmoid(folder, tmp_path):
    rng = np.random.default_rng(0)
    table = rng.integers(0, 2, (32, 3)).astype(bool)
    data = sl.data.Arrays(rng.integers(0, 255, (32, 32, 32, 3), dtype=np.uint8), table, classes=("a", "b", "c"))
    recipe = sl.Recipe(lr=1e-3, batch=16, steps=2, loss="sigmoid")
    run = sl.fit(sl.build("vit-nano4", classes=3), data, recipe, out=tmp_path / "run")
    assert sl.predict(run, folder).by == "sigmoid"


def test_the_model_is_left_as_it_was(folder):
    model = named().train()
    sl.predict(model, folder)
    assert model.training


@needs_shared
@pytest.mark.slow
def test_deit_tiny_names_imagenet_photographs():
    said = sl.predict(SHARED / "deit_tiny_patch16_224_in1k.npz", SHARED / "imagenet-samples")
    lines = (SHARED / "imagenet-samples" / "labels.csv").read_text().split()[1:]
    right = {file: int(number) for file, number in (line.split(",") for line in lines)}
    hits = sum(right[one.image.rsplit("/", 1)[1]] == one.indices[0] for one in said)
    assert (hits, len(said), said.bad) == (87, 100, {})


def test_a_run_with_validation_data_is_calibrated(tmp_path):
    train, val = sl.dataset("scenes/shape", num=60, size=16).split(0.5)
    model = sl.build("vit-nano4", classes=10, size=16, depth=1)
    run = sl.fit(model, train, sl.Recipe(lr=3e-3, batch=30, steps=6), val=val, out=tmp_path / "run")
    temperature = run.about["ended"]["temperature"]
    assert temperature != 1
    plain, calibrated = sl.predict(model, val), sl.predict(str(run.path), val)
    assert (plain.temperature, calibrated.temperature) == (1, temperature)
    assert sl.predict(run, val).temperature == temperature
    assert (plain.indices == calibrated.indices).all()
    assert not np.allclose(plain.probabilities, calibrated.probabilities)
    opened, few = run.model, val.sample(2)
    told = sl.predict(opened, few)
    assert told.temperature == temperature
    assert list(sl.feature_pca(opened, few, n=2).how["predictions"]) == [
        f"{p.name} {100 * p.probability:.0f} %" for p in told
    ]
    pixels = torch.from_numpy(np.stack([np.asarray(few.image(i)) for i in range(2)]))
    graph = Graph(opened, pixels=True)
    best = torch.from_numpy(told.indices)
    np.testing.assert_allclose(graph(pixels).gather(1, best).detach().numpy(), told.probabilities, rtol=1e-5)
    assert graph.meta()["temperature"] == temperature
    assert Batcher(opened, Limits(), top=1).temperature == temperature
    with torch.no_grad():
        opened.head.weight *= 2  # no longer the weights of the run
    assert sl.predict(opened, val).temperature == 1


@hypothesis.settings(max_examples=10)
@hypothesis.given(st.floats(0.3, 5), st.integers(0, 9))
def test_the_temperature_of_scaled_logits_is_found(scale, seed):
    random = np.random.default_rng(seed)
    true = random.normal(size=(4000, 4)) * 2
    p = np.exp(true) / np.exp(true).sum(1, keepdims=True)
    labels = (random.random((4000, 1)) > p.cumsum(1)).sum(1)
    assert abs(sl.evals.fit_temperature(scale * true, labels) / scale - 1) < 0.15
    assert sl.evals.fit_temperature(true[:5], labels[:5]) == 1


def test_a_terminal_shows_a_line_per_image_and_not_every_class():
    indices, images = np.tile([1, 0], (25, 1)), tuple(f"{i}.jpg" for i in range(25))
    many = sl.evals.Predictions(
        images=images,
        classes=("dog", "cat", *map(str, range(998))),
        indices=indices,
        probabilities=np.tile([0.9, 0.05], (25, 1)),
        bad={"x.jpg": "broken"},
    )
    lines = repr(many).splitlines()
    assert lines[:2] == ["Predictions of 25 images", "0.jpg: cat 90.0 %, dog 5.0 %"]
    assert lines[-2:] == ["and 5 more", "1 could not be read: .bad has the reasons"]
    assert len(lines) == 23
