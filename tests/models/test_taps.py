"""Recording by module path: right values, no traces, loud failures."""

import pytest
import torch

import sightline as sl
from tests.peers import fill

FAMILIES = ["vit-nano4", "bit-nano", "r8-vit-nano4"]


def image():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


@pytest.mark.parametrize("name", ["vit-nano4", "r8-vit-nano4"])
def test_every_tensor_of_the_block_has_a_path(name):
    model, x = fill(sl.build(name, classes=10)).eval(), image()
    with sl.record(model, "blocks.*.**", "pooled", "norm") as tape:
        model(x)
    at = {k.removeprefix("blocks.3."): v for k, v in tape.items() if k.startswith("blocks.3.")}
    skip = tape["blocks.2.mlp_sum"]
    assert torch.equal(at["attn_skip"], skip)
    torch.testing.assert_close(at["attn_sum"], skip + at["attn_branch"])
    torch.testing.assert_close(at["mlp_sum"], at["attn_sum"] + at["mlp_branch"])
    torch.testing.assert_close(at["attn.per_head"], at["attn.probs"] @ at["attn.v"])
    logits = at["attn.q"] @ at["attn.k"].mT * at["attn.q"].shape[-1] ** -0.5
    torch.testing.assert_close(at["attn.probs"], logits.softmax(-1))
    block = model.blocks[3]
    torch.testing.assert_close(at["norm1"], block.norm1(skip))
    torch.testing.assert_close(at["mlp_branch"], block.mlp.fc2(at["mlp.hidden"]))
    torch.testing.assert_close(tape["pooled"], tape["norm"][:, 0])


def test_branch_is_taken_behind_scale_and_drop():
    model, x = fill(sl.build("vit-nano4", layer_scale=0.1)).eval(), image()
    with sl.record(model, "blocks.0.attn", "blocks.0.attn_branch") as tape:
        model(x)
    gamma = model.blocks[0].attn_scale.gamma
    torch.testing.assert_close(tape["blocks.0.attn_branch"], tape["blocks.0.attn"] * gamma)


def test_bit_units_have_skip_branch_and_sum():
    model, x = fill(sl.build("bit-nano")).eval(), image()
    with sl.record(model, "stages.*.units.*.*", "norm", "pooled") as tape:
        model(x)
    for s in range(3):
        at = f"stages.{s}.units.0."
        torch.testing.assert_close(tape[at + "sum"], tape[at + "skip"] + tape[at + "branch"])
    assert torch.equal(tape["stages.0.units.0.branch"], tape["stages.0.units.0.conv3"])
    torch.testing.assert_close(tape["pooled"], tape["norm"].mean((2, 3)))
    assert tape["norm"].min() >= 0  # recorded behind the ReLU


@pytest.mark.parametrize("name", FAMILIES)
def test_observing_changes_nothing(name):
    model, x = fill(sl.build(name, classes=10)).eval(), image()
    keys = list(model.state_dict())
    plain = model(x)
    with sl.record(model, "**") as tape:
        observed = model(x)
    torch.testing.assert_close(plain, observed, atol=1e-5, rtol=0)  # two kernels of attention, 4e-7 apart
    assert torch.equal(model(x), plain)
    assert hooks(model) == 0
    assert list(model.state_dict()) == keys
    assert not any(name.endswith(("probs", "sum", "branch", "pooled")) for name in keys)
    assert len(tape) > 20


def test_what_is_recorded_is_not_overwritten_later():
    model, x = fill(sl.build("bit-nano")).eval(), image()
    with sl.record(model, "**", keep=lambda name, t: (t, t.clone())) as tape:
        model(x)
    changed = [name for name, (kept, copy) in tape.items() if not torch.equal(kept, copy)]
    # the norm inside NormReLU is rectified in place; the module that the anatomy lists is the one around it
    assert all(name.endswith("norm") and name.split(".")[-2].startswith("norm") for name in changed)
    listed = {p.path for p in sl.anatomy(model)}
    assert not listed & set(changed)


def test_hooks_are_gone_after_an_exception():
    model = sl.build("vit-nano4")
    with pytest.raises(RuntimeError, match="mine"), sl.record(model, "blocks.*.attn.probs"):
        raise RuntimeError("mine")
    assert hooks(model) == 0
    with pytest.raises(ValueError, match="takes images"), sl.record(model, "blocks.*"):
        model(torch.zeros(1, 3, 30, 30))
    assert hooks(model) == 0


def test_a_keep_function_that_fails_leaves_no_hook():
    model = sl.build("vit-nano4")

    def fail(name, tensor):
        raise KeyError(name)

    with pytest.raises(KeyError), sl.record(model, "blocks.*", keep=fail):
        model(image())
    assert hooks(model) == 0


def test_unmatched_and_never_run_names_raise():
    model = sl.build("vit-nano4", classes=10)
    with pytest.raises(ValueError, match=r"blocks\.\d\.attn\.probs"), sl.record(model, "blocks.*.attn.prob"):
        pass
    with pytest.raises(ValueError, match="at least one"), sl.record(model):
        pass
    with pytest.raises(ValueError, match="did not run"), sl.record(model, "blocks.*"):
        pass
    with pytest.raises(ValueError, match=r"blocks\.\d"), sl.record(model, "blocks"):  # a list puts out nothing
        model(image())


def test_globs_stay_within_one_part():
    model = sl.build("vit-nano4")
    assert sl.models.paths(model, "blocks.*") == [f"blocks.{i}" for i in range(6)]
    assert sl.models.paths(model, "blocks.[0-2].norm?") == [f"blocks.{i}.norm{j}" for i in range(3) for j in (1, 2)]
    assert "blocks.0.attn.probs" in sl.models.paths(model, "**.probs")
    assert sl.models.paths(model, "blocks.[!0-4].mlp") == ["blocks.5.mlp"]
    assert sl.models.paths(model, "nothing") == []


def test_gradients_flow_through_what_is_recorded():
    model, x = fill(sl.build("vit-nano4")), image().requires_grad_()
    with sl.record(model, "blocks.2.attn_sum") as tape:
        model(x)
    (gradient,) = torch.autograd.grad(tape["blocks.2.attn_sum"][:, 5].sum(), x)
    assert gradient.abs().sum() > 0


def test_keep_reduces_inside_the_hook():
    model = sl.build("vit-nano4")
    with sl.record(model, "blocks.*", keep=lambda name, t: t.mean().item()) as tape:
        model(image())
    assert all(isinstance(v, float) for v in tape.values())


def test_outputs_of_other_libraries_are_unwrapped():
    lstm = torch.nn.Sequential(torch.nn.LSTM(4, 3, batch_first=True))
    with sl.record(lstm, "0") as tape:
        lstm(torch.randn(2, 5, 4))
    assert tape["0"].shape == (2, 5, 3)
