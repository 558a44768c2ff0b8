"""One pass over a dataset: features of many layers at once, to memory or to a file, resumed where it stopped."""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.datasets import Dataset
from sightline.evals import feature_table
from sightline.evals.feature_table import FeatureTable
from sightline.models.taps import record
from sightline.observe import pooling
from sightline.observe.pooling import END, Layers, Maps, Shape, Tokens
from sightline.progress import progress
from sightline.spec import Features, ImageSpec

SAVE_EVERY = 10.0  # seconds between notes of how far a file has come


class Featured(Protocol):
    """What extraction asks of a model: Sightline's own, or one wrapped by `sl.adopt`."""

    image: ImageSpec

    def features(self, x: Tensor) -> Features: ...


def extract(
    model: Any,
    dataset: Dataset,
    layers: Layers = None,
    tokens: Tokens = "pooled",
    *,
    batch: int = 64,
    workers: int = 0,
    out: str | Path | None = None,
    image: ImageSpec | None = None,
    maps: Maps = "own",
) -> FeatureTable:
    """Features of every image of a dataset, in its order, in inference mode, by one pass.

    `layers`: None for the model's output, "blocks" for the output of every block or residual unit, block numbers,
    module paths or globs. `tokens`: "pooled" as the model itself pools (class token or mean; at the output: what
    the head sees), "cls", "gap" (mean of the patches), "mean" (of all tokens), "first", or "all" of them, prefix
    first, as (n, t, d); a CNN's map is a grid of tokens. `maps="last"` brings every map to the size of the
    last one, by the protocol of Raghu et al. `out` writes one file, read lazily; a stopped pass goes on
    where it stopped. Preprocessing is the model's own unless `image` says otherwise. Memory is that of one
    batch and of what is kept.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> images = sl.dataset("scenes/shape", num=20, size=32)
    >>> e = sl.extract(model, images, layers="blocks", tokens="gap")
    >>> len(e.layers), e["blocks.0.mlp_sum"].shape
    (6, torch.Size([20, 64]))
    """
    pooling.check_choice(tokens, maps)
    check_model(model, "features")
    if len(dataset) == 0:
        raise ValueError(f"{dataset.name} is empty: there is nothing to extract.")
    with inference(model):
        one = Pass(model, image or model.image, layers, tokens, maps)
        shape = one.shape(dataset)
        store = Stored(shape) if out is None else Filed(shape, Path(out), one.key(dataset))
        if store.done < len(dataset):
            with store:
                one.run(dataset, store, batch=batch, workers=workers)
        return store.result()


