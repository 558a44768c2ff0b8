"""How fast looking is: `python -m benchmarks.analysis [rounds [parts]]`, about eight minutes for two rounds of all.

Parts: attention (statistics of heads), torch_cka (against torch_cka 0.21), forward (CKA against the plain forward
passes, batches of 128), batches (the same on 128 images, in batches of 128, 64 and 32), compare, memory; what is saved
of the others stays. Contestants take turns, ratios are taken round by round,
medians reported. Processor time of one thread: other work on the machine hardly counts, and threads that wait for each
other burn time without doing anything.
"""

import contextlib
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

import sightline as sl
from benchmarks.race import high_water, matmul_speed, save, saved
from sightline.analysis.similarity.grams import Grams, unusable
from sightline.analysis.similarity.measures import gram, raw_gram
from sightline.analysis.similarity.sums import Sums
from sightline.memory import freed_memory_kept
from sightline.models.taps import record
from sightline.observe.model import ObservedModel, evaluation_mode, observe
from sightline.observe.selection import select_layers

BATCH, BATCHES = 128, 4  # 512 images in one call, as users do
HEADS = 16  # images of one round of attention statistics


def spent(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def in_turns(contestants: dict[str, Callable[[int], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; each is called with the number of the round, the order rotates."""
    names, times = list(contestants), {name: [] for name in contestants}
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            times[name].append(spent(lambda name=name, i=i: contestants[name](i)))
    return times


def ratio(times: dict[str, list[float]], name: str, to: str) -> float:
    return round(statistics.median(a / b for a, b in zip(times[name], times[to])), 3)


def against_forward(s: ObservedModel, t: ObservedModel, images: Sequence[Tensor], rounds: int) -> dict[str, object]:
    """CKA of every tap and of block outputs, over the forward passes of both models on the same images: as anybody
    calls them, and with freed memory kept, as the analyses do. Of the last block a head reads one token, and a plain
    pass computes no other; `all tokens` is the pass that computes what CKA looks at, and does nothing with it."""
    every = torch.cat(list(images))

    def forward(i: int) -> None:
        with evaluation_mode(s, t):
            for part in images:
                s.model(part), t.model(part)

    def kept(i: int) -> None:
        with freed_memory_kept():
            forward(i)

    def whole(i: int) -> None:
        with freed_memory_kept(), ExitStack() as stack:
            for o in (s, t):
                stack.enter_context(record(o.model, *select_layers(o), keep=lambda path, value: None))
            forward(i)

    def cka(layers: str) -> Callable[[int], object]:
        return lambda i: sl.cka(s.model, t.model, every, batch=BATCH, layers=layers)

    runs = {
        "forward": forward,
        "all": cka("all"),
        "blocks": cka("blocks"),
        "forward, memory kept": kept,
        "forward, all tokens, memory kept": whole,
    }
    with evaluation_mode(s, t):
        s.model(images[0][:2]), t.model(images[0][:2])  # kernels are packed once
    times = {name: [x / BATCHES for x in row] for name, row in in_turns(runs, rounds).items()}
    return {
        "cka, all taps, x forward": ratio(times, "all", "forward"),
        "cka, blocks, x forward": ratio(times, "blocks", "forward"),
        "cka, all taps, x forward with memory kept": ratio(times, "all", "forward, memory kept"),
        "cka, all taps, x forward of all tokens": ratio(times, "all", "forward, all tokens, memory kept"),
        "seconds per batch": times,
        "multiply-adds": arithmetic(s, t, images[0]),
    }


def arithmetic(s: ObservedModel, t: ObservedModel, images: Tensor) -> dict[str, float]:
    """Multiply-adds of a batch, in units of 10^9: of the forward passes, and of half of every Gram matrix; and how fast
    half a Gram matrix and a large matrix product are, in GFLOP/s."""
    macs = sum(sl.cost(name).macs for name in ("vit-s16", "bit-r50x1")) * BATCH
    wide = sizes(s, images), sizes(t, images)
    half = BATCH * (BATCH + 1) // 2
    features = max(wide[1].values())
    x = torch.randn(BATCH, features)
    seconds = statistics.median(spent(lambda: raw_gram(x)) for _ in range(5))
    return {
        "forward": macs / 1e9,
        "gram": half * sum(sum(w.values()) for w in wide) / 1e9,
        "gram, GFLOP/s": 2 * half * features / seconds / 1e9,
        "matrix product, GFLOP/s": matmul_speed() / 1e9,
    }


def by_batch(s: ObservedModel, t: ObservedModel, images: Tensor, rounds: int) -> dict[str, object]:
    """CKA of every tap in batches of 128, 64 and 32 images, over the plain forward passes in one batch of 128."""

    def forward(i: int) -> None:
        with evaluation_mode(s, t):
            s.model(images), t.model(images)

    def cka(batch: int) -> Callable[[int], object]:
        return lambda i: sl.cka(s.model, t.model, images, batch=batch)

    with evaluation_mode(s, t):
        s.model(images[:2]), t.model(images[:2])  # kernels are packed once
    runs = {"forward": forward, **{str(batch): cka(batch) for batch in (128, 64, 32)}}
    times = in_turns(runs, rounds)
    over = {f"cka, all taps, batches of {b}, x forward": ratio(times, str(b), "forward") for b in (128, 64, 32)}
    return over | {"seconds by batch": times}


class Replay(nn.Module):
    """A model whose layers put out given features: what another estimator makes of them, without the forward pass."""

    class Layer(nn.Module):
        def __init__(self, features: Tensor):
            super().__init__()
            self.features = features

        def forward(self, x: Tensor) -> Tensor:
            return self.features

    def __init__(self, *features: Tensor):
        super().__init__()
        self.layers = nn.ModuleList(self.Layer(f) for f in features)

    def forward(self, x: Tensor) -> None:
        for layer in self.layers:
            layer(x)


def torch_cka() -> type:
    """Its class, without what it draws with."""
    for name in ("matplotlib", "matplotlib.pyplot", "mpl_toolkits", "mpl_toolkits.axes_grid1"):
        with contextlib.suppress(ImportError):
            __import__(name)
        if name not in sys.modules:
            made = sys.modules[name] = types.ModuleType(name)
            made.make_axes_locatable = None  # type: ignore[attr-defined]
    from torch_cka import CKA

    return CKA


def theirs(kind: type, one: Sequence[Tensor], other: Sequence[Tensor]) -> None:
    """One batch by torch_cka's own `compare`, all pairs of the given features."""
    models = Replay(*one), Replay(*other)
    names = [[n for n, m in model.named_modules() if isinstance(m, Replay.Layer)] for model in models]
    data = torch.utils.data.TensorDataset(torch.zeros(BATCH, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
    with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        measure = kind(*models, "a", "b", *names, device="cpu")
        with contextlib.suppress(AssertionError):  # "HSIC computation resulted in NANs", after all the work
            measure.compare(loader)


def sizes(s: ObservedModel, image: Tensor) -> dict[str, int]:
    """How many features each layer has per image."""
    with evaluation_mode(s), record(s.model, *select_layers(s), keep=lambda path, value: value[0].numel()) as tape:
        s.model(image[:1])
    return tape


def one_of_each(s: ObservedModel, images: Tensor, wide: dict[str, int]) -> dict[int, Tensor]:
    """The features of one layer of each size."""
    names = {size: path for path, size in wide.items()}
    with (
        evaluation_mode(s),
        record(s.model, *names.values(), keep=lambda path, value: value.flatten(1).clone()) as tape,
    ):
        s.model(images)
    return {size: tape[path] for size, path in names.items()}


def against_torch_cka(s: ObservedModel, t: ObservedModel, images: Tensor, rounds: int) -> dict[str, object]:
    """The estimators alone on the same recorded features, one layer of each size; times counted up to all pairs.

    torch_cka makes the Gram matrix of a layer of the second model, and two HSIC, anew for every layer of the first:
    with A the time of a first layer and B that of a second, a batch costs sum A + (number of first layers) x sum B. B
    is half of what two more copies of a layer cost. Ours: every Gram matrix once, then all pairs at once.
    """
    kind = torch_cka()
    wide = sizes(s, images), sizes(t, images)
    x, y = one_of_each(s, images, wide[0]), one_of_each(t, images, wide[1])
    counts = Counter(wide[0].values()), Counter(wide[1].values())
    small = next(iter(y.values()))[:, :64]
    runs: dict[str, Callable[[int], object]] = {}
    for where, found in (("x", x), ("y", y)):
        runs |= {f"our gram, {where} {p}": lambda i, f=f: unusable(gram(f), f) for p, f in found.items()}
    runs |= {f"their first, {p}": lambda i, f=f: theirs(kind, [f], [small]) for p, f in x.items()}
    runs |= {f"their one, {p}": lambda i, f=f: theirs(kind, [small], [f]) for p, f in y.items()}
    runs |= {f"their three, {p}": lambda i, f=f: theirs(kind, [small], [f] * 3) for p, f in y.items()}
    grams = [Grams({name: gram(found[p]) for name, p in w.items()}) for w, found in zip(wide, (x, y))]
    member = torch.arange(BATCH) % 20
    runs["our pairs"] = lambda i: Sums(list(wide[0]), list(wide[1]), groups=20).add(BATCH, *grams, groups=member)
    times = in_turns(runs, rounds)
    pairs, each = len(wide[0]) * len(wide[1]), []
    for i in range(rounds):
        at = {name: row[i] for name, row in times.items()}
        ours = at["our pairs"] + sum(
            n * at[f"our gram, {where} {p}"] for where, count in zip("xy", counts) for p, n in count.items()
        )
        second = sum(n * (at[f"their three, {p}"] - at[f"their one, {p}"]) / 2 for p, n in counts[1].items())
        first = sum(n * at[f"their first, {p}"] for p, n in counts[0].items())
        each.append((first + len(wide[0]) * second, ours))
    return {
        "pairs": pairs,
        "features per image": [sum(w.values()) for w in wide],
        "pairs measured": len(y) * 4 + len(x),
        "theirs, estimator of one batch, extrapolated to all pairs, s": statistics.median(a for a, _ in each),
        "ours, estimator of one batch, s": statistics.median(b for _, b in each),
        "ours is faster by, estimators": round(statistics.median(a / b for a, b in each), 1),
    }


def whole_factor(out: dict) -> None:
    """With the forward passes, which both need: what a user waits for."""
    forward = statistics.median(out["seconds per batch"]["forward"])
    full = statistics.median(out["seconds per batch"]["all"])
    peer = out["torch_cka"]
    estimator = peer["theirs, estimator of one batch, extrapolated to all pairs, s"]
    peer["ours is faster by, forward passes included"] = round((forward + estimator) / full, 1)
    peer["the most that could be, were our estimator free"] = round((forward + estimator) / forward, 1)


def attention(s: ObservedModel, images: Tensor, rounds: int) -> dict[str, object]:
    """Statistics of all heads, over the forward pass on the same batches."""

    def forward(i: int) -> None:
        with evaluation_mode(s):
            for part in images.split(16):
                s.model(part)

    times = in_turns({"forward": forward, "statistics": lambda i: sl.attention_distance(s, images, batch=16)}, rounds)
    return {"attention statistics, x forward": ratio(times, "statistics", "forward"), "attention rounds": times}


def peak(images: int) -> float:
    """MiB at most in a process that looks at so many images."""
    model = sl.build("vit-ti16", classes=10, size=96).eval()
    stream = (torch.full((3, 96, 96), float(i % 7)).add_(torch.rand(3, 96, 96)) for i in range(images))
    sl.cka(model, None, stream, batch=32)
    return high_water()


def peak_alone(images: int) -> float:
    code = f"from benchmarks import analysis; print(analysis.peak({images}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(run.stdout.split()[-1])


def compare_seconds() -> dict[str, object]:
    small = sl.build("vit-mini4", classes=8), sl.build("bit-mini", classes=8)
    with tempfile.TemporaryDirectory() as folder:
        scenes = sl.dataset("scenes/shape", "test", num=256, size=32)
        return {"compare of vit-mini4 and bit-mini, s": spent(lambda: sl.compare(*small, scenes, folder))}


def peer(s: ObservedModel, t: ObservedModel, images: Tensor, rounds: int) -> dict[str, object]:
    try:
        return {"torch_cka": against_torch_cka(s, t, images, rounds)}
    except ImportError:
        return {"torch_cka": 'not installed: pip install -e ".[bench]"'}


def main(rounds: int = 2, *parts: str) -> None:
    torch.set_num_threads(1)
    s, t = observe(sl.build("vit-s16", classes=10).eval()), observe(sl.build("bit-r50x1", classes=10).eval())
    data = sl.dataset("scenes/objects", "test", num=BATCH * BATCHES, size=224)
    images = [x for x, _ in data.batches(s.image, batch=BATCH)]
    runs: dict[str, Callable[[], dict[str, object]]] = {
        "attention": lambda: attention(s, images[0][:HEADS], 4 * rounds + 1),
        "torch_cka": lambda: peer(s, t, images[0], 2 * rounds + 1),
        "forward": lambda: against_forward(s, t, images, rounds),
        "batches": lambda: by_batch(s, t, images[0], rounds),
        "compare": compare_seconds,
        "memory": lambda: {"peak MiB of cka, by images": {n: peak_alone(n) for n in (128, 1280)}},
    }
    out = {"batch": BATCH, "threads": 1, "layers": [len(select_layers(s)), len(select_layers(t))]}
    for name in parts or runs:
        found = runs[name]()
        out |= found | {f"rounds, {name}": rounds}
        print({k: v for k, v in found.items() if k not in ("attention rounds", "seconds per batch")}, flush=True)
        out = saved("analysis") | out if parts else out
        if isinstance(out.get("torch_cka"), dict) and "seconds per batch" in out:
            whole_factor(out)
        save("analysis", out)


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":  # NumPy reads it when it is imported
        os.execve(
            sys.executable,
            [sys.executable, "-m", "benchmarks.analysis", *sys.argv[1:]],
            {**os.environ, "OMP_NUM_THREADS": "1"},
        )
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
