"""`sl.weights.export`: a model as a file for another runtime, checked there before it is kept."""

import copy
import importlib.util
import itertools
import logging
import math
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sightline.models import checks
from sightline.models.bit import Root
from sightline.models.convolutions import StdConv
from sightline.spec import ImageSpec, atomic, to_json
from sightline.weights.names import class_names
from sightline.weights.probe import make_images, relative_difference
from sightline.weights.report import WeightsError
from sightline.weights.runs import run_temperature

Target = Literal["onnx", "openvino", "torch"]
SUFFIX = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2"}
NEEDS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino",), "torch": ()}
BATCHES = (1, 4, 7)  # replayed in the other runtime; 4 is the size that the model is traced with
LIMIT = 1e-4  # largest difference, relative to the largest output
NEARLY_ZERO = 1e-30
TURNS, SECONDS = 7, 1.0  # of timing at least, this runtime and the other in turns; processor time
CLOCK_TICK = 1e-6  # seconds; a clock may not have moved
Run = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Export:
    """A model in a file of another runtime, and how it compared with the model itself.

    >>> sl.weights.Export(path="vit.onnx", to="onnx", difference=2e-6, speed=1.4, meta={}).speed
    1.4
    """

    path: str
    to: str
    difference: float  # the largest on the probe images, relative to the largest output
    speed: float  # images per second at batch 1, divided by those of PyTorch in this process
    meta: dict[str, Any]  # what the file says about itself


def export(model: nn.Module, path: str | Path, *, to: Target = "onnx", pixels: bool = False) -> Export:
    """Write a model for ONNX Runtime (`onnx`), OpenVINO (`openvino`) or PyTorch without Sightline (`torch`).

    The batch size is free, the precision float32. Class names and preprocessing are in the file's metadata; with
    `pixels` they are also in the graph, which then takes bytes (b, h, w, 3) of the right size and gives probabilities,
    not logits: those of `sl.predict`, so calibrated for a run with validation data. Probe images are sent through the
    other runtime in batches of 1, 4 and 7; a file that differs by more than 1e-4 is not kept.

    >>> import tempfile
    >>> model = sl.build("vit-nano4", classes=3, depth=1)
    >>> done = sl.weights.export(model, tempfile.mkdtemp() + "/vit.pt2", to="torch")
    >>> done.difference < 1e-4
    True
    """
    path = Path(path)
    check_target(path, to)
    graph = Graph(model, pixels)
    del model  # the graph has its own copy: a caller who kept none need not pay for two
    with tempfile.TemporaryDirectory(prefix=".export-", dir=existing_parent(path)) as folder, quiet():
        draft = Path(folder) / path.name
        run = WRITERS[to](graph.program(), draft, graph.meta())
        difference = replay(graph, run)
        if not difference <= LIMIT:  # nor is NaN
            raise WeightsError(
                f"{to} computes something else: its outputs differ by {difference:.1e} of the largest, at most "
                f"{LIMIT:.0e} is accepted. {path} was not written."
            )
        speed = compare_speed(graph, run)
        del run  # a runtime may hold its file open
        for file in sorted(Path(folder).iterdir(), reverse=True):  # weights before the graph that refers to them
            with atomic(path.parent / file.name) as partial:
                shutil.copyfile(file, partial)
    return Export(path=str(path), to=to, difference=difference, speed=speed, meta=graph.meta())


def check_target(path: Path, to: str) -> None:
    """Refuse a target that does not exist, a name that does not fit it, and a library that is missing."""
    if to not in SUFFIX:
        raise WeightsError(f"A model is exported to one of {', '.join(SUFFIX)}; got {to!r}.")
    if path.suffix != SUFFIX[to]:
        raise WeightsError(f"{to} is written to a {SUFFIX[to]} file; got {path.name!r}.")
    for library in NEEDS[to]:
        if importlib.util.find_spec(library) is None:
            raise WeightsError(f"Export to {to} needs {library}: pip install 'sightline[export]'.")


def existing_parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.parent


