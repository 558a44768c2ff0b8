"""How fast looking is: CKA against torch_cka and against the plain forward passes, attention statistics, compare.

Processor time, not wall time: other work on the machine does not count. One thread: threads that wait for each other on
a busy machine burn processor time without doing anything.
"""

import contextlib
import sys
import tempfile
import time
import types
from collections.abc import Callable

import torch

import sightline as sl
from benchmarks.race import save
from sightline.analysis.choose import chosen
from sightline.analysis.subject import observed, subject

BATCH, COUNT = 128, 128  # of 512 in the full run: every further batch costs the same (`--all` runs them)


def spent(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def peer(
    models: list[torch.nn.Module], images: torch.Tensor, names: list[list[str]], every: int = 4
) -> dict[str, float]:
    """torch_cka 0.21 on evenly spaced layers, extrapolated to all pairs: it multiplies anew for each pair."""
    for missing in (
        "matplotlib",
        "matplotlib.pyplot",
        "mpl_toolkits",
        "mpl_toolkits.axes_grid1",
    ):  # it draws, we do not
        try:
            __import__(missing)
        except ImportError:
            made = sys.modules[missing] = types.ModuleType(missing)
            made.make_axes_locatable = None  # type: ignore[attr-defined]
    from torch_cka import CKA

    some = [n[:: max(1, len(n) // every)][:every] for n in names]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, images[:, 0, 0, 0]), batch_size=BATCH)

    def run(layers: list[list[str]]) -> float:
        measure = CKA(*models, model1_layers=layers[0], model2_layers=layers[1], device="cpu")
        start = time.process_time()
        with torch.no_grad(), contextlib.suppress(AssertionError):  # on these layers it ends in "resulted in NANs"
            measure.compare(loader)
        return time.process_time() - start

    base, whole = run([n[:1] for n in some]), run(some)
    pairs = len(some[0]) * len(some[1])
    return {
        "pairs measured": pairs,
        "seconds per pair": (whole - base) / (pairs - 1),
        "seconds of forward and one": base,
    }


def main() -> None:
    torch.set_num_threads(1)
    count = 512 if "--all" in sys.argv else COUNT
    vit, cnn = sl.build("vit-s16", classes=10).eval(), sl.build("bit-r50x1", classes=10).eval()
    images = torch.rand(count, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    s, t = subject(vit), subject(cnn)
    names = [chosen(s), chosen(t)]

    def forward(*models: torch.nn.Module) -> None:
        with observed(s, t):
            for part in images.split(BATCH):
                for model in models:
                    model(part)

    forward(vit)
    out: dict[str, object] = {"pictures": count, "batch": BATCH, "layers": [len(n) for n in names], "threads": 1}
    plain = out["forward of both, s"] = spent(lambda: forward(vit, cnn))
    alone = out["forward of vit-s16, s"] = spent(lambda: forward(vit))
    full = out["cka, all taps, s"] = spent(lambda: sl.cka(vit, cnn, images, batch=BATCH))
    out["cka, all taps, x forward"] = full / plain
    out["cka, blocks, x forward"] = spent(lambda: sl.cka(vit, cnn, images, batch=BATCH, layers="blocks")) / plain
    out["attention statistics, x forward"] = spent(lambda: sl.attention_distance(vit, images, batch=32)) / alone
    print(out, flush=True)
    try:
        theirs = peer([vit, cnn], images[:BATCH], names)
        pairs = len(names[0]) * len(names[1])
        whole = (plain + theirs["seconds per pair"] * pairs) * count / BATCH if count == BATCH else float("nan")
        out["torch_cka"] = {**theirs, "extrapolated to all pairs, s": whole, "ours is faster by": whole / full}
    except ImportError:
        out["torch_cka"] = 'not installed: pip install "torch_cka==0.21"'
    small = sl.build("vit-nano4", classes=8), sl.build("bit-nano", classes=8)
    with tempfile.TemporaryDirectory() as folder:
        data = sl.dataset("scenes/shape", "test", num=256, size=32)
        out["compare of two small models, s"] = spent(lambda: sl.compare(*small, data, folder))
    print(out)
    save("analysis", out)


if __name__ == "__main__":
    main()
