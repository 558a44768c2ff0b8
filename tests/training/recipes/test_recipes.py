"""The recipes say what the papers' tables say, row by row."""

import doctest

import pytest

import sightline as sl
from sightline.training.recipes.lookup import RECIPES
from sightline.training.recipes.vit import TABLE_3

# model, data, epochs, rate, shape, decay, dropout: table 3 of the ViT paper, typed a second time
ROWS = """
vit-b16     jft         7   8e-4 linear 0.1  0
vit-b32     jft         7   8e-4 linear 0.1  0
vit-l32     jft         7   6e-4 linear 0.1  0
vit-l16     jft         7   4e-4 linear 0.1  0
vit-l16     jft         14  4e-4 linear 0.1  0
vit-h14     jft         14  3e-4 linear 0.1  0
bit-r50x1   jft         7   1e-3 linear 0.1  None
bit-r50x2   jft         7   1e-3 linear 0.1  None
bit-r101x1  jft         7   8e-4 linear 0.1  None
bit-r152x1  jft         7   6e-4 linear 0.1  None
bit-r152x2  jft         7   6e-4 linear 0.1  None
r50-vit-b16 jft         7   8e-4 linear 0.1  0
r50-vit-b32 jft         7   8e-4 linear 0.1  0
r50-vit-l32 jft         7   2e-4 linear 0.1  0
r50-vit-l16 jft         7   4e-4 linear 0.1  0
r50-vit-l16 jft         14  4e-4 linear 0.1  0
vit-b16     imagenet21k 90  1e-3 linear 0.03 0.1
vit-b32     imagenet21k 90  1e-3 linear 0.03 0.1
vit-l16     imagenet21k 30  1e-3 linear 0.03 0.1
vit-l16     imagenet21k 90  1e-3 linear 0.03 0.1
vit-l32     imagenet21k 30  1e-3 linear 0.03 0.1
vit-l32     imagenet21k 90  1e-3 linear 0.03 0.1
vit-b16     imagenet    300 3e-3 cosine 0.3  0.1
vit-l32     imagenet    300 3e-3 cosine 0.3  0.1
vit-ti16    imagenet    300 3e-3 cosine 0.3  0.1
""".strip().splitlines()


@pytest.mark.parametrize("row", ROWS)
def test_table_3(row):
    model, data, epochs, lr, decay, weight_decay, dropout = row.split()
    r = sl.recipes.vit_pretrain(model, data, epochs=int(epochs))
    assert (r.epochs, r.lr, r.decay, r.weight_decay) == (int(epochs), float(lr), decay, float(weight_decay))
    assert r.dropout == (None if dropout == "None" else float(dropout))
    assert (r.batch, r.warmup, r.size, r.betas, r.optimizer) == (4096, 10_000, 224, (0.9, 0.999), "adamw")
    assert (r.clip, r.end_lr) == ((1.0, 0.0) if data == "imagenet" else (None, 1e-5))
    assert (r.decay_rule, r.loss) == ("lr", "softmax" if data == "imagenet" else "sigmoid")


def test_table_3_is_complete():
    assert {(row.split()[0], row.split()[1]) for row in ROWS if "imagenet " not in row} == {
        (model, row.data) for row in TABLE_3 for model in row.models if "*" not in model
    }


def test_the_steps_that_table_3_implies():
    r = sl.recipes.vit_pretrain("vit-b16", "jft")
    assert r.total_steps(303_000_000) == pytest.approx(518_000, rel=1e-3)
    assert sl.recipes.vit_pretrain("vit-b16", "imagenet").total_steps(1_281_167) == pytest.approx(93_800, rel=3e-3)


@pytest.mark.parametrize(
    ("model", "data", "near"),
    [("vit-h14", "imagenet21k", "vit-l16 on imagenet21k"), ("bit-r50x1", "imagenet", "bit-r50x1 on jft")],
)
def test_a_row_that_table_3_lacks_names_the_nearest(model, data, near):
    with pytest.raises(ValueError, match=f"no row for {model} on {data}.*{near}"):
        sl.recipes.vit_pretrain(model, data)


def test_a_length_that_table_3_lacks():
    with pytest.raises(ValueError, match="7 or 14 epochs; got 8"):
        sl.recipes.vit_pretrain("vit-l16", "jft", epochs=8)


SMALL_GRID = [0.001, 0.003, 0.01, 0.03]


