"""Speed and memory of the same ViT in Sightline, timm and transformers: `python -m benchmarks.models [rounds [parts]]`.

Parts: inference (two threads, so on a quiet machine), training (one thread, processor time), attention, memory; what is
saved of the others stays. A training step is measured as each program makes it: ours keeps freed memory, as
`sightline train` does; timm's and transformers' leave that to the C library. In float32, and in bfloat16 by autocast.
"""

import subprocess
import sys
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

import sightline as sl
from benchmarks.race import high_water, race, report, save, saved
from sightline.memory import freed_memory_kept
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
STEPS = 3  # in a turn, so that memory is kept from one to the next


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


def training(model: nn.Module, x: torch.Tensor, *, precision: str = "float32", keep: bool = False, steps: int = 1):
    labels = torch.arange(len(x)) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    low = precision == "bfloat16"

    def run() -> None:
        with freed_memory_kept() if keep else nullcontext():
            for _ in range(steps):
                with torch.autocast("cpu", torch.bfloat16, enabled=low):
                    out = model(x)
                    loss = F.cross_entropy(getattr(out, "logits", out), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    model.train()
    return run


def race_inference(rounds: int) -> dict:
    torch.set_num_threads(2)
    done = {}
    for title, (c, batch) in MODELS.items():
        x = torch.randn(batch, 3, *c.size)  # type: ignore[misc]
        runs = {name: inference(make(name, c), x) for name in FAMILY}
        rows = race(runs, flops=2 * sl.cost(c).macs * batch, rounds=rounds)
        report(f"{title}: inference", rows)
        done[f"{title}: inference"] = rows
    return done


def race_training(rounds: int) -> dict:
    torch.set_num_threads(1)
    done = {}
    for title, (c, batch) in MODELS.items():
        x = torch.randn(batch, 3, *c.size)  # type: ignore[misc]
        for precision in ("float32", "bfloat16"):
            how = {"precision": precision, "steps": STEPS}
            runs = {name: training(make(name, c), x, keep=name == "sightline", **how) for name in FAMILY}
            flops = 6 * sl.cost(c).macs * batch * STEPS
            rows = race(runs, flops=flops, rounds=rounds, dtype=getattr(torch, precision))
            report(f"{title}: {STEPS} training steps, {precision}", rows)
            done[f"{title}: training, {precision}"] = rows
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


PARTS = {"inference": race_inference, "training": race_training}


def main(rounds: int = 15, parts: str = "inference,training,attention,memory") -> None:
    names, done = parts.split(","), saved("models")
    for name in names:
        done |= PARTS[name](rounds) if name in PARTS else {}
        done |= {f"rounds, {name}": rounds}
    torch.set_num_threads(2)
    done |= {"attention": kernels(rounds)} if "attention" in names else {}
    done |= {"memory": memory()} if "memory" in names else {}
    save("models", done)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 15, *sys.argv[2:])
