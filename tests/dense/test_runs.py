"""Dense runs: the same folder, exact resume, evaluation, drawings, and what is refused before the first step."""

import dataclasses
import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from PIL import Image

import sightline as sl
from tests.command import run as command

TASKS = ("segment", "detect")


def recipe(task, **changes):
    return sl.Recipe(
        **{"task": task, "lr": 2e-3, "batch": 8, "steps": 4, "log_every": 1, "queries": 10, "decoder": (32, 1),
           "ema": 0.5, "augment": sl.data.Augment(crop_area=(0.5, 1.0)), **changes}
    )  # fmt: skip


def model(**changes):
    return sl.build("vit-nano4", **{"classes": 0, "size": 16, "depth": 2, **changes})


def data(num=24):
    return sl.dataset("scenes/count", num=num, size=16).split(0.75)


def stop(_):
    os.kill(os.getpid(), signal.SIGINT)
    return {}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run of each task."""
    home = tmp_path_factory.mktemp("dense")
    train, val = data()
    for task in TASKS:
        sl.fit(model(), train, recipe(task), val=val, out=home / task)
    return home


def test_an_interrupted_run_ends_like_one_that_was_not(runs, tmp_path):
    task, (train, val) = "detect", data()
    with pytest.raises(sl.training.Stopped):
        sl.fit(model(), train, recipe(task), val=val, out=tmp_path / "run", evals=[(2, stop)])
    again = sl.fit(model(), train, recipe(task), val=val, out=tmp_path / "run")
    for name in ("model.safetensors", "dense.safetensors"):
        assert (again.path / name).read_bytes() == (runs / task / name).read_bytes()
    losses = [[row["train/loss"] for row in r.rows() if "train/loss" in row] for r in (again, sl.Run(runs / task))]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4


@pytest.mark.parametrize("task", TASKS)
def test_the_saved_head_is_the_averaged_one_that_was_validated(runs, task):
    run, (_, val) = sl.Run(runs / task), data()
    dense = sl.dense.load_dense(run)
    assert dense.config.task == task
    assert dense.config.classes == val.parent.object_classes
    objective = sl.training.DenseObjective(dense.model, dense.config)
    objective.dense.load_state_dict(dense.dense.state_dict())
    images, maps = next(iter(sl.data.with_targets(val).batches(dense.model.image, batch=len(val))))
    with torch.no_grad():
        loss = objective.eval()(images, maps, None)
    assert loss.item() == pytest.approx(run.rows()[-1]["val/loss"], rel=1e-5)


def test_a_frozen_model_keeps_its_weights(tmp_path):
    train, _ = data()
    start = model()
    held = {n: p.clone() for n, p in start.state_dict().items()}
    run = sl.fit(start, train, recipe("segment", trained=("dense.*",), head="layers", steps=2), out=tmp_path / "run")
    assert all(torch.equal(held[n], p) for n, p in run.model.state_dict().items())
    assert sl.dense.load_dense(run).dense.out.weight.any()


def test_evaluation_has_an_interval_and_is_kept(runs):
    _, val = data()
    parts = sl.training.evaluate_run(sl.Run(runs / "segment"), val)
    objects = sl.training.evaluate_run(sl.Run(runs / "detect"), val)
    assert isinstance(parts, sl.dense.Segmentation)
    assert isinstance(objects, sl.dense.Detection)
    assert parts.interval[0] <= parts.miou <= parts.interval[1]
    assert parts.classes[0] == "background"
    assert objects.mask_interval.shape == (3, 2)
    assert 0 <= objects.masks[0] <= 1
    assert sl.Result.load(runs / "detect" / "test.npz").masks[0] == objects.masks[0]


def test_the_command_line_evaluates_predicts_and_draws(runs, capsys, tmp_path):
    code, out, _ = command(capsys, "eval", str(runs / "detect"), "scenes/count", "--num", "8", "--per-class", "--json")
    assert code == 0
    assert {"AP", "AP50", "AP75", "box AP", "95 % from", "per class"} <= json.loads(out).keys()
    Image.fromarray(sl.dataset("scenes/count", num=8, size=64)[7][0]).save(tmp_path / "a.png")
    for task in TASKS:
        code, out, err = command(
            capsys, "predict", str(runs / task), str(tmp_path / "a.png"), "--draw", str(tmp_path / task), "--score",
            "0", "--json",
        )  # fmt: skip
        drawn = np.asarray(Image.open(tmp_path / task / "a.png"))
        assert code == 0, err
        assert drawn.shape == (256, 256, 3)
        assert "drawn" in err
        found = json.loads(out)
        assert all(("share of pixels" in row) == (task == "segment") for row in found)
        assert found or task == "detect"
    for arguments, said in (
        (("predict", str(runs / "segment"), str(tmp_path / "a.png"), "--csv"), "--csv is for classifiers"),
        (("eval", str(runs / "segment"), "scenes/count", "--tta", "mirror"), "--tta is for classifiers"),
        (("predict", "vit-nano4", "a.png", "--draw", "x"), "--draw is for runs"),
    ):
        code, _, err = command(capsys, *arguments)
        assert code == 2, err
        assert said in err


def test_unreadable_images_are_named_and_the_others_predicted(runs, capsys, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    Image.fromarray(sl.dataset("scenes/count", num=1, size=64)[0][0]).save(tmp_path / "z.png")
    code, out, err = command(capsys, "predict", str(runs / "segment"), str(tmp_path), "no/such/*.png")
    assert code == 0, err
    assert "z.png" in out
    assert "2 of 3 images could not be read." in err
    bad = {}
    assert len(sl.dense.predict_dense(runs / "segment", tmp_path, bad=bad)) == 1
    assert list(bad) == [str(tmp_path / "text.png")]
    code, _, err = command(capsys, "predict", str(runs / "detect"), str(tmp_path / "text.png"))
    assert code == 2
    assert "is not an image" in err


def test_nothing_found_is_said(runs, capsys, tmp_path):
    Image.fromarray(sl.dataset("scenes/count", num=1, size=64)[0][0]).save(tmp_path / "z.png")
    code, out, _ = command(capsys, "predict", str(runs / "detect"), str(tmp_path / "z.png"), "--score", "1")
    assert code == 0
    assert out == "1 image, 1 without an object of score 1 or more. A lower --score shows more.\n"


def test_sizes_and_classes_that_do_not_occur_are_left_out(runs, capsys):
    code, out, _ = command(capsys, "eval", str(runs / "detect"), "scenes/cells", "--num", "2", "--per-class")
    assert code == 0
    assert "2 images of scenes/cells" in out.splitlines()[0]  # the title is not wrapped at the table's width
    assert "not a number" not in out
    assert "large" not in out  # scenes of 16 pixels have no object of 96 x 96
    assert "per class (8 do not occur)" in out


def test_masks_and_boxes_are_drawn():
    mask = np.zeros((1, 300, 400), bool)
    mask[0, 120:200, 100:350] = True
    found = sl.dense.Detections(classes=np.array([2]), scores=np.array([0.9]), masks=mask)
    pixels = np.full((300, 400, 3), 200, np.uint8)
    drawn = np.asarray(
        sl.dense.draw_dense(sl.dense.DensePrediction(image="a", pixels=pixels, names=("cat", "dog"), objects=found))
    )
    changed = (drawn != 200).any(2)
    assert changed[mask[0]].all()
    assert not changed[200:].any()
    assert changed[105:120, 100:130].all()
    assert not changed[:80].any()
    parts = sl.dense.DensePrediction(
        image="a", pixels=pixels, names=("background", "cat"), segments=mask[0].astype(int)
    )
    named = np.asarray(sl.dense.draw_dense(parts))
    assert ((named[:300] != 200).any(2) == mask[0]).all()
    tint = named[150, 200].astype(int) * 2 - 200
    assert abs(named[301, 0] - tint).max() <= 1  # its name below, on the color of the mask
    many = dataclasses.replace(parts, names=("background", *(f"a rather long name {i}" for i in range(30))),
                               segments=np.arange(300)[:, None].repeat(400, 1) % 31)  # fmt: skip
    assert sl.dense.draw_dense(many).height > 300 + 100  # in lines that fit


def test_the_most_confident_object_is_drawn_on_top():
    masks = np.zeros((2, 300, 400), bool)
    masks[0, 100:200, 100:200], masks[1, 50:250, 100:350] = True, True
    found = sl.dense.Detections(classes=np.array([1, 1]), scores=np.array([0.9, 0.6]), masks=masks)
    pixels = np.full((300, 400, 3), 200, np.uint8)
    one = sl.dense.DensePrediction(image="a", pixels=pixels, names=("cat",), objects=found)
    alone = dataclasses.replace(one, objects=sl.dense.Detections(classes=np.array([1]), scores=np.array([0.9]),
                                                                 masks=masks[:1]))  # fmt: skip
    both, first = (np.asarray(sl.dense.draw_dense(p)) for p in (one, alone))
    outline = (slice(100, 200), 100)
    assert (both[outline] == first[outline]).all()


def test_the_command_line_trains(capsys, tmp_path):
    code, out, err = command(
        capsys, "train", "scenes/count", "--num", "16", "--size", "16", "--model", "vit-nano4", "--with", "depth=2",
        "--task", "detect", "--out", str(tmp_path / "run"), "--set", "batch=8", "--set", "epochs=1", "--set",
        "queries=4", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert "test/AP" in json.loads(out)
    assert sl.dense.load_dense(tmp_path / "run").config.queries == 4
    code, out, err = command(
        capsys, "tune", "scenes/count", "--num", "16", "--size", "16", "--model", str(tmp_path / "run"), "--task",
        "segment", "--set", "trained=dense.*", "--out", str(tmp_path / "tuned"), "--set", "batch=8", "--set",
        "epochs=1", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert "test/mIoU" in json.loads(out)


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path):
    train, _ = data()
    plain = sl.data.Arrays(np.zeros((24, 16, 16, 3), np.uint8), np.arange(24) % 4)
    for settings, given, said in (
        ({"task": "segment"}, plain, "has no masks"),
        ({"task": "detect", "head": "linear"}, train, "tells no objects apart"),
        ({"task": "segment", "trained": ("no.*",)}, train, "matches no parameter"),
        ({"task": "segment", "frozen": ("*",)}, train, "nothing to train"),
        ({"task": "segment", "augment": sl.data.Augment(mixup=0.2)}, train, "masks do not follow"),
        ({"task": "segment", "sizes": ((0, 8), (0.5, 16))}, train, "task=classify"),
        ({"task": "detect", "decoder": (32, 9)}, train, "last 9 blocks"),
    ):
        with pytest.raises(ValueError, match=said):
            sl.fit(model(), given, recipe(**settings), out=tmp_path / "run")
        assert not (tmp_path / "run" / "run.json").exists()


def test_classes_of_pixels_are_not_enough_to_detect(tmp_path):
    for folder, pixels in (("images", np.zeros((16, 16, 3))), ("masks", np.eye(16))):
        (tmp_path / folder).mkdir()
        for name in "abcdefgh":
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / folder / f"{name}.png")
    with pytest.raises(ValueError, match="tells no objects apart: --task segment"):
        sl.fit(model(), sl.dataset(tmp_path), recipe("detect"), out=tmp_path / "run")


def test_annotations_without_objects_are_nothing_to_learn_from(tmp_path):
    held = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    for i in range(8):
        Image.new("RGB", (16, 16)).save(tmp_path / f"{i}.png")
        held["images"].append({"id": i, "file_name": f"{i}.png", "width": 16, "height": 16})
    (tmp_path / "instances.json").write_text(json.dumps(held))
    with pytest.raises(ValueError, match="has no object in any of its 8 images"):
        sl.fit(model(), sl.dataset(tmp_path / "instances.json"), recipe("detect"), out=tmp_path / "run")


def test_other_classes_and_other_weights_are_refused(runs, tmp_path):
    dense = sl.dense.load_dense(runs / "segment")
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "a.png")
    Image.fromarray(np.eye(8, dtype=np.uint8)).save(tmp_path / "masks" / "a.png")
    with pytest.raises(ValueError, match="knows 10 classes of objects"):
        sl.dense.evaluate_dense(dense, sl.dataset(tmp_path))
    with pytest.raises(ValueError, match="trained to segment; it does not detect"):
        dense.detect(torch.zeros(1, 3, 16, 16), [(8, 8)])
    shutil.copytree(runs / "segment", tmp_path / "mixed")
    shutil.copyfile(runs / "detect" / "model.safetensors", tmp_path / "mixed" / "model.safetensors")
    with pytest.raises(ValueError, match="other weights"):
        sl.dense.load_dense(tmp_path / "mixed")
    (tmp_path / "mixed" / "dense.safetensors").write_bytes((runs / "detect" / "last.safetensors").read_bytes())
    with pytest.raises(ValueError, match="not a dense head"):
        sl.dense.load_dense(tmp_path / "mixed")
