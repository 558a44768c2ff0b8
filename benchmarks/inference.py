"""Inference against other engines: `python -m benchmarks.inference [rounds] [MODEL ...]`, ten minutes or more.

The same weights in Sightline, ONNX Runtime and OpenVINO (float32, as many threads as torch takes), batches of 1 and
16, in turns within one run; with OMP_NUM_THREADS=1 in processor time, which a busy machine hardly changes. Logits are
compared first: a fast engine that computes something else does not count. Results of other models are kept.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import sightline as sl
from benchmarks.race import RESULTS, race, report, save

MODELS, BATCHES = ("vit-s16", "bit-r50x1"), (1, 16)
CLOSE = 1e-2  # of the largest logit; ONNX Runtime's bit-r50x1 was off by 2.5e-3, OpenVINO's by 6e-6


def ours(model: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.inference_mode():
            return model(x)

    return run


def onnx_runtime(file: Path, x: Tensor) -> Callable[[], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name, pixels = session.get_inputs()[0].name, x.numpy()
    return lambda: torch.from_numpy(session.run(None, {name: pixels})[0])


def openvino(file: Path, x: Tensor) -> Callable[[], Tensor]:
    import openvino

    how = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32",
           "PERFORMANCE_HINT": "LATENCY"}  # fmt: skip
    compiled = openvino.compile_model(openvino.Core().read_model(file), "CPU", how)
    pixels = x.numpy()
    return lambda: torch.from_numpy(compiled(pixels)[0])


def measure(name: str, batch: int, rounds: int) -> dict[str, dict]:
    """One model at one batch size; the engines that are not installed are left out, and named."""
    model = sl.build(name).eval()
    nn.init.normal_(model.head.weight, std=0.02)  # type: ignore[arg-type] # a new head says nothing
    x = torch.randn(batch, 3, *model.image.size)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(model, (x,), file, dynamo=True, verbose=False)
        runs: dict[str, Callable[[], Tensor]] = {"sightline": ours(model, x)}
        for engine in (onnx_runtime, openvino):
            try:
                runs[engine.__name__] = engine(file, x)
            except ImportError as error:
                print(f"left out: {error}")
        expected = runs["sightline"]()
        for engine_name, run in runs.items():
            off = float((run() - expected).abs().max() / expected.abs().max())
            assert off < CLOSE, f"{engine_name} is off by {off:.1e}"
        return race(runs, flops=2 * sl.cost(model).macs * batch, rounds=rounds)


def main(rounds: int = 9, models: tuple[str, ...] = MODELS) -> None:
    file = RESULTS / "inference.json"
    found = json.loads(file.read_text())["models"] if file.exists() else {}
    for name in models:
        for batch in BATCHES:
            title, threads = f"{name}, batch {batch}", torch.get_num_threads()
            rows = measure(name, batch, rounds)
            report(title, rows)
            found[title] = {"threads": threads, "rounds": rounds, "load": os.getloadavg()[0], "engines": rows}
            save("inference", {"versions": versions(), "models": found})


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("torch", "onnxruntime", "openvino")}


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]), *((tuple(sys.argv[2:]),) if sys.argv[2:] else ()))
