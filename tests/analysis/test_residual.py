"""Skip against branch: laws of the measure, and what it says about models whose answer is known (E23)."""

import numpy as np
import pytest
import torch

import sightline as sl
from tests import peers


@pytest.mark.parametrize("factor", [0.1, 2.0, 30.0])
def test_a_scaled_branch_scales_the_ratio(factor):
    """Norm ratio of a branch scaled by a is ratio / a."""
    z, f = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    one, other = sl.analysis.skip_branch_ratio(z, f), sl.analysis.skip_branch_ratio(z, factor * f)
    torch.testing.assert_close(other[0] * factor, one[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(other[1], one[1], rtol=0, atol=2e-6)  # 1e-7 from rounding the scaled branch
    total = torch.cosine_similarity(z.double(), (z + factor * f).double(), dim=-1)
    torch.testing.assert_close(other[2], total, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def images():
    return torch.rand(6, 3, 32, 32)


def test_a_model_equals_its_recorded_tensors(images):
    model = peers.fill(sl.build("vit-nano4", classes=5, layer_scale=0.1), std=0.1)
    found = sl.residual_ratios(model, images, batch=4)
    with torch.no_grad(), sl.record(model, "blocks.*.attn_skip", "blocks.*.attn_branch", "blocks.*.attn_sum") as tape:
        model(images)
    want = sl.analysis.skip_branch_ratio(tape["blocks.2.attn_skip"], tape["blocks.2.attn_branch"]).mean(1)
    near = {"rtol": 1e-5, "atol": 1e-6}  # another batch is summed in another order, and a cosine may be near 0
    np.testing.assert_allclose(found.per_token[:, 4], want, **near)
    np.testing.assert_allclose(found.class_token[:, 4], want[:, 0], **near)
    np.testing.assert_allclose(found.ratio[4], want[0, 1:].mean(), rtol=1e-5)
    torch.testing.assert_close(
        torch.cosine_similarity(tape["blocks.2.attn_skip"], tape["blocks.2.attn_sum"], dim=-1).mean(0).double(),
        torch.from_numpy(found.per_token[2, 4]),
        atol=1e-5,
        rtol=0,
    )
    assert list(found.of("mlp")) == [1, 3, 5, 7, 9, 11]


def test_layer_scale_is_part_of_the_branch(images):
    model = peers.fill(sl.build("vit-nano4", classes=5, depth=1, layer_scale=0.1), std=0.1)
    before = sl.residual_ratios(model, images)
    with torch.no_grad():
        model.blocks[0].attn_scale.gamma.mul_(3)
    after = sl.residual_ratios(model, images)
    np.testing.assert_allclose(after.per_token[0, 0] * 3, before.per_token[0, 0], rtol=1e-5)


def test_families(images):
    cnn = sl.residual_ratios(sl.build("bit-nano", classes=5), images)
    assert cnn.per_token.shape == (3, 3, 0)
    assert np.isfinite(cnn.ratio).all()
    assert np.isnan(cnn.class_token).all()
    hybrid = sl.residual_ratios(sl.build("r8-vit-nano4", classes=5), images)
    assert set(hybrid.sublayers) == {"convolution", "attention", "mlp"}
    assert any("adds nothing" in reason for reason in hybrid.reasons.values())  # units start as their shortcut
    gap = sl.residual_ratios(sl.build("vit-nano4", classes=5, pool="gap"), images)
    assert np.isnan(gap.class_token).all()
    assert gap.per_token.shape[2] == 64


def test_other_libraries(images):
    model = peers.timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=5)
    found = sl.residual_ratios(model, images)
    assert found.per_token.shape == (3, 4, 17)
    assert np.isfinite(found.per_token).all()
    net = peers.torchvision.models.vgg11(num_classes=5)
    with pytest.raises(ValueError, match="does not say what is added"):
        sl.residual_ratios(sl.adopt(net, image=sl.ImageSpec(size=(32, 32))), images)


RESNETS = {
    "torchvision, ReLU behind the sum": lambda: peers.torchvision.models.resnet18(num_classes=5),
    "timm, bottlenecks that start at zero": lambda: peers.timm.create_model("resnet26", num_classes=5),
    "timm, before activation": lambda: peers.timm.create_model("resnetv2_50x1_bit", num_classes=5),
    "torchvision, layer scale": lambda: peers.torchvision.models.convnext_tiny(num_classes=5),
    "transformers": lambda: peers.transformers.ResNetForImageClassification(
        peers.transformers.ResNetConfig(depths=[1, 2], hidden_sizes=[32, 64], layer_type="basic", num_labels=5)
    ),
}


@pytest.mark.parametrize("name", RESNETS)
def test_skips_of_adopted_cnns(name, images):
    """Every unit is known to add, what is recorded adds up to what the unit puts out, and nothing is changed."""
    net = RESNETS[name]().eval()
    model = sl.adopt(net, image=sl.ImageSpec(size=(32, 32)))
    peers.fill(net, std=0.1)
    sums = [p for p in sl.anatomy(model) if p.kind == "sum"]
    assert len(sums) == model.config.depth
    assert all(p.skip and p.branch for p in sums)
    with torch.no_grad(), sl.record(model, *(q for p in sums for q in (p.skip, p.branch, p.path))) as tape:
        model(images)
    for p in sums:
        total = tape[p.skip] + tape[p.branch]
        want = total.clamp(min=0) if (tape[p.path] >= 0).all() else total
        torch.testing.assert_close(tape[p.path], want)
    found = sl.residual_ratios(model, images)
    assert np.isfinite(found.ratio).all()
    first = tape[sums[0].skip].flatten(2).norm(dim=1) / tape[sums[0].branch].flatten(2).norm(dim=1)
    assert found.ratio[0] == pytest.approx(first.double().mean().item(), rel=1e-5)
    field = sl.receptive_field(model, images, side="before", n=2, probes=1)
    assert field.names[0] == "units.0.branch"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_adopting_changes_no_weight():
    net = peers.timm.create_model("resnet26", num_classes=5)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    assert not before["layer1.0.bn2.weight"].any() or not before["layer1.0.bn3.weight"].any()  # starts at zero
    sl.adopt(net, image=sl.ImageSpec(size=(32, 32)))
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_a_block_without_skips_has_no_ratio(images):
    found = sl.residual_ratios(sl.build("vit-nano4", classes=5, no_skip=(1,)), images)
    assert np.isnan(found.ratio[2:4]).all()
    assert np.isfinite(found.ratio[[0, 1, 4, 5]]).all()
    assert "no skip connection" in found.reasons["blocks.1.attn_sum"]


def test_registers_are_no_class_token(images):
    """A model that averages its patches and has registers: the first of them is not read as a class token."""
    gap = sl.build("vit-nano4", classes=5, depth=2, pool="gap", registers=3)
    found = sl.residual_ratios(gap, images)
    assert np.isnan(found.class_token).all()
    assert np.isfinite(found.ratio).all()
    assert found.per_token.shape[2] == 3 + 64
    assert np.isfinite(sl.residual_ratios(sl.build("vit-nano4", depth=2, registers=3), images).class_token).all()
    assert "no class token" in sl.cka(gap, None, images, layers="blocks", tokens="cls").reasons["blocks.0.mlp_sum"]
    with pytest.raises(ValueError, match="no class token"):
        sl.extract(gap, sl.dataset("scenes/shape", num=4, size=32), layers=[0], tokens="cls")
    assert sl.localization(gap, images).class_token.shape[0] == 0
    assert sl.head_attention(gap, images[:1]).prefix == 0


@pytest.mark.parametrize("pool", ["avg", "token"])
def test_registers_of_another_library(images, pool):
    settings = {"class_token": pool == "token", "global_pool": pool, "reg_tokens": 2, "num_classes": 5}
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
    model = sl.adopt(peers.timm.models.VisionTransformer(**small, **settings))
    found = sl.residual_ratios(model, images)
    assert np.isfinite(found.class_token).all() == (pool == "token")
    assert found.about.models[0].pool == ("cls" if pool == "token" else "gap")


@pytest.mark.parametrize("scale", [1e19, float("inf")])
def test_overflow_has_a_ratio_or_a_reason(images, scale):
    """Squares beyond float32 are computed in float64; what is infinite itself has a reason and no ratio."""
    z, f = torch.full((1, 2, 8), 3e19), torch.full((1, 2, 8), 1e19)
    torch.testing.assert_close(sl.analysis.skip_branch_ratio(z, f)[0], torch.full((1, 2), 3.0, dtype=torch.float64))
    model = sl.build("vit-nano4", classes=5, depth=2)
    with torch.no_grad():
        list(model.blocks[0].mlp.parameters())[-1].fill_(scale)  # the bias of its last layer
    found = sl.residual_ratios(model, images)
    assert not (found.ratio == 0).any()
    if scale == float("inf"):
        assert np.isnan(found.ratio[1])
        assert "infinite" in found.reasons["blocks.0.mlp_sum"]


def test_replicates_leave_groups_out(images):
    model = sl.build("vit-nano4", classes=5, depth=1)
    found = sl.residual_ratios(model, images, batch=4)
    assert found.replicates.shape == (6, 4, 2)
    single = [sl.residual_ratios(model, images[[i]]) for i in range(6)]
    each = np.array([[r.ratio, r.class_token[0], r.cosine_sum, r.class_token[2]] for r in single])
    want = np.sort((each.sum(0) - each) / 5, axis=0)
    np.testing.assert_allclose(np.sort(found.replicates, axis=0), want, rtol=1e-5)


class Dead(torch.nn.Module):
    """A unit without biases: where its input is zero, so is all that it adds."""

    def __init__(self):
        super().__init__()
        self.one, self.two = (torch.nn.Conv2d(4, 4, 1, bias=False) for _ in range(2))
        self.relu = torch.nn.ReLU()

    def forward(self, x):
        return self.relu(x + self.two(self.relu(self.one(x))))


def test_places_where_nothing_is_added_to_nothing_are_left_out_and_said():
    """0 / 0 is no number: the other places keep their ratio, and the reason says how many have none."""
    torch.manual_seed(0)
    first, units = torch.nn.Conv2d(3, 4, 1), [Dead(), Dead()]
    net = torch.nn.Sequential(first, torch.nn.ReLU(), *units, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    torch.nn.init.zeros_(first.bias)
    with torch.no_grad():
        first.weight.abs_()
        for unit in units:
            unit.one.weight.abs_()  # so that only what is dead adds nothing
    spec = sl.ImageSpec(size=(16, 16), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    images = torch.rand(5, 3, 16, 16)
    images[:, :, :, :4] = 0  # a black edge
    found = sl.residual_ratios(sl.adopt(net.eval(), image=spec), images, batch=2)
    with torch.no_grad():
        z = torch.relu(first(images)).double()[:, :, :, 4:]
        f = units[0].two(torch.relu(units[0].one(z.float()))).double()
    want = (z.norm(dim=1) / f.norm(dim=1)).mean()
    assert found.ratio[0] == pytest.approx(want.item(), rel=1e-5)
    assert found.cosine_branch[0] == pytest.approx(torch.cosine_similarity(z, f, dim=1).mean().item(), abs=1e-5)
    assert np.isfinite(found.replicates[:, [0, 2]]).all()
    assert "25.0% no ratio" in found.reasons["inner.2"]
