"""What looking at single tokens costs: `python -m benchmarks.tokens [rounds]`, about five minutes for five rounds.

Outlier tokens, logit lens, position against content and activation patching over the bare forward pass, on our own
ViT-S/16 and on timm's. Contestants take turns, ratios are taken round by round, medians reported, in processor time.
"""

import os
import statistics
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

import sightline as sl
from benchmarks.analysis import in_turns, ratio
from benchmarks.race import save
from sightline.observe.model import evaluation_mode, observe
from tests import peers

IMAGES = 16


def tokens(model: nn.Module, images: Tensor, rounds: int) -> dict[str, object]:
    """Outlier tokens, logit lens and position against content, over the forward pass on the same batch; of activation
    patching, one patched run over the forward pass of one image in as large a batch."""
    s, count = observe(model), len(images)
    passes: list[int] = []

    def forward(i: int) -> None:
        with evaluation_mode(s):
            s.model(images)

    def patching(i: int) -> None:
        passes.append(sl.analysis.activation_patching(s, images, cells=2, batch=count).passes)

    runs: dict[str, Callable[[int], object]] = {
        "forward": forward,
        "outlier tokens": lambda i: sl.analysis.outlier_tokens(s, images, batch=count),
        "logit lens": lambda i: sl.analysis.logit_lens(s, images, n=None, batch=count),
        "position and content": lambda i: sl.analysis.position_content(s, images, batch=count),
        "patching": patching,
    }
    times = in_turns(runs, rounds)
    times["one patched run"] = [t / passes[0] * count for t in times.pop("patching")]
    names = [name for name in times if name != "forward"]
    return {f"{name}, x forward": ratio(times, name, "forward") for name in names} | {
        "patched runs": passes[0],
        "images": count,
        "seconds": {name: statistics.median(row) for name, row in times.items()},
    }


def models() -> dict[str, nn.Module]:
    """Ours with 1,000 classes, and the same size of another library, where attention is formed beside the fused one."""
    ours = sl.build("vit-s16", classes=1000)
    nn.init.normal_(ours.head.weight, std=0.02)
    return {
        "vit-s16": ours.eval(),
        "timm vit_small_patch16_224": peers.timm.create_model("vit_small_patch16_224").eval(),
    }


def main(rounds: int = 5) -> None:
    torch.set_num_threads(1)
    data, out = sl.dataset("scenes/objects", "test", num=IMAGES, size=224), {"rounds": rounds, "threads": 1}
    for name, model in models().items():
        images = next(iter(data.batches(sl.ImageSpec(size=(224, 224)), batch=IMAGES)))[0]
        out[name] = tokens(model, images, rounds)
        print(name, out[name], flush=True)
    save("tokens", out)


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":  # NumPy reads it when it is imported
        again = [sys.executable, "-m", "benchmarks.tokens", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "OMP_NUM_THREADS": "1"})
    main(*map(int, sys.argv[1:]))
