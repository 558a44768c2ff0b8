"""Data opened to measure a model on."""

import pytest
import torch
from PIL import Image

import sightline as sl
from tests.evals.makers import random_model


def test_scenes_have_the_model_s_size_and_the_held_out_split():
    model = sl.build("vit-nano4", size=64)
    data = sl.evals.evaluation_data(model, "scenes/shape", num=30)
    assert (data.size, data.split_name, len(data)) == (64, "test", 30)
    assert sl.evals.evaluation_data(model, "scenes/shape", "train").split_name == "train"
    tiny = sl.build("vit-nano4", size=8)
    assert sl.evals.evaluation_data(tiny, "scenes/shape").size == 16  # scenes are no smaller


def test_num_images_of_any_data_are_drawn_and_always_the_same(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.new("RGB", (8, 8), (30 * i, 0, 0)).save(tmp_path / name / f"{i}.png")
    model = sl.build("vit-nano4")
    some = [sl.evals.evaluation_data(model, tmp_path, num=3) for _ in range(2)]
    assert [len(d) for d in some] == [3, 3]
    assert [some[0].where(i) for i in range(3)] == [some[1].where(i) for i in range(3)]
    assert len(sl.evals.evaluation_data(model, tmp_path, num=99)) == 8
    assert [len(half) for half in sl.evals.extract_splits(model, tmp_path, num=3)] == [3, 3]
    with pytest.raises(ValueError, match="1 or more"):
        sl.evals.evaluation_data(model, tmp_path, num=0)


def test_two_splits_are_two_extractions():
    model = random_model(classes=10)
    train, test = sl.evals.extract_splits(model, "scenes/shape", ("train", "val"), num=20, tokens="gap")
    want = sl.extract(model, sl.dataset("scenes/shape", "val", num=20, size=model.image.size[0]), tokens="gap")
    assert torch.equal(test.features, want.features)
    assert not torch.equal(train.features, test.features)


def test_a_folder_without_splits_is_divided_and_says_so(tmp_path, caplog):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.new("RGB", (32, 32), (40 * i, 9, 9)).save(tmp_path / name / f"{i}.png")
    train, test = sl.evals.extract_splits(sl.build("vit-nano4", depth=1), tmp_path)
    assert (len(train), len(test)) == (4, 4)
    assert "half of each class is to train on (4 images)" in caplog.text
