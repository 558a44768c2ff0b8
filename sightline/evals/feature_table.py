"""Features of a dataset, in memory or in one file that is read lazily."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sightline.data.labeled import class_numbers
from sightline.observe.selection import END, MissingTokenError, Tokens, pool_tokens
from sightline.spec import About, about_of, from_json, to_json
from sightline.weights.containers.safetensors import SafetensorsSource, bytes_of, make_header, write_safetensors

TYPES: dict[torch.dtype, Any] = {
    **{torch.float32: np.float32, torch.float16: np.float16, torch.float64: np.float64},
    **{torch.int64: np.int64, torch.bool: np.bool_},
}
HEAD = "sightline_features"  # our entry in the metadata of a safetensors file
LABELS = "labels"
Rows = ArrayLike | slice


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureTable:
    """Features of a dataset's images: `layers[name]` is (n, d), or (n, t, d) if all tokens were kept.

    Tensors from a file are memory-mapped: accessing a row reads only that row. `features` is the only layer, or the
    last. `how` states dataset, preprocessing and tokens, `about` the model and the images.

    >>> import numpy as np
    >>> e = sl.evals.FeatureTable.of(np.eye(4), [0, 0, 1, 1], classes=("cat", "dog"))
    >>> len(e), e.features.shape, e.take([0, 2]).labels.tolist()
    (4, torch.Size([4, 4]), [0, 1])
    """

    layers: Mapping[str, Tensor]
    labels: NDArray[Any]  # (n,) class numbers, or (n, k) of bool
    classes: tuple[str, ...]
    grids: dict[str, tuple[int, int]] = field(default_factory=dict)  # of layers with all tokens
    prefix: dict[str, int] = field(default_factory=dict)  # tokens before the grid
    how: dict[str, Any] = field(default_factory=dict)
    about: About = field(default_factory=About)  # which model and images, by fingerprint

    @classmethod
    def of(
        cls, features: ArrayLike | Tensor, labels: ArrayLike | Tensor, *, classes: Sequence[str] | None = None
    ) -> "FeatureTable":
        """A table of features that were computed elsewhere. Without `classes`, class names are numbers."""
        x, y = torch.as_tensor(features).detach().cpu(), np.asarray(torch.as_tensor(labels).cpu())
        if x.ndim not in (2, 3) or y.ndim not in (1, 2) or len(x) != len(y):
            raise ValueError(
                f"Features must be (n, d) or (n, t, d) with n labels; got {tuple(x.shape)} and labels {y.shape}."
            )
        if y.ndim == 1 and (not np.issubdtype(y.dtype, np.integer) or (len(y) and y.min() < 0)):
            raise ValueError("Labels must be class numbers from 0, or a boolean table (n, classes).")
        count = y.shape[1] if y.ndim == 2 else 1 + max(map(int, np.unique(y)), default=-1)
        names = tuple(map(str, classes)) if classes is not None else class_numbers(count, "features")
        if len(names) < count:
            raise ValueError(f"There are labels up to {count - 1}, but {len(names)} classes.")
        x = x if x.is_floating_point() else x.double()
        how = {} if classes is not None else {"classes": "by number"}
        return cls(layers={END: x}, labels=y.astype(np.int64 if y.ndim == 1 else np.bool_), classes=names, how=how)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, layer: str) -> Tensor:
        if layer not in self.layers:
            raise ValueError(f"There is no layer {layer!r}; the layers are {', '.join(self.layers)}.")
        return self.layers[layer]

    @property
    def features(self) -> Tensor:
        """The only layer, or the last."""
        return self.layers[list(self.layers)[-1]]

    def layer(self, name: str) -> "FeatureTable":
        """A table with one layer only."""
        return self._with_layers({name: self[name]})

    def take(self, rows: Rows) -> "FeatureTable":
        """Some of the images, by row numbers, a slice or a mask."""
        chosen = rows if isinstance(rows, slice) else np.asarray(rows)
        if not isinstance(chosen, slice) and chosen.dtype != np.bool_:
            chosen = chosen.astype(np.int64)  # an empty list would be an array of floats
        index = chosen if isinstance(chosen, slice) else torch.from_numpy(chosen)
        some = self._with_layers({k: v[index] for k, v in self.layers.items()})
        return replace(some, labels=self.labels[chosen], about=self._about(np.arange(len(self))[chosen]))

    def _about(self, rows: NDArray[np.int64]) -> About:
        """`about` for some of the images."""
        if not self.about.images or len(rows) == len(self):
            return self.about
        digest = hashlib.blake2b(np.ascontiguousarray(rows).data, digest_size=8).hexdigest()
        return replace(self.about, images=f"{self.about.images}-rows{digest}")

    def reduce(self, tokens: Tokens) -> "FeatureTable":
        """Reduce all tokens to one vector per image: cls, gap (patches only), mean (all tokens), first."""
        whole = [k for k, v in self.layers.items() if v.ndim == 3]
        if not whole:
            raise ValueError("Only features with all tokens can be reduced: extract with tokens='all'.")
        own, first = str(self.how.get("pooling", "gap")), bool(self.how.get("class token", True))
        try:
            made = {
                k: pool_tokens(v, tokens, prefix=self.prefix.get(k, 0), own=own, class_token=first) if k in whole else v
                for k, v in self.layers.items()
            }
        except MissingTokenError as error:
            raise ValueError(f"A layer {error}: tokens={tokens!r} is not possible; use 'gap' or 'first'.") from None
        return replace(self._with_layers(made), how={**self.how, "tokens": tokens})

    def _with_layers(self, layers: dict[str, Tensor]) -> "FeatureTable":
        whole = {k for k, v in layers.items() if v.ndim == 3}
        return replace(
            self,
            layers=layers,
            grids={k: v for k, v in self.grids.items() if k in whole},
            prefix={k: v for k, v in self.prefix.items() if k in whole},
        )

    def save(self, path: str | Path) -> "FeatureTable":
        """Write everything to one file (safetensors), whole or not at all, and read it from there from now on."""
        write_safetensors(path, _tensors(self), {HEAD: _describe(self)})
        return self.read(path)

    @classmethod
    def read(cls, path: str | Path, *, verify: bool = True) -> "FeatureTable":
        """Open a file that `save` or `sl.extract(..., out=)` wrote; tensors are mapped and read when they are used.

        Its checksums are compared first, which reads the file once; `verify=False` leaves that out.
        """
        source, head = _open(Path(path), verify=verify)
        try:
            if verify:
                source.check_all()
        except ValueError as error:
            raise ValueError(f"{error} Delete it, and extract the features again.") from error
        held = {name: _map(source, name) for name in source.shapes}
        labels = np.array(held.pop(LABELS))
        return cls(
            layers={name: torch.from_numpy(held[name]) for name in head["layers"]},
            labels=labels,
            classes=tuple(head["classes"]),
            grids={k: (int(v[0]), int(v[1])) for k, v in head["grids"].items()},
            prefix=head["prefix"],
            how=head["how"],
            about=about_of(head.get("about", {})),
        )


def begin(path: Path, shape: FeatureTable) -> None:
    """A file of the right size with header and labels; its features are still zeros. `shape` may be on meta."""
    tensors = _tensors(shape)
    text = make_header(tensors, {HEAD: _describe(shape)})
    *before, labels = (t.numel() * t.dtype.itemsize for t in tensors.values())
    with open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + sum(before) + labels)
        file.seek(8 + len(text) + sum(before))
        file.write(bytes_of(tensors[LABELS]))


def header(path: str | Path, *, verify: bool = True) -> dict[str, Any]:
    """What a file of features says about itself."""
    return _open(Path(path), verify=verify)[1]


def _tensors(table: FeatureTable) -> dict[str, Tensor]:
    return {**table.layers, LABELS: torch.from_numpy(np.ascontiguousarray(table.labels))}


def _describe(table: FeatureTable) -> str:
    return to_json(
        {
            "version": 1,
            "layers": list(table.layers),
            "classes": table.classes,
            "grids": table.grids,
            "prefix": table.prefix,
            "how": table.how,
            "about": asdict(table.about),
        }
    )


def _open(path: Path, *, verify: bool) -> tuple[SafetensorsSource, dict[str, Any]]:
    """The file, and what it says about itself, checked."""
    try:
        source = SafetensorsSource(path, verify=verify)
        head = from_json(source.header[HEAD])
        match head:
            case {"layers": list(names), "classes": list(), "grids": dict(), "prefix": dict(), "how": dict()}:
                if {*names, LABELS} == source.shapes.keys() and all(t in TYPES for t in source.dtypes.values()):
                    about_of(head.get("about", {}))
                    return source, head
        raise ValueError("its header is damaged")
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, OSError) as error:
        reason = "no such header" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is not a file of features that Sightline wrote ({reason:.200}).") from error


def _map(source: SafetensorsSource, name: str) -> NDArray[Any]:
    """A tensor of the file as an array on disk, which torch may have without ever writing back."""
    shape, kind = source.shapes[name], TYPES[source.dtypes[name]]
    if 0 in shape:
        return np.zeros(shape, kind)  # an empty map is not allowed
    return np.memmap(source.path, kind, "c", source.start(name), shape)
