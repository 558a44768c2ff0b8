"""Datasets of the Hugging Face hub, with its `datasets` package (an extra: pip install "sightline[hub]")."""

from typing import Any

import numpy as np

from sightline.data.datasets import Dataset
from sightline.data.errors import BadImage, printable
from sightline.data.images import EncodedImage, Pixels, RawImage, from_pil, read_bytes


class HubDataset(Dataset):
    """A table with an image column and a class column, as the `datasets` package opens it."""

    def __init__(self, table: Any, *, image: str, label: str, name: str):
        self.table, self.column, self.name = table, image, name
        feature = table.features[label]
        values = np.asarray(table[label][:])
        if hasattr(feature, "names"):
            self.classes = tuple(map(str, feature.names))
            self.labels = values.astype(np.int64)
        else:
            self.classes, self.labels = _encode_labels(values)

    def image(self, index: int) -> RawImage:
        value = self.table[index][self.column]
        if isinstance(value, dict) and value.get("bytes"):
            return EncodedImage(value["bytes"], self.where(index))
        if isinstance(value, dict) and value.get("path"):
            return read_bytes(value["path"])
        if hasattr(value, "convert"):
            pixels: Pixels = np.asarray(from_pil(value, self.where(index)))
            return pixels
        raise BadImage(f"{self.where(index)} has no image.")

    def where(self, index: int) -> str:
        return f"{self.name}[{index}]"


def _encode_labels(values: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    names, numbers = np.unique(values, return_inverse=True)
    return tuple(map(str, names)), numbers.astype(np.int64)


def open_hub(name: str, split: str, *, image: str = "", label: str = "", **settings: Any) -> HubDataset:
    """Open a hub dataset; columns that are not given are guessed by their names."""
    try:
        import datasets
    except ImportError as error:
        raise ValueError(f'hf:{printable(name)} needs the datasets package: pip install "sightline[hub]".') from error
    try:
        table = datasets.load_dataset(name, split=split, **settings)
    except Exception as error:  # hub, network and disk fail in many ways
        raise ValueError(
            f"hf:{printable(name)} could not be opened ({str(error).splitlines()[0] if str(error) else error!r})."
        ) from error
    image = image or _column(table, ("image", "img", "picture"), "image")
    label = label or _column(table, ("label", "labels", "fine_label", "class"), "label")
    return HubDataset(
        table.cast_column(image, datasets.Image(decode=False)), image=image, label=label, name=f"hf:{name}"
    )


def _column(table: Any, names: tuple[str, ...], what: str) -> str:
    column = next((n for n in names if n in table.features), None)
    if column is None:
        raise ValueError(f"Which column is the {what}? Give {what}=..., one of {', '.join(table.features)}.")
    return column
