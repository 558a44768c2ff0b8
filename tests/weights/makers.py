"""Small models of other libraries, with the key structure of the large ones, and Google's files made by hand."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests import peers

W, D, H, M, P, S = 64, 2, 2, 128, 8, 32  # width, depth, heads, mlp_width, patch, size
TIMM = {"embed_dim": W, "depth": D, "num_heads": H, "mlp_ratio": 2, "img_size": S, "patch_size": P, "num_classes": 10}
HF = {"hidden_size": W, "num_hidden_layers": D, "num_attention_heads": H, "image_size": S, "patch_size": P}
HF_VIT = {**HF, "intermediate_size": M, "num_labels": 10}
HF_DINO = {**HF, "mlp_ratio": 2}


@dataclass
class Peer:
    """A model of another library and how to ask it."""

    make: Callable[[], nn.Module]
    ask: Callable[[nn.Module, Tensor], Tensor] = lambda model, x: model(x)
    size: int = S
    hints: dict[str, Any] = field(default_factory=lambda: {"heads": H})
    holds: tuple[str, ...] = ()  # formats that hold it

    def ready(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(0)
        return peers.fill(self.make(), seed).double().eval()


def timm_vit(**more: Any) -> Callable[[], nn.Module]:
    return lambda: peers.timm.models.vision_transformer.VisionTransformer(**{**TIMM, **more})


def logits(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).logits


def pooled(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).pooler_output.flatten(1)


ALL = ("npz", "timm", "hf", "hf-v5", "torchvision")
BIT = ("npz", "timm", "hf", "hf-v5", "bit-pytorch")
PEERS = {
    "timm": Peer(timm_vit(), holds=ALL),
    "timm-gap": Peer(timm_vit(global_pool="avg"), holds=("timm",)),
    "timm-gap-bare": Peer(timm_vit(global_pool="avg", class_token=False, fc_norm=False), holds=("npz", "timm")),
    "timm-map": Peer(timm_vit(global_pool="map", class_token=False), holds=("npz", "timm")),
    "timm-registers": Peer(timm_vit(reg_tokens=4, no_embed_class=True, init_values=1e-5), holds=("timm",)),
    "timm-registers-placed": Peer(timm_vit(reg_tokens=3, qkv_bias=False), holds=("timm",)),
    "timm-no-class-row": Peer(timm_vit(no_embed_class=True), holds=("npz", "timm")),
    "timm-mixer": Peer(
        lambda: peers.timm.models.mlp_mixer.MlpMixer(10, S, 3, P, num_blocks=D, embed_dim=W, mlp_ratio=(0.5, 2.0)),
        hints={},
        holds=("npz", "timm"),
    ),
    "timm-headless": Peer(timm_vit(num_classes=0), holds=ALL),
    "deit-distilled": Peer(
        lambda: peers.timm.models.deit.VisionTransformerDistilled(**TIMM), holds=("timm", "hf", "hf-v5")
    ),
    "torchvision": Peer(
        lambda: peers.torchvision.models.VisionTransformer(S, P, D, H, W, M, num_classes=10), holds=ALL
    ),
    "torchvision-pre-logits": Peer(
        lambda: peers.torchvision.models.VisionTransformer(S, P, D, H, W, M, num_classes=10, representation_size=W),
        holds=("npz", "torchvision"),
    ),
    "hf": Peer(
        lambda: peers.transformers.ViTForImageClassification(peers.transformers.ViTConfig(**HF_VIT)), logits, holds=ALL
    ),
    "hf-pooler": Peer(
        lambda: peers.transformers.ViTModel(peers.transformers.ViTConfig(**HF_VIT)),
        pooled,
        holds=("npz", "hf", "hf-v5", "torchvision"),
    ),
    "hf-deit": Peer(
        lambda: peers.transformers.DeiTForImageClassificationWithTeacher(peers.transformers.DeiTConfig(**HF_VIT)),
        logits,
        holds=("timm", "hf", "hf-v5"),
    ),
    "hf-dinov2": Peer(
        lambda: peers.transformers.Dinov2Model(peers.transformers.Dinov2Config(**HF_DINO)),
        pooled,
        holds=("timm", "hf", "hf-v5"),
    ),
    "hf-dinov2-registers": Peer(
        lambda: peers.transformers.Dinov2WithRegistersModel(peers.transformers.Dinov2WithRegistersConfig(**HF_DINO)),
        pooled,
        holds=("hf", "hf-v5"),
    ),
    "timm-bit": Peer(
        lambda: peers.timm.models.resnetv2.ResNetV2(
            layers=(1, 2),
            channels=(256, 512),
            num_classes=10,
            stem_type="fixed",
            conv_layer=partial(peers.timm.layers.StdConv2d, eps=1e-8),  # as timm registers its BiT
            norm_layer=peers.timm.layers.GroupNormAct,
        ),
        hints={"size": S},  # else the 224 pixels of the published ones
        holds=BIT,
    ),
    "hf-bit": Peer(
        lambda: peers.transformers.BitForImageClassification(
            peers.transformers.BitConfig(depths=[1, 2], hidden_sizes=[256, 512], num_labels=10)
        ),
        logits,
        hints={"size": S},  # else the 224 pixels of the published ones
        holds=BIT,
    ),
    "hf-bit-headless": Peer(
        lambda: peers.transformers.BitModel(peers.transformers.BitConfig(depths=[1, 1], hidden_sizes=[256, 512])),
        pooled,
        hints={"size": S},  # else the 224 pixels of the published ones
        holds=BIT,
    ),
    "timm-hybrid": Peer(lambda: _hybrid((1, 2)), size=64, holds=("npz", "timm")),
    "timm-hybrid-stem": Peer(lambda: _hybrid(()), size=64, holds=("npz", "timm")),
}


def _hybrid(layers: tuple[int, ...]) -> nn.Module:
    hybrid = peers.timm.models.vision_transformer_hybrid
    backbone = hybrid._resnetv2(layers)
    embed = partial(hybrid.HybridEmbed, backbone=backbone)
    return peers.timm.models.vision_transformer.VisionTransformer(
        **{**TIMM, "img_size": 64, "patch_size": 1 if layers else 8}, embed_layer=embed
    )


def google_npz(rows: int = 1, *, token: bool = True, linen: bool = False, head: bool = True) -> dict[str, np.ndarray]:
    """A ViT in Google's keys, random: released numbering or linen's."""
    random = np.random.default_rng(0)
    n = (S // P) ** 2

    def make(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.05).astype(np.float32)

    attention, mlp, second = (0, 0, 1) if linen else (1, 3, 2)
    out = {"embedding/kernel": make(P, P, 3, W), "embedding/bias": make(W)}
    if token:
        out["cls"] = make(1, 1, W)
    out["pos_embedding" if linen else "Transformer/posembed_input/pos_embedding"] = make(1, n + rows, W)
    for i in range(D):
        at = f"Transformer/encoderblock_{i}/"
        for norm in (0, second):
            out |= {f"{at}LayerNorm_{norm}/scale": 1 + make(W), f"{at}LayerNorm_{norm}/bias": make(W)}
        heads = f"{at}MultiHeadDotProductAttention_{attention}/"
        for name in ("query", "key", "value"):
            out |= {f"{heads}{name}/kernel": make(W, H, W // H), f"{heads}{name}/bias": make(H, W // H)}
        out |= {f"{heads}out/kernel": make(H, W // H, W), f"{heads}out/bias": make(W)}
        out |= {f"{at}MlpBlock_{mlp}/Dense_0/kernel": make(W, M), f"{at}MlpBlock_{mlp}/Dense_0/bias": make(M)}
        out |= {f"{at}MlpBlock_{mlp}/Dense_1/kernel": make(M, W), f"{at}MlpBlock_{mlp}/Dense_1/bias": make(W)}
    out |= {"Transformer/encoder_norm/scale": 1 + make(W), "Transformer/encoder_norm/bias": make(W)}
    if head:
        out |= {"head/kernel": make(W, 10), "head/bias": make(10)}
    return out


def stacked(flat: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same with one key for all layers, as scan writes it."""
    first = "Transformer/encoderblock_0/"
    out = {k: v for k, v in flat.items() if "encoderblock_" not in k}
    for key in [k for k in flat if k.startswith(first)]:
        rest = key.removeprefix(first)
        out[f"Transformer/encoderblock/{rest}"] = np.stack(
            [flat[f"Transformer/encoderblock_{i}/{rest}"] for i in range(D)]
        )
    return out
