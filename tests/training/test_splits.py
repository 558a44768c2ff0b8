"""Training, validation and test data of a run: the rule, and what it gives."""

import numpy as np
import pytest
from PIL import Image

import sightline as sl


def write_images(root, per_class, classes=("cat", "dog")):
    for name in classes:
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            Image.fromarray(np.full((8, 8, 3), i, dtype=np.uint8)).save(root / name / f"{i}.png")
    return root


def test_a_folder_without_splits_holds_out_a_tenth(tmp_path):
    split = sl.training.split_data(write_images(tmp_path / "pets", 20))
    assert (len(split.train), len(split.val), split.test) == (36, 4, None)
    assert split.rule == "10 % of the training data"
    train, val = sl.Folder(tmp_path / "pets").split(0.9, seed=0)
    assert (split.train.fingerprint(), split.val.fingerprint()) == (train.fingerprint(), val.fingerprint())


def test_large_data_holds_out_two_percent():
    split = sl.training.split_data("scenes/shape", val="0.1", num=50, size=16)
    assert (len(split.train), len(split.val)) == (45, 5)
    from sightline.training.splits import _share

    assert (_share(None, 19_999), _share(None, 20_000)) == (0.1, 0.02)


def test_splits_of_the_data_come_first(tmp_path):
    for name in ("train", "val", "test"):
        write_images(tmp_path / name, 5)
    split = sl.training.split_data(tmp_path)
    assert (len(split.train), len(split.val), len(split.test), split.rule) == (10, 10, 10, "the split val")
    on_test = sl.training.split_data(tmp_path, val="test")
    assert (len(on_test.val), on_test.test, on_test.rule) == (10, None, "the split test")
    nothing = sl.training.split_data(tmp_path, val="none")
    assert (nothing.val, len(nothing.test), nothing.rule) == (None, 10, "none")


def test_fraction_is_of_what_is_left_for_training():
    whole = sl.training.split_data("scenes/shape", val="0.5", num=80, size=16)
    part = sl.training.split_data("scenes/shape", val="0.5", num=80, size=16, fraction=0.25)
    assert (len(part.train), len(part.val)) == (10, 40)
    assert part.val.fingerprint() == whole.val.fingerprint()


@pytest.mark.parametrize("val", ["dev", "0", "1", "1.5", "nan"])
def test_what_val_cannot_be(val):
    with pytest.raises(ValueError, match="a split's name, a share between 0 and 1, or none"):
        sl.training.split_data("scenes/shape", val=val, num=20, size=16)


def test_num_is_for_scenes(tmp_path):
    with pytest.raises(ValueError, match="--num is for scenes"):
        sl.training.split_data(write_images(tmp_path / "pets", 3), num=5)


def test_a_folder_without_splits_says_what_is_for_what(tmp_path):
    write_images(tmp_path, 10)
    plain = sl.training.split_data(tmp_path)
    assert plain.test is None
    assert plain.describe() == (
        "18 images to train on; validation: 10 % of the training data (2 images, stratified by class; "
        "too few to tell much, --val 0.3 takes more); "
        "no test (--split 0.8 keeps a fifth for one)"
    )
    divided = sl.training.split_data(tmp_path, split=0.8, val="none")
    assert (len(divided.train), len(divided.test), divided.test.counts()) == (16, 4, [2, 2])
    with pytest.raises(ValueError, match="between 0 and 1"):
        sl.training.split_data(tmp_path, split=3.0)
    with pytest.raises(ValueError, match="has train, val, test"):
        sl.training.split_data("scenes/shape", split=0.8)
