"""The Vision Transformer against its paper (E4, E5, E7, E8, E9, E23), its options and its refusals."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import sightline as sl
from tests.peers import fill

TINY = {"width": 16, "depth": 3, "heads": 2, "mlp_width": 24, "patch": 4, "size": 16, "classes": 5}


def tiny(**changes):
    return fill(sl.build(sl.models.ViTConfig(**{**TINY, **changes}))).double().eval()


def make_images(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def test_patch_embedding_is_a_convolution_and_a_flattened_linear_map():
    model, x = tiny(), make_images(2, 3, 16, 16)
    ours = model.embed(x)
    conv = F.conv2d(x, model.embed.proj.weight, model.embed.proj.bias, stride=4).flatten(2).mT
    patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    linear = patches @ model.embed.proj.weight.flatten(1).T + model.embed.proj.bias
    torch.testing.assert_close(ours, conv)
    torch.testing.assert_close(ours, linear)


@pytest.mark.parametrize(("classes", "loss"), [(10, 2.302585), (1000, 6.907755)])
@pytest.mark.parametrize("name", ["vit-nano4", "bit-nano", "r8-vit-nano4"])
def test_a_zero_head_starts_at_log_k(name, classes, loss):
    model = sl.build(name, classes=classes)
    logits = model(torch.randn(4, 3, 32, 32))
    assert logits.eq(0).all()
    assert F.cross_entropy(logits, torch.arange(4)).item() == pytest.approx(loss, abs=5e-6)  # float32: 5e-7 a rounding
    assert loss == pytest.approx(math.log(classes), abs=1e-6)


def test_pretraining_head_has_a_tanh_layer_of_the_width():
    model, x = tiny(head="mlp"), make_images(2, 3, 16, 16)
    assert model.pre_logits.weight.shape == (16, 16)
    y = model.encode(x)[:, 0]
    torch.testing.assert_close(model(x), model.head(torch.tanh(model.pre_logits(y))))
    torch.testing.assert_close(model.features(x).pooled, torch.tanh(model.pre_logits(y)))


def by_hand(model, x):
    """Equations 1 to 4 written out with nothing of ours but the weights."""
    state = model.state_dict()

    def dense(x, name):
        return x @ state[name + ".weight"].T + state[name + ".bias"]

    def layer_norm(x, name):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
        return x * state[name + ".weight"] + state[name + ".bias"]

    patches = F.conv2d(x, state["embed.proj.weight"], state["embed.proj.bias"], stride=4).flatten(2).mT
    z = torch.cat([state["prefix"].expand(len(x), -1, -1), patches], 1) + state["positions.0.table"]
    for i in range(3):
        q, k, v = dense(layer_norm(z, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv").chunk(3, -1)
        heads = []
        for h in range(2):
            s = slice(8 * h, 8 * h + 8)
            heads.append((q[..., s] @ k[..., s].mT / 8**0.5).softmax(-1) @ v[..., s])
        z = z + dense(torch.cat(heads, -1), f"blocks.{i}.attn.out")
        hidden = F.gelu(dense(layer_norm(z, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1"), approximate="tanh")
        z = z + dense(hidden, f"blocks.{i}.mlp.fc2")
    return z, layer_norm(z, "norm")[:, 0]


def test_the_forward_pass_is_equations_1_to_4():
    model, x = tiny(), make_images(2, 3, 16, 16)
    z, y = by_hand(model, x)
    with sl.record(model, "blocks.2.mlp_sum") as tape:
        logits = model(x)
    torch.testing.assert_close(tape["blocks.2.mlp_sum"], z)
    torch.testing.assert_close(model.features(x).pooled, y)
    torch.testing.assert_close(logits, y @ model.head.weight.T + model.head.bias)


def test_post_norm_is_the_vanilla_encoder():
    model, x = tiny(norm_at="post"), make_images(2, 3, 16, 16)
    block = model.blocks[0]
    z = torch.randn(2, 17, 16, dtype=torch.float64)
    a = block.norm1(z + block.attn(z))
    torch.testing.assert_close(block(z), block.norm2(a + block.mlp(a)))
    assert isinstance(model.norm, torch.nn.Identity)
    assert model(x).isfinite().all()


@pytest.mark.parametrize("position", ["none", "1d"])
def test_without_positions_patches_have_no_order(position):
    model, x = tiny(position=position), make_images(1, 3, 16, 16)
    moved, order = sl.analysis.permute_patches(x, 4)
    before, after = model.features(x), model.features(moved)
    same_tokens = torch.allclose(after.tokens, before.tokens[:, order], atol=1e-9)
    same_class = torch.allclose(after.prefix, before.prefix, atol=1e-9)
    assert (same_tokens, same_class) == ((True, True) if position == "none" else (False, False))


def test_the_mlp_is_local_and_attention_is_not():
    block, z = tiny().blocks[0], torch.randn(6, 16, dtype=torch.float64)
    off_diagonal = ~torch.eye(6, dtype=torch.bool)
    mlp = sl.analysis.token_jacobian(lambda t: block.feedforward_branch(block.norm2(t)), z)
    attn = sl.analysis.token_jacobian(lambda t: block.attention_branch(block.norm1(t)), z)
    assert mlp[off_diagonal].eq(0).all()
    assert attn.gt(0).all()
    assert {sl.analysis.jacobian_locality(block.mlp, torch.randn_like(z)) for _ in range(10)} == {
        1
    }  # exactly, however sums round
    assert sl.analysis.jacobian_locality(block.attn, z) < 1
    assert sl.analysis.permutation_error(block, z[None]) < 1e-12


@pytest.mark.parametrize("index", [0, 1, 2])
def test_no_skip_changes_one_block_only(index):
    plain, cut, x = tiny(), tiny(no_skip=(index,)), make_images(2, 3, 16, 16)
    with sl.record(plain, "blocks.*") as a:
        plain(x)
    with sl.record(cut, "blocks.*", "blocks.*.attn_branch", "blocks.*.attn_sum", "blocks.*.mlp_branch") as b:
        cut(x)
    for i in range(3):
        alike = torch.equal(a[f"blocks.{i}"], b[f"blocks.{i}"])
        assert alike == (i < index)
    assert torch.equal(b[f"blocks.{index}.attn_sum"], b[f"blocks.{index}.attn_branch"])  # both connections are gone
    assert torch.equal(b[f"blocks.{index}"], b[f"blocks.{index}.mlp_branch"])
    z = torch.randn(1, 17, 16, dtype=torch.float64)
    for i in range(3):
        assert torch.equal(plain.blocks[i](z), cut.blocks[i](z)) == (i != index)


def test_the_norm_ratio_of_a_scaled_branch_scales_inversely():
    def ratio(model):
        with sl.record(model, "blocks.1.attn_skip", "blocks.1.attn_branch") as tape:
            model(make_images(2, 3, 16, 16))
        return tape["blocks.1.attn_skip"].norm(dim=-1) / tape["blocks.1.attn_branch"].norm(dim=-1)

    model = tiny()
    before = ratio(model)
    with torch.no_grad():
        model.blocks[1].attn.out.weight.mul_(2.5)
        model.blocks[1].attn.out.bias.mul_(2.5)
    torch.testing.assert_close(ratio(model), before / 2.5)


@pytest.mark.parametrize(
    ("changes", "prefix", "rows"),
    [
        ({}, 1, 17),
        ({"pool": "gap"}, 0, 16),
        ({"pool": "gap", "class_token": True}, 1, 17),
        ({"pool": "map"}, 0, 16),
        ({"distill_token": True}, 2, 18),
        ({"registers": 4}, 5, 17),
        ({"registers": 4, "position_rows": 0}, 5, 16),
        ({"position_rows": 0}, 1, 16),
        ({"layer_scale": 0.1, "drop_path": 0.2, "dropout": 0.1, "qkv_bias": False}, 1, 17),
        ({"norm": "batch"}, 1, 17),
        ({"final_norm": "pooled", "pool": "gap"}, 0, 16),
        ({"norm_at": "post", "norm": "batch"}, 1, 17),
        ({"channels": 5}, 1, 17),
    ],
)
def test_options_build_run_and_train(changes, prefix, rows):
    model = tiny(**changes)
    x = make_images(2, model.config.channels, 16, 16)
    out = model.features(x)
    assert (out.tokens.shape, out.grid, out.prefix.shape) == ((2, 16, 16), (4, 4), (2, prefix, 16))
    assert out.map.shape == (2, 16, 4, 4)
    torch.testing.assert_close(out.map[:, :, 1, 2], out.tokens[:, 6])
    assert model.positions[0].table.shape[0] == rows
    model.train()
    F.cross_entropy(model(x), torch.tensor([0, 1])).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_queries_and_keys_are_normalized_per_head(tmp_path):
    model = fill(sl.build("vit-nano4", qk_norm=True, classes=10, depth=1))
    attn = model.blocks[0].attn
    with sl.record(model, "blocks.0.attn.q", "blocks.0.norm1") as seen, torch.no_grad():
        model(torch.randn(2, 3, 32, 32))
    q = attn.qkv(seen["blocks.0.norm1"])[..., :64].unflatten(-1, (4, 16)).transpose(1, 2)
    expected = F.layer_norm(q, (16,), attn.q_norm.weight, attn.q_norm.bias, 1e-6)
    torch.testing.assert_close(seen["blocks.0.attn.q"], expected)
    assert "blocks.0.attn.q_norm.weight" not in sl.build("vit-nano4").state_dict()
    with pytest.raises(ValueError, match="does not normalize queries and keys"):
        sl.save(model, tmp_path / "model.pth", to="timm")


def test_registers_stand_between_class_token_and_patches_without_position():
    model, x = tiny(registers=2), make_images(1, 3, 16, 16)
    with sl.record(model, "encoder_input", "embed") as tape:
        model(x)
    z, table = tape["encoder_input"][0], model.positions[0].table
    torch.testing.assert_close(z[0], model.prefix[0] + table[0])
    torch.testing.assert_close(z[1:3], model.prefix[1:])
    torch.testing.assert_close(z[3:], tape["embed"][0] + table[1:])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"distill_token": True},
        {"norm_at": "post"},
        {"registers": 2, "position": "relative"},
        {"no_skip": (2,), "layer_scale": 0.3},
        {"position_at": "every", "final_norm": "pooled"},
        {"norm": "batch"},
        {"pool": "gap"},
    ],
)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_leaving_out_what_the_head_does_not_read_changes_no_logit_and_no_gradient(changes, checkpointing):
    model, x = tiny(**changes).train(), make_images(3, 3, 16, 16)
    model.checkpointing = checkpointing
    short = model(x)
    short.square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with sl.record(model, "blocks.2.mlp_sum", keep=lambda name, t: t.shape) as tape:  # watched: every token to the end
        whole = model(x)
    whole.square().sum().backward()
    assert tape["blocks.2.mlp_sum"] == (3, model.encoder_config.tokens, 16)
    torch.testing.assert_close(short, whole)
    for a, b in zip(gradients, (p.grad for p in model.parameters())):
        torch.testing.assert_close(a, b)


def test_the_last_block_works_on_what_the_head_reads():
    model, seen = tiny(), []
    original = model.blocks[2].mlp.fc1.forward
    model.blocks[2].mlp.fc1.forward = lambda x: seen.append(tuple(x.shape)) or original(x)  # no hook: nobody "watches"
    model(make_images(2, 3, 16, 16))
    model.features(make_images(2, 3, 16, 16))
    assert seen == [(2, 1, 16), (2, 17, 16)]


def test_two_heads_of_a_distilled_model_vote():
    model, x = tiny(distill_token=True), make_images(2, 3, 16, 16)
    z = model.encode(x)
    torch.testing.assert_close(model(x), (model.head(z[:, 0]) + model.head_distill(z[:, 1])) / 2)


def test_gap_is_the_mean_of_the_patch_tokens():
    for changes in ({"pool": "gap"}, {"pool": "gap", "class_token": True, "registers": 2}):
        out = tiny(**changes).features(make_images(2, 3, 16, 16))
        torch.testing.assert_close(out.pooled, out.tokens.mean(1))


def test_no_classes_give_features():
    model, x = tiny(classes=0), make_images(2, 3, 16, 16)
    torch.testing.assert_close(model(x), model.features(x).pooled)


def test_dropout_and_stochastic_depth_act_in_training_only():
    model, x = tiny(dropout=0.5, drop_path=0.5), make_images(2, 3, 16, 16)
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))
    assert [b.attn_path.rate for b in model.blocks] == [0, 0.25, 0.5]


def test_initial_values_follow_the_table():
    model = sl.build("vit-ti16", head_bias=-6.9, registers=2, head="mlp")
    state = model.state_dict()
    bound = math.sqrt(6 / (192 + 192))  # q, k, v each by its own fan
    for part in state["blocks.3.attn.qkv.weight"].chunk(3):
        assert 0.99 * bound < part.abs().max() <= bound * (1 + 1e-6)  # float32 may round up
    assert state["blocks.3.mlp.fc1.weight"].abs().max() <= math.sqrt(6 / (192 + 768)) * (1 + 1e-6)
    assert state["blocks.3.mlp.fc1.bias"].std().item() == pytest.approx(1e-6, rel=0.1)
    assert state["blocks.3.attn.qkv.bias"].eq(0).all()
    assert state["positions.0.table"].std().item() == pytest.approx(0.02, rel=0.02)
    assert state["prefix"][0].eq(0).all()
    assert state["prefix"][1:].std().item() == pytest.approx(1e-6, rel=0.2)
    assert state["embed.proj.weight"].std().item() == pytest.approx(math.sqrt(1 / 768), rel=0.02)
    assert state["pre_logits.weight"].std().item() == pytest.approx(math.sqrt(1 / 192), rel=0.03)
    assert state["head.weight"].eq(0).all()
    assert torch.allclose(state["head.bias"], torch.tensor(-6.9))
    assert state["norm.weight"].eq(1).all()


@given(y=st.integers(1, 6), x=st.integers(1, 6), p=st.integers(1, 5), q=st.integers(1, 5), channels=st.integers(1, 4))
def test_any_grid_any_patch_any_channels(y, x, p, q, channels):
    settings = sl.models.ViTConfig(
        width=8, depth=1, heads=2, mlp_width=8, patch=(p, q), size=(y * p, x * q), channels=channels, classes=2
    )
    out = sl.build(settings).features(torch.randn(1, channels, y * p, x * q))
    assert (out.grid, out.tokens.shape[1]) == ((y, x), y * x)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"size": 18}, "Try 16 x 16"),
        ({"heads": 3}, "3 heads"),
        ({"pool": "mean"}, "'gap'"),
        ({"pool": "cls", "class_token": False}, "pool='gap'"),
        ({"pool": "gap", "distill_token": True}, "cls"),
        ({"no_skip": (3,)}, "0 to 2"),
        ({"position": "sincos", "width": 18}, "divisible by 4"),
        ({"position": "2d", "width": 15, "heads": 3}, "divisible by 2"),
        ({"classes": -1}, "at least 0"),
        ({"classes": "ten"}, "whole number"),
        ({"size": 16.0}, "whole number"),
        ({"size": (16, 16, 3)}, "height, width"),
        ({"registers": True}, "whole number"),
        ({"depth": 0}, "at least 1"),
        ({"dropout": 1.0}, r"\[0, 1\)"),
        ({"position_rows": 2}, "between 0 and 1"),
        ({"layer_scale": -1.0}, "positive"),
        ({"norm_at": "post", "final_norm": "pooled"}, "final norm"),
    ],
)
def test_impossible_options_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        sl.build(sl.models.config("vit-nano4"), **{**TINY, **changes})


@pytest.mark.parametrize("name", ["vit-nano4", "bit-nano", "r8-vit-nano4"])
def test_bad_images_are_refused_with_advice(name):
    model = sl.build(name, classes=2)
    good = torch.zeros(2, 3, 32, 32)
    bad = good.clone()
    bad[1, 0, 3, 3] = float("nan")
    for x, says in [
        (good[:, :1], r"\(batch, 3, height, width\)"),
        (good[0], r"x\[None\]"),
        (good.permute(0, 2, 3, 1), "permute"),
        (good.byte(), "Normalize"),
        (good.numpy(), "as_tensor"),
        (bad, r"Images \[1\]"),
    ]:
        with pytest.raises(ValueError, match=says):
            model(x)
        with pytest.raises(ValueError, match=says):
            model.features(x)


@pytest.mark.parametrize("name", ["vit-nano4", "r8-vit-nano4"])
def test_another_size_is_refused_with_the_way_out(name):
    with pytest.raises(ValueError, match=r"sl.models.resize\(model, size=\(64, 48\)\)"):
        sl.build(name)(torch.zeros(1, 3, 64, 48))
    assert sl.models.resize(sl.build(name), size=(64, 48))(torch.zeros(1, 3, 64, 48)).shape == (1, 1000)
