"""bfloat16 and torch.compile: what a recipe may ask of the machine."""

import os
import subprocess
import sys

import pytest

BFLOAT = """
import sys
import numpy as np
import torch
import sightline as sl
from tests.training.tiny import data, losses, model, recipe

torch.set_num_threads(1)
runs = []
for precision in ("float32", "bfloat16"):
    settings = recipe(steps=6, lr=2e-3, precision=precision, clip=1.0, ema=0.5)
    runs.append(sl.fit(model(), data()[0], settings, val=data()[1], out=f"{sys.argv[1]}/{precision}"))
a, b = map(losses, runs)
assert a != b, "autocast did nothing"
np.testing.assert_allclose(a, b, rtol=0.03)
assert all(p.dtype == torch.float32 for p in runs[1].model.parameters())
print("close")
"""


COMPILED = """
import functools
import sys
import numpy as np
import torch
import sightline as sl
from tests.training.tiny import data, losses, model, recipe

graphs = []

def traced(graph, _):  # a backend that only traces: what is tested is the wiring, not the compiler
    graphs.append(graph)
    return graph.forward

torch.set_num_threads(1)
plain = sl.fit(model(), data()[0], recipe(steps=3), out=f"{sys.argv[1]}/plain")
torch.compile = functools.partial(torch.compile, backend=traced)
m = model()
run = sl.fit(m, data()[0], recipe(steps=3, compile=True), val=data()[1], out=f"{sys.argv[1]}/run")
assert graphs
np.testing.assert_allclose(losses(run), losses(plain), rtol=1e-5)
with sl.record(m, "blocks.*.attn.probs") as seen:  # a compiled model would record nothing
    m(torch.zeros(1, 3, 16, 16))
assert len(seen) == 2
print("the same")
"""


def test_bfloat16_training_follows_float32(tmp_path):
    """In a process of its own and without AMX: virtual machines announce that instruction set and then trap on it."""
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    run = subprocess.run([sys.executable, "-c", BFLOAT, str(tmp_path)], capture_output=True, text=True, env=env)
    assert run.stdout.strip() == "close", run.stderr[-2000:]


@pytest.mark.slow
def test_compiled_training_is_the_same_and_leaves_the_model_plain(tmp_path):
    """Without the tests' shape checks, which cannot be traced."""
    env = {**os.environ, "CXX": sys.executable}  # the backend that only traces needs no compiler
    run = subprocess.run([sys.executable, "-c", COMPILED, str(tmp_path)], capture_output=True, text=True, env=env)
    assert run.stdout.strip() == "the same", run.stderr[-2000:]