class Graph(nn.Module):
    """What is exported: a copy of the model in evaluation, with its preprocessing around it if asked for."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, pixels: bool):
        super().__init__()
        image, config = getattr(model, "image", None), getattr(model, "config", None)
        if not isinstance(image, ImageSpec) or config is None:
            raise WeightsError(
                f"A {type(model).__name__} is exported once it is adopted: sl.weights.export(sl.adopt(model), ...)."
            )
        if pixels and not config.classes:
            raise WeightsError("A model without a head gives no probabilities: export it without pixels.")
        self.model = fold(copy.deepcopy(model)).float().cpu().eval()
        self.image, self.pixels, self.classes = image, pixels, int(config.classes)
        self.names, self.named_by = class_names(model, self.classes)
        self.by = getattr(model, "probability", "softmax")
        self.temperature = run_temperature(model) if self.by == "softmax" else 1.0
        shape = (1, len(image.mean), 1, 1)
        self.register_buffer("mean", 255 * torch.tensor(image.mean).reshape(shape))
        self.register_buffer("std", 255 * torch.tensor(image.std).reshape(shape))

    def forward(self, images: Tensor) -> Tensor:
        if not self.pixels:
            return self.model(images)
        logits = self.model((images.permute(0, 3, 1, 2).float() - self.mean) / self.std)
        return logits.sigmoid() if self.by == "sigmoid" else (logits / self.temperature).softmax(1)

    def probes(self, count: int) -> Tensor:
        """So many probe images, as the graph takes them."""
        images = make_images(checks.pair(self.image.size), len(self.image.mean)).float()
        images = torch.cat([images.roll(i, dims=3) for i in range(-(-count // len(images)))])[:count]
        return ((images + 1) * 127.5).round().byte().permute(0, 2, 3, 1).contiguous() if self.pixels else images

    def program(self) -> Any:
        """The traced program, with a free batch size."""
        batch = torch.export.Dim("batch", min=1, max=2**16)
        with torch.no_grad():
            return torch.export.export(self, (self.probes(4),), dynamic_shapes=({0: batch},))

    def meta(self) -> dict[str, Any]:
        """What a user of the file must know."""
        height, width = checks.pair(self.image.size)
        sides = f"height {height}, width {width}"
        return {
            "producer": "sightline",
            "input": f"uint8 (batch, {sides}, channel)" if self.pixels else f"float32 (batch, channel, {sides})",
            "output": "probabilities" if self.pixels else "logits" if self.classes else "features",
            "precision": "float32",
            "probability": self.by,
            "temperature": self.temperature,
            "preprocessing": asdict(self.image),
            "classes": list(self.names) if self.classes and self.named_by != "number" else self.classes,
            "named_by": self.named_by,
        }


def fold(model: nn.Module) -> nn.Module:
    """Standardize the kernels once, and pad the pooling of BiT's root with almost zero.

    ONNX Runtime merges a padding of zeros into the pooling after it, which pads with minus infinity: the logits of
    bit-r50x1 move by up to 0.15 of the largest. It leaves every other value alone.
    """
    for part in model.modules():
        if isinstance(part, Root):
            part.padding = NEARLY_ZERO
        if isinstance(part, StdConv) and part.eps is not None:
            part.weight = nn.Parameter(part.standardized().detach(), requires_grad=False)
            part.eps = None
    return model


def write_onnx(program: Any, path: Path, meta: dict[str, Any]) -> Run:
    import onnxruntime

    onnx: Any = torch.onnx.export(
        program, dynamo=True, verbose=False, input_names=["images"], output_names=[meta["output"]]
    )
    for key, value in meta.items():
        onnx.model.metadata_props[key] = value if isinstance(value, str) else to_json(value)
    onnx.save(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images})[0]


def write_openvino(program: Any, path: Path, meta: dict[str, Any]) -> Run:
    import openvino

    model = openvino.convert_model(program)
    for key, value in meta.items():
        model.set_rt_info(value if isinstance(value, str) else to_json(value), ["sightline", key])
    openvino.save_model(model, path, compress_to_fp16=False)
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = openvino.Core().compile_model(path, "CPU", settings)  # without the hint, some CPUs compute in bfloat16
    return lambda images: compiled(images)[0]


def write_torch(program: Any, path: Path, meta: dict[str, Any]) -> Run:
    torch.export.save(program, path, extra_files={"sightline.json": to_json(meta)})
    module = torch.export.load(path).module()
    return lambda images: module(torch.from_numpy(images)).numpy()


WRITERS: dict[str, Callable[[Any, Path, dict[str, Any]], Run]] = {
    "onnx": write_onnx,
    "openvino": write_openvino,
    "torch": write_torch,
}


@torch.no_grad()
def replay(graph: Graph, run: Run) -> float:
    """The largest difference between the model and the other runtime."""
    worst = 0.0
    for count in BATCHES:
        images = graph.probes(count)
        ours, theirs = graph(images).numpy(), np.asarray(run(images.numpy()))
        if ours.shape != theirs.shape:
            raise WeightsError(f"The exported model gives outputs of shape {theirs.shape}; expected {ours.shape}.")
        worst = float(np.maximum(worst, relative_difference(theirs, ours)))  # NaN stays NaN
    return worst


@torch.no_grad()
def compare_speed(graph: Graph, run: Run) -> float:
    """How many times as fast the other runtime is for one image: the best time of each over many turns, because other
    processes can only add to a time. With one thread it is processor time, to which they add nothing."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    images = graph.probes(1)
    ours, theirs, end = math.inf, math.inf, time.process_time() + SECONDS
    for turn in itertools.count():
        begun = clock()
        graph(images)
        between = clock()
        run(images.numpy())
        ours, theirs = min(ours, between - begun), min(theirs, clock() - between)
        if turn >= TURNS and time.process_time() > end:
            return ours / max(theirs, CLOCK_TICK)
    raise AssertionError("unreachable")


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters announce every step; what matters to a user is raised."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
