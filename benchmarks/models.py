"""Speed and memory of the same ViT in Sightline, timm and transformers: `python -m benchmarks.models [rounds]`."""

import subprocess
import sys

import torch
from torch import nn
from torch.nn import functional as F

import sightline as sl
from benchmarks.race import high_water, race, report, save
from sightline.models.layers import attention
from tests import peers

MODELS = {
    "vit-s16, 224 px, batch 16": (sl.models.config("vit-s16", gelu="erf"), 16),
    "width 128, depth 6, patch 4, 32 px, batch 128": (
        sl.models.config("vit-micro4", gelu="erf", mlp_width=512, classes=10),
        128,
    ),
}
FAMILY = ("sightline", "timm", "transformers")


def make(library: str, c: sl.models.ViTConfig) -> nn.Module:
    size, patch = c.size[0], c.patch[0]  # type: ignore[index]
    if library == "sightline":
        return sl.build(c)
    if library == "timm":
        return peers.timm.models.VisionTransformer(
            img_size=size, patch_size=patch, embed_dim=c.width, depth=c.depth, num_heads=c.heads,
            mlp_ratio=c.mlp_width / c.width, num_classes=c.classes,
        )  # fmt: skip
    settings = peers.transformers.ViTConfig(
        hidden_size=c.width, num_hidden_layers=c.depth, num_attention_heads=c.heads, intermediate_size=c.mlp_width,
        image_size=size, patch_size=patch, num_labels=c.classes,
    )  # fmt: skip
    return peers.transformers.ViTForImageClassification(settings)


def inference(model: nn.Module, x: torch.Tensor):
    def run() -> None:
        with torch.inference_mode():
            model(x)

    model.eval()
    return run


def training(model: nn.Module, x: torch.Tensor):
    labels = torch.arange(len(x)) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def run() -> None:
        out = model(x)
        F.cross_entropy(getattr(out, "logits", out), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    model.train()
    return run


def speed(rounds: int) -> dict:
    done = {}
    for title, (c, batch) in MODELS.items():
        x = torch.randn(batch, 3, *c.size)  # type: ignore[misc]
        flops = 2 * sl.cost(c).macs * batch
        for job, factor in ((inference, 1), (training, 3)):
            runs = {name: job(make(name, c), x) for name in FAMILY}
            rows = race(runs, flops=factor * flops, rounds=rounds)
            report(f"{title}: {job.__name__}", rows)
            done[f"{title}: {job.__name__}"] = rows
    return done


def kernels(rounds: int) -> dict:
    """Why attention is always fused: written out against fused by number of tokens, training."""
    done = {}
    for tokens in (17, 50, 65, 82, 101, 122, 145, 197, 257):
        q, k, v = (torch.randn(3_000 // tokens + 1, 4, tokens, 32, requires_grad=True) for _ in range(3))

        def plain(q=q, k=k, v=v):
            attention(q, k, v, scale=32**-0.5)[0].sum().backward()

        def fused(q=q, k=k, v=v):
            F.scaled_dot_product_attention(q, k, v).sum().backward()

        rows = race({"written out": plain, "fused": fused}, flops=12 * q.numel() * tokens, rounds=2 * rounds)
        done[tokens] = rows["fused"]["ours_is_faster_by"]
    print("attention written out is faster than fused by:", {n: round(r, 2) for n, r in done.items()})
    return done


def peak_memory(library: str) -> float:
    """Peak resident MiB of three training steps of vit-s16 at batch 16, over what stood before the first."""
    c, batch = MODELS["vit-s16, 224 px, batch 16"]
    torch.set_num_threads(2)
    model = make(library, c)
    x = torch.randn(batch, 3, *c.size)  # type: ignore[misc]
    before = high_water()
    step = training(model, x)
    for _ in range(3):
        step()
    return high_water() - before


def memory(rounds: int = 3) -> dict:
    done: dict[str, list[float]] = {name: [] for name in FAMILY}
    for _ in range(rounds):
        for name in FAMILY:
            code = f"from benchmarks.models import peak_memory; print(peak_memory({name!r}))"
            run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            done[name].append(float(run.stdout.split()[-1]))
    middle = {name: sorted(values)[len(values) // 2] for name, values in done.items()}
    print("training peak memory of vit-s16, batch 16 (MiB):", {n: round(m) for n, m in middle.items()})
    return middle


def main(rounds: int = 15) -> None:
    torch.set_num_threads(2)
    save("models", {"threads": 2, "rounds": rounds, **speed(rounds), "attention": kernels(rounds), "memory": memory()})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
