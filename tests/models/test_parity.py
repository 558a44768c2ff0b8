"""With the same weights our models and those of other libraries give the same logits (float64)."""

import pytest
import torch

import sightline as sl
from tests import peers
from tests.peers import fill

# timm's numeric switches, which differ from the papers' code
TIMM_HYBRID = {"gelu": "erf", "standardize_eps": 1e-8, "standardize_eps_on": "variance", "norm_eps": 1e-5}
TIMM_BIT = {"standardize_eps": 1e-8}


def same(ours, peer, *size, batch=2, atol=1e-9):
    x = torch.randn(batch, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs = peer(x)
        theirs = getattr(theirs, "logits", theirs)
        assert theirs.abs().max() > 0.1
        torch.testing.assert_close(ours(x), theirs, atol=atol, rtol=0)


def ready(name, **changes):
    return fill(sl.build(name, classes=10, **changes)).double().eval()


# One model in full; of the larger ones, whose blocks are all alike, the first two.
VITS = [("vit-ti16", 12), ("vit-b32", 2)]
TIMM_NAMES = {"vit-ti16": "vit_tiny_patch16_224", "vit-b32": "vit_base_patch32_224"}


@pytest.mark.parametrize(("name", "depth"), VITS)
def test_vit_equals_timm(name, depth):
    ours = ready(name, gelu="erf", depth=depth)
    peer = peers.timm.create_model(TIMM_NAMES[name], num_classes=10, depth=depth)
    same(ours, peers.timm_vit(ours, peer.double()), 224, 224)


@pytest.mark.parametrize(("name", "depth"), VITS)
def test_vit_equals_transformers(name, depth):
    ours = ready(name, gelu="erf", norm_eps=1e-12, depth=depth)
    c = ours.config
    settings = peers.transformers.ViTConfig(
        hidden_size=c.width, num_hidden_layers=c.depth, num_attention_heads=c.heads, intermediate_size=c.mlp_width,
        image_size=224, patch_size=c.patch[0], num_labels=10, layer_norm_eps=1e-12,
    )  # fmt: skip
    peer = peers.transformers.ViTForImageClassification(settings).double()
    same(ours, peers.hf_vit(ours, peer), 224, 224)


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize(("name", "depth"), VITS)
def test_vit_equals_torchvision(name, depth, head):
    ours = ready(name, gelu="erf", head=head, depth=depth)
    c = ours.config
    peer = peers.torchvision.models.VisionTransformer(
        224, c.patch[0], c.depth, c.heads, c.width, c.mlp_width, num_classes=10,
        representation_size=c.width if head == "mlp" else None,
    )  # fmt: skip
    same(ours, peers.torchvision_vit(ours, peer.double()), 224, 224)


def test_resized_to_384_equals_timm():
    ours = sl.models.resize(ready("vit-ti16", gelu="erf"), size=384, method="timm")
    peer = peers.timm.create_model("vit_tiny_patch16_384", num_classes=10).double()
    same(ours, peers.timm_vit(ours, peer), 384, 384)
    small = ready("vit-ti16", gelu="erf")
    by_timm = peers.timm.layers.resample_abs_pos_embed(small.positions[0].table[None].detach(), [24, 24], [14, 14])
    torch.testing.assert_close(ours.positions[0].table, by_timm[0], atol=1e-5, rtol=0)  # timm resamples in float32


@pytest.mark.parametrize(
    ("name", "peer", "size"),
    [("bit-r50x1", "resnetv2_50x1_bit", (96, 96)), ("bit-r50x1", "resnetv2_50x1_bit", (225, 161))],
)
def test_bit_equals_timm(name, peer, size):
    ours = ready(name, **TIMM_BIT)
    same(ours, peers.timm_bit(ours, peers.timm.create_model(peer, num_classes=10).double()), *size)


@pytest.mark.parametrize(
    ("name", "peer", "depth"),
    [
        ("r26-vit-s32", "vit_small_r26_s32_224", 12),
        ("r-vit-ti16", "vit_tiny_r_s16_p8_224", 12),
        ("r50-vit-b16", "vit_base_r50_s16_224", 2),
    ],
)
def test_hybrid_equals_timm(name, peer, depth):
    ours = ready(name, **TIMM_HYBRID, depth=depth)
    theirs = peers.timm.create_model(peer, num_classes=10, depth=depth)
    same(ours, peers.timm_vit(ours, theirs.double()), 224, 224, batch=1)


def test_patch_kernels_resize_as_timm_does():
    kernel = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model = fill(sl.build("vit-ti16", classes=10))
    with torch.no_grad():
        model.embed.proj.weight[:8] = kernel
    ours = sl.models.resize(model, size=112, patch=8).embed.proj.weight[:8]
    theirs = peers.timm.layers.resample_patch_embed(kernel, [8, 8])
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
