"""Facts about models, as `sightline models` and `sightline show` print them."""

import pytest

import sightline as sl


@pytest.mark.parametrize("name", ["vit-nano4", "bit-nano", "r8-vit-nano4", "mixer-nano4"])
def test_a_description_agrees_with_the_model(name):
    facts, model = sl.models.describe_model(name, classes=7), sl.build(name, classes=7)
    assert facts.config == model.config
    assert facts.cost == sl.cost(model)
    assert facts.family == {"v": "ViT", "b": "BiT", "r": "hybrid", "m": "Mixer"}[name[0]]
    (listed,) = sl.models.list_models(name)
    assert listed.parameters == sl.cost(name).parameters
    assert (listed.tokens is None) == (facts.family == "BiT")
    backbone = [key for key in facts.settings if key.startswith("backbone ")]
    assert bool(backbone) == (facts.family == "hybrid")
