"""The four strategies (E25) and layer-wise rates, at the level of globs and factors."""

import fnmatch
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import sightline as sl
from sightline.training.optimization.layers import block_paths, parameters_by_layer

RECIPE = sl.recipes.vit_finetune("pets")
MODELS = {
    "vit": sl.build("vit-nano4", classes=10),
    "rich vit": sl.build("vit-nano4", classes=10, pool="cls", registers=2, head="mlp", position_at="every"),
    "map vit": sl.build("vit-nano4", classes=10, pool="map"),
    "relative": sl.build("vit-nano4", classes=10, position="relative"),
    "bit": sl.build("bit-micro", classes=10),
    "hybrid": sl.build("r14-vit-micro8", classes=10),
}
ALL = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def names(model):
    return [name for name, _ in model.named_parameters()]


def trained(recipe, model):
    globs = recipe.trained or ("*",)
    assert all(fnmatch.filter(names(model), glob) for glob in globs), "a glob that matches nothing is a mistake"
    return {name for name in names(model) for glob in globs if fnmatch.fnmatchcase(name, glob)}


def chosen(size, similarity, model, **more):
    return trained(sl.training.transfer(size, similarity, recipe=RECIPE, model=model, **more), model)


@ALL
@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("similarity", ["similar", "different"])
def test_what_learns_does_so_at_a_tenth(model, size, similarity):
    t = sl.training.transfer(size, similarity, recipe=RECIPE, model=model)
    assert t.lr == RECIPE.lr / 10
    assert replace(t, lr=RECIPE.lr, trained=(), augment=RECIPE.augment) == RECIPE, "nothing else changes"


@ALL
def test_large_and_different_trains_everything(model):
    assert chosen("large", "different", model) == set(names(model))


@ALL
def test_small_and_similar_trains_the_head_alone(model):
    head = chosen("small", "similar", model)
    assert {"head.weight", "head.bias"} <= head
    assert {name.split(".")[0] for name in head} <= {"head", "pre_logits"}


@ALL
def test_the_more_the_data_differs_the_deeper_it_is_met(model):
    depths = [
        chosen(*case, model)
        for case in [("small", "similar"), ("large", "similar"), ("small", "different"), ("large", "different")]
    ]
    for less, more in zip(depths, depths[1:]):  # noqa: RUF007
        assert less < more


def test_later_layers_of_a_vit():
    got = chosen("large", "similar", MODELS["vit"])
    assert got == {n for n in names(MODELS["vit"]) if n.startswith(("blocks.4.", "blocks.5.", "norm.", "head."))}


def test_tables_of_later_blocks_learn_with_them():
    got = chosen("large", "similar", MODELS["rich vit"])
    assert {n for n in got if n.startswith("positions.")} == {"positions.4.table", "positions.5.table"}


def test_later_layers_of_a_cnn_are_whole_units():
    got = chosen("small", "different", MODELS["bit"])
    top = ("stages.1.units.1.", "stages.2.", "norm.", "head.")
    assert got == {n for n in names(MODELS["bit"]) if n.startswith(top)}


def test_a_hybrid_counts_units_and_blocks():
    model = MODELS["hybrid"]  # 4 units, 6 blocks
    assert len(block_paths(model)) == 10
    half, most = chosen("small", "different", model), chosen("small", "different", model, share=0.8)
    assert {n for n in half if n.startswith("backbone.")} == set()
    assert "embed.proj.weight" not in half
    assert {"embed.proj.weight", "prefix", "backbone.stages.1.units.1.conv1.weight"} <= most
    assert "backbone.stages.0.units.1.conv1.weight" not in most


def test_small_and_different_adds_augmentation_and_keeps_a_stronger_one():
    model = MODELS["vit"]
    strong = replace(RECIPE, augment=sl.data.Augment(randaugment=(3, 5), flip=False))
    assert sl.training.transfer("small", "different", recipe=RECIPE, model=model).augment.randaugment == (2, 10)
    assert sl.training.transfer("small", "different", recipe=strong, model=model).augment == strong.augment
    assert sl.training.transfer("large", "different", recipe=RECIPE, model=model).augment == RECIPE.augment


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"size": "tiny"}, "expected small or large"),
        ({"similarity": "alike"}, "then similar or different"),
        ({"share": 1.5}, "a share of the blocks"),
        ({"recipe": replace(RECIPE, trained=("head.*",))}, "already sets trained"),
        ({"model": sl.build("vit-nano4", classes=0)}, "no head"),
    ],
)
def test_what_cannot_be_meant_is_refused(case, said):
    full = {"size": "small", "similarity": "similar", "recipe": RECIPE, "model": MODELS["vit"], **case}
    with pytest.raises(ValueError, match=said):
        sl.training.transfer(full.pop("size"), full.pop("similarity"), **full)


@ALL
def test_layers_hold_every_parameter_once(model):
    listed = [name for layer in parameters_by_layer(model) for name in layer]
    assert sorted(listed) == sorted(names(model))
    assert all(parameters_by_layer(model))


@ALL
@settings(max_examples=20)
@given(st.floats(0.1, 1.0))
def test_rates_fall_from_the_head_down(model, decay):
    scales = sl.training.layer_scales(model, decay)
    assert set(scales) == set(names(model))
    assert scales["head.weight"] == 1.0
    steps = [scales[layer[0]] for layer in parameters_by_layer(model)]
    assert all(low == pytest.approx(high * decay) for low, high in zip(steps, steps[1:]))  # noqa: RUF007


def test_known_factors():
    vit, bit, hybrid = (sl.training.layer_scales(MODELS[m], 0.5) for m in ("vit", "bit", "hybrid"))
    assert [vit[f"blocks.{i}.attn.qkv.weight"] for i in range(6)] == [0.5 ** (6 - i) for i in range(6)]
    assert {vit[n] for n in ("prefix", "embed.proj.weight", "positions.0.table")} == {0.5**7}
    assert (bit["stages.2.units.1.conv1.weight"], bit["root.conv.weight"], bit["norm.norm.weight"]) == (0.5, 0.5**7, 1)
    assert (hybrid["backbone.root.weight"], hybrid["backbone.stages.1.units.1.conv2.weight"]) == (0.5**12, 0.5**8)
    assert (hybrid["embed.proj.weight"], hybrid["blocks.0.norm1.weight"]) == (0.5**7, 0.5**6)


@pytest.mark.parametrize("decay", [0, -1, 1.5])
def test_a_factor_that_makes_no_sense(decay):
    with pytest.raises(ValueError, match="above 0"):
        sl.training.layer_scales(MODELS["vit"], decay)


def test_models_of_other_libraries_are_refused():
    for act in (
        lambda m: sl.training.layer_scales(m, 0.5),
        lambda m: sl.training.transfer("small", "similar", recipe=RECIPE, model=m),
    ):
        with pytest.raises(ValueError, match="load its weights into"):
            act(nn.Linear(3, 3))
