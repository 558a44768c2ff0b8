"""Runs that end before their end: losses and gradients that are no numbers, and what is left on disk then."""

import json
import math

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.training.failures import explain_lost_process
from sightline.training.parallel import ProcessGroup
from sightline.weights.containers.safetensors import SafetensorsSource
from tests.training.tiny import data, interrupt, losses, model, recipe


def spoil(name, value=math.nan):
    """An evaluator that writes a value into a parameter of the running model."""

    def evaluate(m):
        with torch.no_grad():
            dict(m.named_parameters())[name].view(-1)[0] = value
        return {}

    return evaluate


def state_of(folder):
    source = SafetensorsSource(folder / "state/state.safetensors")
    return json.loads(source.header["sightline-state"]), {name: source.read(name) for name in source.shapes}


def test_nan_in_a_parameter_names_step_place_and_last_good_state(tmp_path):
    train, _ = data()
    settings = recipe(steps=12, save_every=2)
    broken = [(5, spoil("blocks.1.mlp.fc1.weight"))]
    with pytest.raises(sl.training.Diverged) as error:
        sl.fit(model(), train, settings, out=tmp_path / "run", evals=broken)
    said = str(error.value)
    assert said.startswith("At step 6 the loss is nan; first seen in the parameter blocks.1.mlp.fc1.weight; ")
    assert f"the last good state is from step 4 in {tmp_path / 'run/state'}" in said
    assert "diverged" in sl.Run(tmp_path / "run").rows()[-1]["event"]
    facts, tensors = state_of(tmp_path / "run")
    assert facts["step"] == 4
    assert all(torch.isfinite(t).all() for t in tensors.values())
    # and it can be resumed, to the end of an undisturbed run
    whole = sl.fit(model(), train, settings, out=tmp_path / "whole")
    run = sl.fit(model(), train, settings, out=tmp_path / "run")
    assert losses(run) == losses(whole)
    assert not any("event" in row for row in run.rows())


def test_values_too_large_name_the_module_behind_which_they_appear(tmp_path):
    broken = [(2, spoil("blocks.0.mlp.fc2.bias", math.inf))]
    with pytest.raises(sl.training.Diverged, match=r"step 3 .*parameter blocks\.0\.mlp\.fc2\.bias"):
        sl.fit(model(), data()[0], recipe(save_every=9), out=tmp_path / "a", evals=broken)
    broken = [(2, spoil("blocks.1.norm2.weight", 3e38)), (2, spoil("blocks.1.mlp.fc1.weight", 3e38))]
    with pytest.raises(
        sl.training.Diverged, match=r"step 3 .*first seen in the output of blocks\.1\.\S+; no checkpoint exists yet"
    ):
        sl.fit(model(), data()[0], recipe(save_every=9), out=tmp_path / "b", evals=broken)


@pytest.mark.parametrize("every", [1, 3])
def test_a_rate_far_too_high(every, tmp_path):
    settings = recipe(lr=1e30, steps=6, save_every=every, warmup=2)
    with pytest.raises(sl.training.Diverged, match=r"At step \d .*(first seen|lower lr)"):
        sl.fit(model(), data()[0], settings, val=data()[1], out=tmp_path / "run")
    if (tmp_path / "run/state").exists():  # whatever is there must be good to resume from
        _, tensors = state_of(tmp_path / "run")
        assert all(torch.isfinite(t).all() for t in tensors.values())
        assert max(float(t.abs().max()) for n, t in tensors.items() if n.startswith("task/")) < 1e3
    for path in (tmp_path / "run").glob("*.safetensors"):
        assert all(float(p.detach().abs().max()) < 1e3 for p in sl.load(path, verify=False).parameters())


def test_gradient_that_is_no_number_is_not_stepped_on(tmp_path):
    m = model()

    def hurt(now):
        now.blocks[0].attn.qkv.weight.register_hook(lambda g: g * math.nan)
        return {}

    with pytest.raises(
        sl.training.Diverged,
        match=r"At step 3 the gradient norm is nan; first seen in the gradient of blocks\.0\.attn\.qkv\.weight",
    ):
        sl.fit(m, data()[0], recipe(clip=1.0, save_every=9), out=tmp_path / "run", evals=[(2, hurt)])
    assert all(torch.isfinite(p).all() for p in m.parameters())


def test_model_is_handed_back_whole_after_a_divergence(tmp_path):
    m = model()
    with pytest.raises(sl.training.Diverged):
        sl.fit(m, data()[0], recipe(trained=("head.*",)), out=tmp_path / "run", evals=[(2, spoil("head.bias"))])
    assert all(p.requires_grad for p in m.parameters())
    assert not m.training


def test_refusals_leave_the_model_as_it_was(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    m = model()
    with pytest.raises(ValueError, match="thesis"):
        sl.fit(m, data()[0], recipe(trained=("head.*",), head_bias=-3.0), out=tmp_path)
    assert all(p.requires_grad for p in m.parameters())
    assert not m.head.bias.any()
    assert getattr(m, "class_names", None) is None


def test_the_same_cell_of_a_notebook_again_after_a_stop(tmp_path):
    train, val = data()
    settings = recipe(steps=6, ema=0.9, loss="sigmoid", head_bias=-2.0)
    whole = sl.fit(model(), train, settings, val=val, out=tmp_path / "whole")
    m = model()
    with pytest.raises(sl.training.Stopped):
        sl.fit(m, train, settings, val=val, out=tmp_path / "run", evals=[(3, interrupt)])
    run = sl.fit(m, train, settings, val=val, out=tmp_path / "run")  # m is three steps old
    assert losses(run) == losses(whole)
    assert (run.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_the_same_cell_again_after_a_stop_at_a_smaller_size(tmp_path):
    train, _ = data()
    settings = recipe(steps=4, sizes=((0, 8), (0.5, 16)))
    whole = sl.fit(model(), train, settings, out=tmp_path / "whole")
    m = model()
    with pytest.raises(sl.training.Stopped):
        sl.fit(m, train, settings, out=tmp_path / "run", evals=[(1, interrupt)])
    assert m.config.size == (8, 8)
    assert losses(sl.fit(m, train, settings, out=tmp_path / "run")) == losses(whole)
    assert m.config.size == (16, 16)


def test_broken_exchanges_are_told_in_words_only_among_many(tmp_path):
    def fails(processes, words):
        with explain_lost_process(processes, tmp_path):
            raise RuntimeError(words)

    with pytest.raises(ConnectionError, match=r"Rank 0 of 2 lost contact .*same command"):
        fails(ProcessGroup(size=2), "[gloo] Connection closed by peer\nmore")
    with pytest.raises(RuntimeError, match="shapes"):
        fails(ProcessGroup(size=2), "shapes do not match")
    with pytest.raises(RuntimeError, match="Connection"):
        fails(ProcessGroup(), "Connection closed by peer")


def test_images_that_are_no_numbers(tmp_path):
    m = model()
    m.image = sl.ImageSpec(size=(16, 16), mean=(0.5,) * 3, std=(1e-45,) * 3)
    with pytest.raises(ValueError, match="NaN or infinite"), np.errstate(all="ignore"):
        sl.fit(m, data()[0], recipe(), out=tmp_path / "run")
