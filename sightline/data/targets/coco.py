"""COCO's annotation files: images, categories, and objects as polygons or run lengths."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data.errors import BadImage, printable
from sightline.data.folder import ImageFiles, is_inside
from sightline.data.images import MAX_PIXELS
from sightline.data.targets.rle import decode_segmentation
from sightline.data.targets.target import Target, TargetSource, check_masks, check_object_classes
from sightline.untrusted import open_regular, parse_json

MAX_BYTES = 2**30  # of an annotation file; COCO's largest has 0.45 GB
PREFIX = "instances_"  # annotations/instances_train2017.json


class Coco(ImageFiles, TargetSource):
    """Images with objects from a COCO annotation file (instances: polygons, run lengths, crowds).

    The images are in `images`; by default in the folder of the file, or, beside the folder `annotations`, in the folder
    that the file is named after (instances_val2017.json: val2017). An image's labels are the categories in it.

    >>> import json, tempfile, pathlib
    >>> from PIL import Image
    >>> home = pathlib.Path(tempfile.mkdtemp())
    >>> Image.new("RGB", (8, 6)).save(home / "a.png")
    >>> square = {"image_id": 3, "category_id": 18, "iscrowd": 0, "segmentation": [[1, 1, 5, 1, 5, 4, 1, 4]]}
    >>> about = {"images": [{"id": 3, "file_name": "a.png", "width": 8, "height": 6}],
    ...          "categories": [{"id": 18, "name": "dog"}], "annotations": [square]}
    >>> _ = (home / "instances.json").write_text(json.dumps(about))
    >>> data = sl.data.Coco(home / "instances.json")
    >>> data.object_classes, data.target(0).boxes.tolist()
    (('dog',), [[1, 1, 5, 4]])
    """

    def __init__(self, path: str | Path, *, images: str | Path | None = None):
        path = Path(path)
        text, held = _read(path)
        where = printable(path)
        rows = _rows(held, "images", {"id": int, "file_name": str, "width": int, "height": int}, where)
        categories = sorted(_rows(held, "categories", {"id": int, "name": str}, where), key=lambda c: c["id"])
        known = {"image_id": int, "category_id": int}
        objects = _rows(held, "annotations", known, where, empty=True)
        self.name = where
        self.home = os.path.realpath(images if images is not None else _image_folder(path))
        self.paths = [_inside(self.home, row["file_name"], where) for row in rows]
        self.sizes = [_size(row, where) for row in rows]
        self.object_classes = check_object_classes([printable(c["name"]) for c in categories], where)
        self.classes = self.object_classes
        self.numbers = _numbered(categories, "category", where)
        self.objects: dict[int, list[dict[str, Any]]] = defaultdict(list)
        index = _numbered(rows, "image", where)
        self.labels = np.zeros((len(rows), len(categories)), np.bool_)
        for number, one in enumerate(objects):
            if one["image_id"] not in index or one["category_id"] not in self.numbers:
                raise ValueError(f"{where}: annotation {number + 1} is of an image or a category that is not listed.")
            self.objects[index[one["image_id"]]].append(one)
            self.labels[index[one["image_id"]], self.numbers[one["category_id"]]] = True
        self.digest = hashlib.sha256(text).hexdigest()

    def target_key(self) -> str:
        return self.digest

    def target(self, index: int) -> Target:
        size, held = self.sizes[index], self.objects.get(index, [])
        check_masks(len(held), size, self.where(index))
        masks = np.zeros((len(held), *size), np.bool_)
        for mask, one in zip(masks, held):
            try:
                mask[...] = decode_segmentation(one.get("segmentation"), size)
            except ValueError as error:
                number = printable(str(one.get("id", "without an id")))
                raise BadImage(f"{self.name}: annotation {number} of {self.where(index)}: {error}.") from error
        areas = [float(a) if isinstance(a := one.get("area"), int | float) else float(m.sum())
                 for one, m in zip(held, masks)]  # fmt: skip
        return Target(
            classes=np.array([1 + self.numbers[one["category_id"]] for one in held], np.int64),
            masks=masks,
            crowd=np.array([one.get("iscrowd") in (1, True) for one in held], np.bool_),
            areas=np.array(areas, np.float64),
        )


def _read(path: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        with open_regular(path) as file:
            if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
                raise ValueError(f"it has {size:,} bytes; at most {MAX_BYTES:,} are read")
            text = file.read()
        held = parse_json(text)
    except FileNotFoundError:
        raise ValueError(f"There is no file {printable(path)}.") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{printable(path)} is not a readable annotation file ({error!s:.200}).") from error
    if not isinstance(held, dict) or not {"images", "annotations", "categories"} <= held.keys():
        raise ValueError(
            f"{printable(path)} is not COCO's instances: expected a JSON object of images, annotations and categories."
        )
    return text, held


def _rows(
    held: dict[str, Any], key: str, fields: Mapping[str, type], where: str, *, empty: bool = False
) -> list[dict[str, Any]]:
    rows = held[key]
    if not isinstance(rows, list) or not (rows or empty):
        raise ValueError(f"{where} lists no {key}.")
    for number, row in enumerate(rows):
        wrong = [n for n, kind in fields.items() if not isinstance(row, dict) or type(row.get(n)) is not kind]
        if wrong:
            raise ValueError(
                f"{where}: entry {number + 1} of {key} has no {wrong[0]} of type {fields[wrong[0]].__name__}."
            )
    return rows


def _numbered(rows: list[dict[str, Any]], what: str, where: str) -> dict[int, int]:
    numbers = {row["id"]: i for i, row in enumerate(rows)}
    if len(numbers) < len(rows):
        raise ValueError(f"{where} lists two entries of one {what} id.")
    return numbers


def _size(row: dict[str, Any], where: str) -> tuple[int, int]:
    """Height and width, if an image may have them."""
    size = row["height"], row["width"]
    if min(size) < 1 or size[0] * size[1] > MAX_PIXELS:
        raise ValueError(
            f"{where} says that {printable(row['file_name'])} has {size[1]} x {size[0]} pixels; expected 1 to "
            f"{MAX_PIXELS:,}."
        )
    return size


def _inside(home: str, name: str, where: str) -> str:
    path = os.path.join(home, name)
    if "\0" in name or not is_inside(path, home):
        raise ValueError(
            f"{where} lists {printable(name.replace(chr(0), ''))}, outside {printable(home)}; give images= to allow it."
        )
    return path


def _image_folder(path: Path) -> Path:
    """Where the images of an annotation file are by COCO's own layout."""
    if path.parent.name == "annotations":
        named = path.parent.parent / path.stem.removeprefix(PREFIX)
        places = [named, named / "images", path.parent.parent / "images", path.parent.parent]
    else:
        places = [path.parent / "images", path.parent]
    return next((p for p in places if p.is_dir()), path.parent)


def annotation_files(folder: str | Path) -> dict[str, Path]:
    """The annotation files of a folder in COCO's layout by split: train, val, test; empty if it has none."""
    found: dict[str, Path] = {}
    for path in sorted((Path(folder) / "annotations").glob(f"{PREFIX}*.json")):
        stem = path.stem.removeprefix(PREFIX)
        split = next((s for s in ("train", "val", "test") if stem.startswith(s)), None)
        if split:
            found.setdefault(split, path)
    return found
