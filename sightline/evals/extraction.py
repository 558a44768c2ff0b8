"""Extract features of many layers in one pass over a dataset, into memory or a file; an interrupted pass resumes."""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.datasets import Dataset
from sightline.evals import feature_table
from sightline.evals.feature_table import FeatureTable
from sightline.files import atomic, exclusive_file, publish
from sightline.models.taps import record
from sightline.observe.identity import plan_of, source
from sightline.observe.images import fingerprint
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe, place
from sightline.observe.selection import (
    END,
    Layers,
    Maps,
    MissingTokenError,
    Tokens,
    as_tokens,
    check_maps,
    check_tokens,
    pool_tokens,
    select_layers,
)
from sightline.progress import progress
from sightline.references.matching import published_name
from sightline.spec import About, Features, ImageSpec
from sightline.untrusted import read_json
from sightline.weights.containers.safetensors import SafetensorsSource, seal_file

SAVE_EVERY = 10.0  # seconds between saves of the progress


def extract(
    model: Model,
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
    """Features of every image of a dataset, in order, from one pass in inference mode.

    `layers`: None for the model's output, "blocks" for the output of every block or residual unit, "all", block
    numbers, module paths or globs. `tokens`: "pooled" as the model itself pools (class token or mean; at the output,
    the input of the head), "cls", "gap" (mean of the patches), "mean" (of all tokens), "first", the number of one
    patch, "all" of them as (n, t, d), prefix first, or "patches" without the prefix; a CNN's map is a grid of tokens.
    `maps="last"` brings every map to the size of the last one, as Raghu et al. do. `out` writes one file, which is
    read lazily; an interrupted pass resumes. Preprocessing is the model's own unless `image` is given. Memory holds
    one batch and the extracted features.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> images = sl.dataset("scenes/shape", num=20, size=32)
    >>> e = sl.extract(model, images, layers="blocks", tokens="gap")
    >>> len(e.layers), e["blocks.0.mlp_sum"].shape
    (6, torch.Size([20, 64]))
    """
    check_tokens(tokens)
    check_maps(maps)
    check_model(model, "features")
    if len(dataset) == 0:
        raise ValueError(f"{dataset.name} is empty: there is nothing to extract.")
    s = observe(model, image=image)
    one = ExtractionPass(s, select_layers(s, layers), tokens, maps)
    about = About(models=(s.id,), images=fingerprint(dataset))
    with nullcontext() if out is None else exclusive_file(out):
        store = MemoryStore() if out is None else FileStore(Path(out), one.key(about), total=len(dataset))
        if store.done < len(dataset):
            with evaluation_mode(s), store:
                one.run(dataset, store, about=about, batch=batch, workers=workers)
        return store.result()


def check_model(model: Any, method: str) -> None:
    """Refuse a model of another library that is not wrapped, and say how to wrap it."""
    inner = model.model if isinstance(model, ObservedModel) else model
    known = callable(getattr(inner, method, None)) and isinstance(getattr(inner, "image", None), ImageSpec)
    if not known or not isinstance(inner, nn.Module):
        raise ValueError(f"A {type(inner).__name__} has no .{method} or .image. Wrap it first: sl.adopt(model).")


class ExtractionPass:
    """Computes the features of each batch."""

    def __init__(self, s: ObservedModel, layers: list[str], tokens: Tokens, maps: Maps):
        self.target, self.layers, self.tokens, self.maps = s, layers, tokens, maps
        self.inner = [name for name in layers if name != END]
        self.grids: dict[str, tuple[int, int]] = {}

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """The features of one batch, by layer."""
        with ExitStack() as stack:
            tape = stack.enter_context(record(self.target.model, *self.inner, keep=self.keep)) if self.inner else {}
            out = self.target.model.features(images.to(self.target.place[1]))  # type: ignore[operator]
        kept = dict(tape)
        if END in self.layers:
            kept[END] = self.end(out)
        return {name: kept[name] for name in self.layers}

    def keep(self, name: str, value: Tensor) -> Tensor:
        layer = as_tokens(value, self.target, name, maps=self.maps)
        if layer.grid is None:
            return value
        self.grids[name] = layer.grid
        return self.pool(name, layer.tokens, layer.prefix)

    def end(self, out: Features) -> Tensor:
        self.grids[END] = out.grid
        if self.tokens == "pooled":
            return out.pooled
        return self.pool(END, torch.cat([out.prefix, out.tokens], dim=1), out.prefix.shape[1])

    def pool(self, name: str, tokens: Tensor, prefix: int) -> Tensor:
        try:
            s = self.target
            return pool_tokens(tokens, self.tokens, prefix=prefix, own=s.own_pool, class_token=s.class_token)
        except MissingTokenError as error:
            raise ValueError(f"{name} {error}: tokens={self.tokens!r} is not possible; use 'gap' or 'first'.") from None

    def table(self, dataset: Dataset, kept: dict[str, Tensor], about: About) -> FeatureTable:
        """The table to fill, with tensors on the meta device, from the features of a first batch."""
        layers = {
            k: torch.empty(len(dataset), *v.shape[1:], dtype=torch.float32, device="meta") for k, v in kept.items()
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
            about=about,
        )

    def how(self, dataset: Dataset) -> dict[str, Any]:
        return {
            "model": describe(self.target.model),
            "variant": published_name(self.target.model),
            "dataset": dataset.name,
            "images": len(dataset),
            "tokens": self.tokens,
            "pooling": self.target.own_pool,
            "class token": self.target.class_token,
            "maps": self.maps,
            "image": asdict(self.target.image),
        }

    def key(self, about: About) -> str:
        """The identity of a feature file: a file is reused only if its key is the same."""
        model = [m.fingerprint for m in about.models]
        settings = (model, about.images, self.layers, self.tokens, self.maps, asdict(self.target.image))
        return hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()

    def run(self, dataset: Dataset, store: "MemoryStore", *, about: About, batch: int, workers: int) -> None:
        start = store.done // batch
        device = self.target.place[0]
        batches = dataset.batches(self.target.image, batch=batch, workers=workers, start=start, device=device)
        at = start * batch
        for images, _ in progress(cast(Any, batches), f"features of {dataset.name}"):
            kept = self(images)
            if at == start * batch:
                store.begin(self.table(dataset, kept, about))
            store.write(at, kept)
            at += len(images)


def describe(model: Any) -> str:
    """A short description of a model, for captions."""
    plan, file = plan_of(model), source(model)
    sizes = [f"{n} {getattr(plan, n)}" for n in ("width", "depth", "units") if getattr(plan, n, None)]
    name = type(getattr(model, "inner", model)).__name__ + (f" ({', '.join(sizes)})" if sizes else "")
    return f"{name} from {Path(file).name}" if file else name


@dataclass
class MemoryStore:
    """Collects features in memory."""

    done: int = 0
    table: FeatureTable | None = None
    held: dict[str, Tensor] = field(default_factory=dict)

    def __enter__(self) -> "MemoryStore":
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        pass

    def begin(self, table: FeatureTable) -> None:
        """Allocate memory for all images."""
        self.table = table
        with torch.inference_mode(False):  # not inference tensors, so that they can be trained on
            self.held = {k: torch.empty(v.shape, dtype=v.dtype) for k, v in table.layers.items()}

    def write(self, at: int, batch: dict[str, Tensor]) -> None:
        for name, value in batch.items():
            self.held[name][at : at + len(value)] = value  # copies, converts and moves to the CPU in one step
            self.done = at + len(value)

    def result(self) -> FeatureTable:
        assert self.table is not None
        return replace(self.table, layers=self.held)


class FileStore(MemoryStore):
    """Collects features in a file: until it is complete, a hidden partial file and a record of the progress."""

    def __init__(self, path: Path, key: str, *, total: int):
        super().__init__()
        self.path, self.key = path, key
        self.file: IO[bytes] | None = None
        self.part, self.note = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.part.json")
        self.noted = time.monotonic()
        if path.exists():
            if feature_table.header(path)["how"].get("key") != key:
                raise ValueError(
                    f"{path} holds features of another model, dataset or choice of layers, or of an earlier version. "
                    "Delete it, or write elsewhere."
                )
            self.done = total
            self._clear()  # what a process left that was killed at the very end
        elif self.part.is_file() and not self.part.is_symlink() and self.note.exists():
            self.done = self._resumable(total)

    def _resumable(self, total: int) -> int:
        """How many images the part holds; none where it or the note is damaged, or about something else."""
        try:
            feature_table.header(self.part, verify=False)  # its checksums come last
            match read_json(self.note):
                case {"key": self.key, "done": int(done)} if 0 < done <= total:
                    return min(done, total - 1)  # killed just before the end: the last batch once more
        except ValueError:
            pass
        return 0

    def _clear(self) -> None:
        """Remove note and part, whatever they are: a link would lead to somebody's file."""
        for path in (self.note, self.part):
            path.unlink(missing_ok=True)

    def begin(self, table: FeatureTable) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.done == 0:
            self._clear()
            feature_table.begin(self.part, replace(table, how={**table.how, "key": self.key}))
        source = SafetensorsSource(self.part, verify=False)
        self.starts = {name: source.start(name) for name in source.shapes}
        self.file = self.part.open("r+b", buffering=0)

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if self.file is None:
            return
        try:
            self.save_progress()
        finally:
            self.file.close()
        if kind is None:
            seal_file(self.part)
            publish(self.part, self.path)
            self.note.unlink(missing_ok=True)

    def write(self, at: int, batch: dict[str, Tensor]) -> None:
        assert self.file is not None
        for name, value in batch.items():  # written, not mapped: pages of a map would count as our memory
            row = math.prod(value.shape[1:]) * 4
            left = memoryview(value.float().cpu().contiguous().numpy().tobytes())
            self.file.seek(self.starts[name] + at * row)
            while left:  # one call writes 2 GB at most
                left = left[self.file.write(left) :]
            self.done = at + len(value)
        if time.monotonic() - self.noted > SAVE_EVERY:
            self.save_progress()

    def save_progress(self) -> None:
        """First the features, then the note: it never promises more than the file holds."""
        assert self.file is not None
        os.fsync(self.file.fileno())
        with atomic(self.note) as partial:
            partial.write_text(json.dumps({"key": self.key, "done": self.done}), encoding="utf-8")
        self.noted = time.monotonic()

    def result(self) -> FeatureTable:
        return FeatureTable.read(self.path)


def each_batch(
    model: Any, dataset: Dataset, call: Callable[[Tensor], Tensor], *, batch: int = 64, workers: int = 0
) -> Tensor:
    """Apply a function of preprocessed images to a whole dataset, in order; results are on the CPU."""
    check_model(model, "features")
    with evaluation_mode(model):
        device, dtype = place(model)
        batches = dataset.batches(model.image, batch=batch, workers=workers, device=device)
        steps = progress(cast(Any, batches), f"batches of {dataset.name}")
        outputs = [call(images.to(dtype)).float().cpu() for images, _ in steps]
    return torch.cat(outputs)
