"""Live models of other libraries, used unchanged."""

import pytest
import torch
from torch import nn

import sightline as sl
from tests.peers import fill, timm, torchvision, transformers
from tests.weights.makers import PEERS, logits

TV = torchvision.models


def vgg():
    """VGG-11 with 64 units in place of 4,096 between its map and its classes, which are no part of its anatomy."""
    with torch.device("meta"):
        made = TV.vgg11(num_classes=7)
    made.classifier[0], made.classifier[3], made.classifier[6] = (
        nn.Linear(a, b, device="meta") for a, b in ((25088, 64), (64, 64), (64, 7))
    )
    return made.to_empty(device="cpu")  # every value is filled in below


CNNS = {
    "torchvision resnet18": (lambda: TV.resnet18(num_classes=7), None, 8),
    "torchvision convnext": (lambda: TV.convnext_tiny(num_classes=7), None, 18),
    "torchvision efficientnet": (lambda: TV.efficientnet_b0(num_classes=7), None, 16),
    "torchvision vgg": (vgg, None, 8),
    "torchvision densenet": (lambda: TV.densenet121(num_classes=7), None, 58),
    "timm resnet": (lambda: timm.create_model("resnet26", num_classes=7), None, 8),
    "timm regnet": (lambda: timm.create_model("regnety_002", num_classes=7), None, 13),
    "timm bit": (lambda: timm.create_model("resnetv2_50x1_bit", num_classes=7), None, 16),
    "transformers resnet": (
        lambda: transformers.ResNetForImageClassification(
            transformers.ResNetConfig(depths=[1, 2], hidden_sizes=[32, 64], layer_type="basic", num_labels=7)
        ),
        logits,
        3,
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_what_is_adopted_says_what_it_said(name):
    peer = PEERS[name]
    theirs = peer.ready()
    size = (peer.size, peer.size)
    image = sl.ImageSpec(size=size) if "bit" in name else None
    before = {k: v.clone() for k, v in theirs.state_dict().items()}
    model = sl.adopt(theirs, image)
    x = torch.randn(2, 3, *model.config.size, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(model(x), peer.ask(theirs, x).flatten(1))
        out = model.features(x)
    assert out.tokens.shape == (2, out.grid[0] * out.grid[1], model.config.width)
    assert out.prefix.shape[1] == model.config.prefix
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in theirs.modules())
    assert all(torch.equal(before[k], v) for k, v in theirs.state_dict().items())


@pytest.mark.parametrize("name", PEERS)
def test_features_of_the_adopted_are_those_of_the_loaded(name):
    peer = PEERS[name]
    theirs = peer.ready()
    adopted = sl.adopt(theirs, sl.ImageSpec(size=(peer.size, peer.size)))
    ours = sl.load(theirs.state_dict(), **peer.hints)
    x = torch.randn(2, 3, peer.size, peer.size, dtype=torch.float64)
    with torch.no_grad():
        a, b = adopted.features(x), ours.features(x)
    assert a.grid == b.grid
    torch.testing.assert_close(a.tokens, b.tokens)
    torch.testing.assert_close(a.prefix, b.prefix)
    if name != "torchvision-pre-logits":  # there the head's own layers begin one layer earlier
        torch.testing.assert_close(a.pooled, b.pooled)


@pytest.mark.parametrize("name", [n for n in PEERS if "bit" not in n])
def test_every_tensor_of_an_adopted_vit_is_ours(name):
    peer = PEERS[name]
    theirs = peer.ready()
    adopted, ours = sl.adopt(theirs), sl.load(theirs.state_dict(), **peer.hints)
    x = torch.randn(2, 3, peer.size, peer.size, dtype=torch.float64)
    paths = [p.path for p in sl.anatomy(adopted)]
    known = {p.path for p in sl.anatomy(ours)}
    with torch.no_grad(), sl.record(adopted, *paths) as left:
        adopted(x)
    other = {"torchvision-pre-logits": "pooled", "hf-deit": "head", "deit-distilled": "head"}.get(name)
    shared = [p for p in paths if p in known and p != other]  # a head of two layers, or of two votes, is cut elsewhere
    with torch.no_grad(), sl.record(ours, *shared) as right:
        ours(x)
    assert len(shared) >= len(paths) - 2  # a norm behind the pooling is not a norm of tokens
    for path in shared:
        torch.testing.assert_close(left[path], right[path], msg=path)


def test_gradients_flow_through_what_is_adopted():
    model = sl.adopt(PEERS["timm"].ready())
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    with sl.record(model, "blocks.0.mlp_sum") as tape:
        model(x).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    assert tape["blocks.0.mlp_sum"].requires_grad


@pytest.mark.parametrize("name", CNNS)
def test_cnns_are_understood(name):
    make, ask, units = CNNS[name]
    theirs = fill(make()).eval()
    model = sl.adopt(theirs, sl.ImageSpec(size=(64, 64)))
    x = torch.randn(2, 3, 64, 64)
    parts = sl.anatomy(model)
    with torch.no_grad(), sl.record(model, *[p.path for p in parts]) as tape:
        assert torch.equal(model(x), (ask or (lambda m, x: m(x)))(theirs, x))
        out = model.features(x)
    assert (model.config.kind, model.config.classes, model.config.depth) == ("cnn", 7, units)
    assert out.map.shape[2:] == out.grid == model.config.grid
    assert {p.kind for p in parts} >= {"embed", "conv", "pooled", "logits"}
    assert all(tape[p.path].ndim == 4 for p in parts if p.layout == "map")


def test_preprocessing_comes_from_the_library_or_the_user():
    assert sl.adopt(timm.create_model("vit_tiny_patch16_224")).image.mean == (0.5, 0.5, 0.5)
    assert sl.adopt(PEERS["torchvision"].make()).image.mean == (0.485, 0.456, 0.406)
    mine = sl.ImageSpec(size=(32, 32), mean=(0.1, 0.2, 0.3))
    assert sl.adopt(PEERS["hf"].make(), mine).image == mine


def test_a_gated_mixer_is_understood():
    kinds = timm.models.mlp_mixer
    theirs = (
        fill(kinds.MlpMixer(5, 32, 3, 8, 2, 16, 4, mlp_layer=timm.layers.GluMlp, act_layer=nn.SiLU)).double().eval()
    )
    model, x = sl.adopt(theirs), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    sums = [p for p in sl.anatomy(model) if p.kind == "sum"]
    names = {q for p in sums for q in (p.path, p.skip, p.branch)} | {"blocks.1.mlp.hidden", "blocks.1.mix.hidden"}
    with torch.no_grad(), sl.record(model, *names) as tape:
        assert torch.equal(model(x), theirs(x))
    assert (model.config.kind, model.config.heads, model.config.grid, len(sums)) == ("mixer", None, (4, 4), 4)
    for p in sums:
        torch.testing.assert_close(tape[p.skip] + tape[p.branch], tape[p.path])
    mlps = {"mix": theirs.blocks[1].mlp_tokens, "mlp": theirs.blocks[1].mlp_channels}
    for name, mlp in mlps.items():  # the neurons are what the last layer reads, not the gate alone
        out = mlp.fc2(tape[f"blocks.1.{name}.hidden"])
        torch.testing.assert_close(out.mT if name == "mix" else out, tape[f"blocks.1.{name}_branch"])


@pytest.mark.parametrize("inner_norm", [False, True])
def test_attention_with_rotary_positions_is_recorded_as_eva_computes_it(inner_norm):
    theirs = timm.models.eva.Eva(
        img_size=28, patch_size=7, embed_dim=24, depth=2, num_heads=3, mlp_ratio=2, swiglu_mlp=True, num_classes=5,
        scale_mlp=inner_norm, scale_attn_inner=inner_norm, use_rot_pos_emb=True, qkv_fused=not inner_norm,
    )  # fmt: skip
    theirs = fill(theirs, std=0.5).double().eval()
    model, x = sl.adopt(theirs), torch.randn(2, 3, 28, 28, dtype=torch.float64)
    names = [f"blocks.{i}.attn.{part}" for i in (0, 1) for part in ("probs", "v", "per_head")]
    with torch.no_grad(), sl.record(model, *names) as tape:
        assert torch.equal(model(x), theirs(x))
    eager = []
    for block in theirs.blocks:  # timm's second way: the softmax is written out and passes this dropout
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda m, args, out: eager.append(args[0]))
    with torch.no_grad():
        theirs(x)
    for i, probs in enumerate(eager):
        torch.testing.assert_close(tape[f"blocks.{i}.attn.probs"], probs, atol=1e-12, rtol=0)
        torch.testing.assert_close(probs.sum(-1), torch.ones_like(probs[..., 0]))
        torch.testing.assert_close(tape[f"blocks.{i}.attn.per_head"], probs @ tape[f"blocks.{i}.attn.v"])


REFUSED = {
    "a Linear": (lambda: nn.Linear(3, 3), "neither attention blocks nor convolutions"),
    "swin": (lambda: TV.swin_t(), "attends within windows of"),
    "swin of timm": (lambda: timm.create_model("swin_tiny_patch4_window7_224"), "attends within windows of"),
    "swin of transformers": (
        lambda: transformers.SwinForImageClassification(
            transformers.SwinConfig(depths=[1, 1], num_heads=[2, 4], embed_dim=32)
        ),
        "attends within windows of",
    ),
    "resmlp": (
        lambda: timm.models.mlp_mixer.MlpMixer(
            5, 32, 3, 8, 1, 16, 4, block_layer=timm.models.mlp_mixer.ResBlock, norm_layer=timm.models.mlp_mixer.Affine
        ),
        r"\(ResMLP, gMLP\) cannot be adopted",
    ),
    "gmlp": (
        lambda: timm.models.mlp_mixer.MlpMixer(
            5,
            32,
            3,
            8,
            1,
            16,
            4,
            block_layer=timm.models.mlp_mixer.SpatialGatingBlock,
            mlp_layer=timm.layers.GatedMlp,
        ),
        r"\(ResMLP, gMLP\) cannot be adopted",
    ),
    "cait": (lambda: timm.create_model("cait_xxs24_224"), "not that of a pre-norm ViT"),
    "ours": (lambda: sl.build("vit-nano4"), "needs no adoption"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused(name):
    make, why = REFUSED[name]
    with pytest.raises(sl.adoption.AdoptionError, match=why):
        sl.adopt(make())


def test_a_image_size_that_does_not_fit_is_named():
    with pytest.raises(sl.adoption.AdoptionError, match="does not take images of 40 x 40"):
        sl.adopt(PEERS["timm"].make(), sl.ImageSpec(size=(40, 40)))
