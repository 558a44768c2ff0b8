"""Models of other libraries, compared with ours, and our weights carried over into them."""

import contextlib
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

# torchvision's compiled ops do not load beside the CPU build of torch; timm imports torchvision, which only needs the
# two schemas below to exist.
for schema in ("nms(Tensor a, Tensor b, float c) -> Tensor", "qnms(Tensor a, Tensor b, float c) -> Tensor"):
    with contextlib.suppress(RuntimeError):
        torch.library.define(f"torchvision::{schema.split('(')[0]}", "(" + schema.split("(", 1)[1])


def __getattr__(name: str) -> ModuleType:
    """`peers.timm` and its like are imported when a test first uses them, and that test is skipped without them."""
    if name in ("timm", "torchvision", "transformers"):
        return pytest.importorskip(name)
    raise AttributeError(name)


def fill(model: nn.Module, seed: int = 0, std: float = 0.05) -> nn.Module:
    """Random values everywhere: zeros (head, class token) would hide a mistake."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=random).to(p.dtype) * std
            p.copy_(1 + noise if "norm" in name and name.endswith("weight") else noise)
    return model


def _carry(peer: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    peer.load_state_dict(state)  # strict: a key too many or too few is an error
    return peer.eval()


def timm_vit(ours: nn.Module, peer: nn.Module) -> nn.Module:
    state = {}
    for key, value in ours.state_dict().items():
        key = key.replace("embed.proj", "patch_embed.proj").replace("attn.out", "attn.proj")
        key = key.replace("positions.0.table", "pos_embed").replace("prefix", "cls_token")
        key = key.replace("backbone.", "patch_embed.backbone.")
        state[key] = value[None] if key == "pos_embed" else value[None] if key == "cls_token" else value
    return _carry(peer, _timm_backbone(state, peer))


def _timm_backbone(state: dict[str, Tensor], peer: nn.Module) -> dict[str, Tensor]:
    """Keys of the hybrid's ResNet; where it is the stem alone, timm leaves `stem` out of the names."""
    bare = any(k.startswith("patch_embed.backbone.conv") for k in peer.state_dict())
    stem = "patch_embed.backbone." if bare else "patch_embed.backbone.stem."
    out = {}
    for key, value in state.items():
        key = key.replace("patch_embed.backbone.root_norm.norm", stem + "norm")
        key = key.replace("patch_embed.backbone.root.", stem + "conv.")
        key = key.replace(".units.", ".blocks.").replace(".shortcut_norm.norm", ".downsample.norm")
        key = key.replace(".shortcut.", ".downsample.conv.")
        for i in (1, 2, 3):
            if "backbone" in key:
                key = key.replace(f"norm{i}.norm", f"norm{i}")
        out[key] = value
    return out


def timm_mixer(ours: nn.Module, peer: nn.Module) -> nn.Module:
    names = {"embed.": "stem.", ".mix.": ".mlp_tokens.", ".mlp.": ".mlp_channels."}
    state = {}
    for key, value in ours.state_dict().items():
        for a, b in names.items():
            key = key.replace(a, b)
        state[key] = value
    return _carry(peer, state)


def timm_bit(ours: nn.Module, peer: nn.Module) -> nn.Module:
    state = {}
    for key, value in ours.state_dict().items():
        key = key.replace("root.conv", "stem.conv").replace(".units.", ".blocks.")
        key = key.replace(".shortcut.", ".downsample.conv.").replace("head.", "head.fc.")
        key = key.replace("norm.norm", "norm")
        for i in (1, 2, 3):
            key = key.replace(f"norm{i}.norm", f"norm{i}")
        state[key] = value[:, :, None, None] if key == "head.fc.weight" else value
    return _carry(peer, state)


def torchvision_vit(ours: nn.Module, peer: nn.Module) -> nn.Module:
    state = {}
    for key, value in ours.state_dict().items():
        key = key.replace("embed.proj", "conv_proj").replace("positions.0.table", "encoder.pos_embedding")
        key = key.replace("blocks.", "encoder.layers.encoder_layer_").replace("norm1", "ln_1").replace("norm2", "ln_2")
        key = key.replace("attn.qkv.weight", "self_attention.in_proj_weight")
        key = key.replace("attn.qkv.bias", "self_attention.in_proj_bias").replace("attn.out", "self_attention.out_proj")
        key = key.replace("mlp.fc1", "mlp.0").replace("mlp.fc2", "mlp.3")
        key = key.replace("head.", "heads.head.").replace("prefix", "class_token")
        key = key.replace("pre_logits.", "heads.pre_logits.")
        key = "encoder.ln." + key[5:] if key.startswith("norm.") else key
        state[key] = value[None] if key in ("encoder.pos_embedding", "class_token") else value
    return _carry(peer, state)


def hf_vit(ours: nn.Module, peer: nn.Module) -> nn.Module:
    names = {"blocks.": "vit.layers.", "norm1": "layernorm_before", "norm2": "layernorm_after"}
    state = {}
    for key, value in ours.state_dict().items():
        if ".qkv." in key:
            for letter, part in zip("qkv", value.chunk(3)):
                state[key.replace("blocks.", "vit.layers.").replace("attn.qkv", f"attention.{letter}_proj")] = part
            continue
        for a, b in names.items():
            key = key.replace(a, b)
        key = key.replace("attn.out", "attention.o_proj").replace("prefix", "vit.embeddings.cls_token")
        key = key.replace("embed.proj", "vit.embeddings.patch_embeddings.projection")
        key = key.replace("positions.0.table", "vit.embeddings.position_embeddings").replace("head.", "classifier.")
        key = "vit.layernorm." + key[5:] if key.startswith("norm.") else key
        state[key] = value[None] if "embeddings.cls" in key or "position_emb" in key else value
    return _carry(peer, state)