def check_model(model: Any, method: str) -> None:
    """A model that is not ours, or not wrapped, is met here with a word of advice."""
    if not callable(getattr(model, method, None)) or not isinstance(getattr(model, "image", None), ImageSpec):
        raise ValueError(f"A {type(model).__name__} has no .{method} or .image. Wrap it first: sl.adopt(model).")


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients for a while."""
    training = getattr(model, "training", False)
    if training:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        if training:
            model.train()


def place_of(model: Any) -> tuple[torch.device, torch.dtype]:
    """Device and precision of a model; a model without parameters is at home on the CPU."""
    first = next(iter(model.parameters()), None) if isinstance(model, nn.Module) else None
    if first is None:
        return torch.device("cpu"), torch.float32
    return first.device, first.dtype if first.is_floating_point() else torch.float32


class Pass:
    """What is done to each batch."""

    def __init__(self, model: Any, image: ImageSpec, layers: Layers, tokens: Tokens, maps: Maps):
        self.model, self.image, self.tokens, self.maps = model, image, tokens, maps
        self.layers = pooling.resolve(model, layers)
        self.inner = [name for name in self.layers if name != END]
        self.parts = pooling.layouts(model) if self.inner else {}
        self.device, self.dtype = place_of(model)
        self.found, self.kept, self.grids = self.scout()

    def scout(self) -> tuple[Shape, dict[str, Tensor], dict[str, tuple[int, int]]]:
        """One blank image tells the last grid, the prefix, and the shape of all that will be kept."""
        with ExitStack() as stack:
            tape = stack.enter_context(record(self.model, *self.inner)) if self.inner else {}
            out = self.model.features(self.blank())
        prefix = out.prefix.shape[1]
        own = pooling.own_pooling(self.model, prefix)
        self.found = Shape(grid=out.grid, prefix=prefix, width=out.tokens.shape[-1], own=own)
        raw = {name: self.tokens_of(name, value) for name, value in tape.items()}
        kept = {name: self.keep(name, value) for name, value in tape.items()}
        grids = {name: grid for name, (_, grid) in raw.items() if grid is not None}
        if END in self.layers:
            kept[END], grids[END] = self.end(out), out.grid
        return self.found, {name: kept[name] for name in self.layers}, grids

    def blank(self) -> Tensor:
        return torch.zeros(1, len(self.image.mean), *self.image.size, device=self.device, dtype=self.dtype)

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """What is kept of one batch, by layer."""
        with ExitStack() as stack:
            tape = stack.enter_context(record(self.model, *self.inner, keep=self.keep)) if self.inner else {}
            out = self.model.features(images.to(self.dtype))
        kept = dict(tape)
        if END in self.layers:
            kept[END] = self.end(out)
        return {name: kept[name] for name in self.layers}

    def keep(self, name: str, value: Tensor) -> Tensor:
        tokens, grid = self.tokens_of(name, value)
        if grid is None:
            return tokens
        prefix = pooling.prefix_of(tokens.shape[1], grid, self.found)
        return pooling.reduced(tokens, self.tokens, prefix=prefix, own=self.found.own)

    def tokens_of(self, name: str, value: Tensor) -> tuple[Tensor, tuple[int, int] | None]:
        layout = self.parts[name].layout if name in self.parts else None
        return pooling.as_tokens(value, layout=layout, shape=self.found, maps=self.maps)

    def end(self, out: Features) -> Tensor:
        if self.tokens == "pooled":
            return out.pooled
        tokens = torch.cat([out.prefix, out.tokens], dim=1)
        return pooling.reduced(tokens, self.tokens, prefix=out.prefix.shape[1], own=self.found.own)

    def shape(self, dataset: Dataset) -> FeatureTable:
        """The value to come, its tensors without content."""
        layers = {
            k: torch.empty(len(dataset), *v.shape[1:], dtype=torch.float32, device="meta") for k, v in self.kept.items()
        }
        grids = {k: self.grids[k] for k, v in layers.items() if v.ndim == 3}
        prefix = {k: v.shape[1] - grids[k][0] * grids[k][1] for k, v in layers.items() if v.ndim == 3}
        return FeatureTable(
            layers=layers,
            labels=np.asarray(dataset.labels),
            classes=tuple(dataset.classes),
            grids=grids,
            prefix=prefix,
            how=self.how(dataset),
        )

    def how(self, dataset: Dataset) -> dict[str, Any]:
        return {
            "model": described(self.model),
            "dataset": dataset.name,
            "images": len(dataset),
            "tokens": self.tokens,
            "pooling": self.found.own,
            "maps": self.maps,
            "image": asdict(self.image),
        }

    def key(self, dataset: Dataset) -> str:
        """What makes a file of features this one and no other."""
        digest = hashlib.blake2b(digest_size=16)
        about = (dataset.fingerprint(), self.layers, self.tokens, self.maps, asdict(self.image))
        digest.update(json.dumps(about).encode())
        state = self.model.state_dict() if isinstance(self.model, nn.Module) else {}
        for name, value in state.items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    def run(self, dataset: Dataset, store: "Stored", *, batch: int, workers: int) -> None:
        start = store.done // batch
        batches = dataset.batches(self.image, batch=batch, workers=workers, start=start, device=self.device)
        at = start * batch
        for images, _ in progress(cast(Any, batches), f"features of {dataset.name}"):
            store.write(at, self(images))
            at += len(images)


def described(model: Any) -> str:
    """A model in a few words, for captions."""
    loaded = getattr(getattr(model, "loaded", None), "source", None)
    plan = getattr(model, "encoder_config", getattr(model, "config", None))
    sizes = [f"{n} {getattr(plan, n)}" for n in ("width", "depth", "units") if getattr(plan, n, None)]
    name = type(getattr(model, "inner", model)).__name__ + (f" ({', '.join(sizes)})" if sizes else "")
    return f"{name} from {Path(str(loaded)).name}" if loaded and loaded != "a state dict" else name


@dataclass
class Stored:
    """Features on their way into memory."""

    shape: FeatureTable
    done: int = 0
    held: dict[str, Tensor] = field(default_factory=dict)

    def __enter__(self) -> "Stored":
        with torch.inference_mode(False):  # what is kept may be trained on later
            self.held = {k: torch.empty(v.shape, dtype=v.dtype) for k, v in self.shape.layers.items()}
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        pass

    def write(self, at: int, batch: dict[str, Tensor]) -> None:
        for name, value in batch.items():
            self.held[name][at : at + len(value)] = value  # copies, converts and brings it to the CPU in one go
            self.done = at + len(value)

    def result(self) -> FeatureTable:
        return replace(self.shape, layers=self.held)


class Filed(Stored):
    """Features on their way into a file: until it is whole, a hidden part of it and a note of how far it has come."""

    def __init__(self, shape: FeatureTable, path: Path, key: str):
        super().__init__(replace(shape, how={**shape.how, "key": key}))
        self.path, self.key = path, key
        self.part, self.note = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.part.json")
        self.said = time.monotonic()
        if path.exists():
            if feature_table.header(path)["how"].get("key") != key:
                raise ValueError(
                    f"{path} holds features of another model, dataset or choice of layers. "
                    "Delete it, or write elsewhere."
                )
            self.done = len(shape)
        elif self.part.exists() and self.note.exists():
            noted = json.loads(self.note.read_text())
            self.done = noted["done"] if noted["key"] == key else 0

    def __enter__(self) -> "Filed":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.done == 0:
            self.note.unlink(missing_ok=True)
            feature_table.begin(self.part, self.shape)
        self.starts = feature_table.starts(self.part)
        self.file = os.open(self.part, os.O_WRONLY)
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self.tell()
        os.close(self.file)
        if kind is None:
            os.replace(self.part, self.path)
            self.note.unlink(missing_ok=True)

    def write(self, at: int, batch: dict[str, Tensor]) -> None:
        for name, value in batch.items():  # written, not mapped: pages of a map would count as our memory
            row = math.prod(value.shape[1:]) * 4
            data = value.float().cpu().contiguous().numpy().tobytes()
            written = 0
            while written < len(data):  # one call writes 2 GB at most
                written += os.pwrite(self.file, data[written:], self.starts[name] + at * row + written)
            self.done = at + len(value)
        if time.monotonic() - self.said > SAVE_EVERY:
            self.tell()

    def tell(self) -> None:
        """First the features, then the note: it never promises more than the file holds."""
        os.fsync(self.file)
        fresh = self.note.with_suffix(".new")
        fresh.write_text(json.dumps({"key": self.key, "done": self.done}))
        os.replace(fresh, self.note)
        self.said = time.monotonic()

    def result(self) -> FeatureTable:
        return FeatureTable.read(self.path)


def each_batch(
    model: Any, dataset: Dataset, call: Callable[[Tensor], Tensor], *, batch: int = 64, workers: int = 0
) -> Tensor:
    """What a function of prepared images says about a whole dataset, in order, on the CPU."""
    check_model(model, "features")
    with inference(model):
        device, dtype = place_of(model)
        batches = dataset.batches(model.image, batch=batch, workers=workers, device=device)
        said = [call(images.to(dtype)).float().cpu() for images, _ in progress(cast(Any, batches), dataset.name)]
    return torch.cat(said)
