"""bfloat16 and torch.compile: every family as a model, and what a recipe may ask of the machine.

Both in processes of their own, where models come before trainings: starting one costs more than what it does.
"""

import os
import subprocess
import sys

import pytest

START = """
import functools
import sys
import numpy as np
import torch
import sightline as sl
from tests.training.tiny import data, losses, model, recipe

torch.set_num_threads(1)
FEW = {"vit-nano4": {"depth": 1}, "bit-nano": {"units": (1, 1)}, "r8-vit-nano4": {"depth": 1, "units": (1,)}}

def families():
    for name, few in FEW.items():
        built = sl.build(name, classes=10, **few).eval()
        with torch.no_grad():
            for p in built.parameters():
                p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
        yield built, torch.randn(2, 3, 32, 32)
"""

BFLOAT = """
for built, x in families():
    with torch.no_grad():
        exact = built(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = built(x)
    assert low.dtype == torch.bfloat16
    assert (low.float() - exact).abs().max() < 0.05 * exact.abs().max() + 0.01, (low, exact)
print("models are close")

runs = []
for precision in ("float32", "bfloat16"):
    settings = recipe(steps=6, lr=2e-3, precision=precision, clip=1.0, ema=0.5)
    runs.append(sl.fit(model(), data()[0], settings, val=data()[1], out=f"{sys.argv[1]}/{precision}"))
a, b = map(losses, runs)
assert a != b, "autocast did nothing"
np.testing.assert_allclose(a, b, rtol=0.03)
assert all(p.dtype == torch.float32 for p in runs[1].model.parameters())
print("trainings are close")
"""

COMPILED = """
for built, x in families():
    compiled = torch.compile(built, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), built(x), atol=1e-5, rtol=1e-5)
    built.train()
    compiled(x).square().mean().backward()
    try:
        with sl.record(compiled, "**.pooled"):
            compiled(x)
    except ValueError as error:
        assert "compiled" in str(error)
print("models are accepted")

torch._dynamo.reset()
graphs = []

def traced(graph, _):  # a backend that only traces: what is tested is the wiring, not the compiler
    graphs.append(graph)
    return graph.forward

plain = sl.fit(model(), data()[0], recipe(steps=3), out=f"{sys.argv[1]}/plain")
torch.compile = functools.partial(torch.compile, backend=traced)
m = model()
run = sl.fit(m, data()[0], recipe(steps=3, compile=True), val=data()[1], out=f"{sys.argv[1]}/run")
assert graphs
np.testing.assert_allclose(losses(run), losses(plain), rtol=1e-5)
with sl.record(m, "blocks.*.attn.probs") as seen:  # a compiled model would record nothing
    m(torch.zeros(1, 3, 16, 16))
assert len(seen) == 2
print("trainings are the same")
"""


def run(script, folder, *, warn="default", **environment):
    command = [sys.executable, "-W", warn, "-c", START + script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    return done.stdout.splitlines(), done.stderr[-2000:]


def test_bfloat16_is_close_to_float32(tmp_path):
    """Without AMX: virtual machines announce that instruction set and then trap on it."""
    said, problem = run(BFLOAT, tmp_path, ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16")
    assert said == ["models are close", "trainings are close"], problem


@pytest.mark.slow
def test_compiled_families_are_whole_and_compiled_training_leaves_the_model_plain(tmp_path):
    """Without the tests' shape checks, which cannot be traced."""
    # a backend that only traces needs no compiler
    said, problem = run(COMPILED, tmp_path, warn="ignore", CXX=sys.executable)
    assert said == ["models are accepted", "trainings are the same"], problem