@pytest.mark.parametrize(
    ("data", "steps", "grid"),
    [
        ("imagenet", 20_000, [0.003, 0.01, 0.03, 0.06]),
        ("cifar100", 10_000, SMALL_GRID),
        ("cifar10", 10_000, SMALL_GRID),
        ("pets", 500, SMALL_GRID),
        ("flowers102", 500, SMALL_GRID),
        ("vtab", 2_500, [0.01]),
    ],
)
def test_table_4(data, steps, grid):
    recipes = sl.recipes.vit_finetune_grid(data)
    assert [r.lr for r in recipes] == grid
    for r in recipes:
        assert (r.steps, r.optimizer, r.momentum, r.batch) == (steps, "sgd", 0.9, 512)
        assert (r.decay, r.end_lr, r.weight_decay, r.clip, r.size, r.ema) == ("cosine", 0.0, 0.0, 1.0, 384, None)
        assert 0 < r.warmup <= r.steps / 5


@pytest.mark.parametrize(("data", "images"), [("imagenet", 1_281_167), ("cifar10", 50_000), ("pets", 3_680)])
def test_unknown_data_gets_the_steps_of_known_data_of_its_size(data, images):
    assert sl.recipes.vit_finetune("my/folder", num_images=images).steps == sl.recipes.vit_finetune(data).steps


def test_finetuning_says_what_it_does_not_know():
    with pytest.raises(ValueError, match=r"cifar12.*cifar10"):
        sl.recipes.vit_finetune("cifar12")


def test_polyak_averaging_and_other_sizes():
    r = sl.recipes.vit_finetune("imagenet", size=512, polyak=True)
    assert (r.ema, r.size) == (0.9999, 512)


@pytest.mark.parametrize(
    ("data", "epochs", "falls"),
    [("imagenet", 90, [30, 60, 80]), ("imagenet21k", 90, [30, 60, 80]), ("jft", 40, [10, 23, 30, 37])],
)
def test_bit_upstream(data, epochs, falls):
    r = sl.recipes.bit_upstream(data)
    assert (r.lr, r.warmup, r.weight_decay, r.epochs, r.augment.mixup) == (0.48, 5_000, 1e-4, epochs, 0)
    per_epoch = 1_281_167 // 4096
    steps = r.total_steps(1_281_167)
    for epoch in falls:
        before, behind = (sl.training.learning_rate(r, epoch * per_epoch + d, steps=steps) for d in (0, 1))
        assert behind == pytest.approx(before / 10)


def test_the_decay_of_the_baseline_is_torchs_0_1():
    r = sl.recipes.vit_s16_baseline()
    assert r.decay_rule == "schedule"
    assert r.weight_decay / r.lr == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("data", "flip", "shift"),
    [
        ("cifar10", True, 0.125),
        ("fashion-mnist", True, 0.125),
        ("mnist", False, 0.125),
        ("scenes/objects", True, 0.125),
        ("scenes/layout", False, 0.125),
        ("scenes/location", False, 0),
        ("scenes/count", True, 0),
    ],
)
def test_laptop_recipes_keep_labels_true(data, flip, shift):
    for name in ("laptop_vit", "laptop_bit", "laptop_masked"):
        r = sl.recipes.get(name, data=data, model="vit-nano4", num_images=1000, image_area=1024)
        assert (r.augment.flip, r.augment.shift, r.augment.crop_area) == (flip, shift, None)


KNOWN = {"model": "vit-b16", "data": "imagenet", "num_images": 1_281_167, "image_area": 224 * 224}


@pytest.mark.parametrize("name", sl.recipes.names())
def test_every_recipe_is_found_by_its_name_and_documented(name):
    assert sl.recipes.get(name, **KNOWN).name == name
    assert sl.recipes.get(name.replace("_", "-"), **KNOWN).name == name
    text = RECIPES[name].__doc__
    assert "sightline train" in text or "sightline tune" in text
    assert f"--recipe {name}" in text
    tests = doctest.DocTestFinder(recurse=False).find(RECIPES[name], name, globs={"sl": sl})
    assert tests[0].examples
    assert doctest.DocTestRunner().run(tests[0]).failed == 0


def test_a_recipe_can_be_asked_for_the_row_of_other_data():
    r = sl.recipes.get("vit_pretrain:imagenet21k", **{**KNOWN, "data": "/data/mine"})
    assert r == sl.recipes.vit_pretrain("vit-b16", "imagenet21k")


@pytest.mark.parametrize(
    ("name", "context", "said"),
    [
        ("vit_fintune", {}, "Did you mean vit_finetune"),
        ("qqq", {}, "Did you mean vit_pretrain, vit_finetune"),
        ("vit_finetune", {"lr": 1}, "model, data, num_images, image_area only; got lr"),
        ("bit_hyperrule", {"num_images": 10}, "depends on image_area: give it"),
        ("vit_pretrain", {}, "depends on model and data: give them"),
        ("bit_upstream", {"data": "cifar10"}, "imagenet, imagenet21k or jft; got cifar10"),
    ],
)
def test_what_cannot_be_found_says_what_to_type(name, context, said):
    with pytest.raises(ValueError, match=said):
        sl.recipes.get(name, **context)
