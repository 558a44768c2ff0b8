"""Second test sets of ImageNet's classes (ImageNet-V2, -Sketch, -R, -A, ObjectNet): which folder is which class.

The lists of ImageNet-R, -A and ObjectNet are in second_sets.json next to this file, with their sources.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data.datasets import Dataset
from sightline.data.draws import Ints
from sightline.data.images import Pixels, decode
from sightline.data.named.imagenet import imagenet_classes
from sightline.fingerprints import FileStamp
from sightline.untrusted import listed, printable, read_json

BORDER = 2  # pixels: ObjectNet's images have a thin red border, by which training on them is noticed


@dataclass(frozen=True, kw_only=True)
class ClassMap:
    """Which classes of ImageNet each folder of a test set stands for; folders that are not listed have none.

    >>> sl.data.class_maps()["objectnet"].folders["alarm_clock"]
    (409, 530)
    """

    name: str
    source: str
    folders: dict[str, tuple[int, ...]]  # numbers of ImageNet's 1,000 classes


@cache
def class_maps() -> dict[str, ClassMap]:
    """The class maps by name: imagenet-v2, imagenet-sketch, imagenet-r, imagenet-a, objectnet.

    >>> {name: len(m.folders) for name, m in sl.data.class_maps().items()}
    {'imagenet-v2': 1000, 'imagenet-sketch': 1000, 'imagenet-r': 200, 'imagenet-a': 200, 'objectnet': 113}
    """
    number = {wnid: i for i, wnid in enumerate(imagenet_classes())}
    numbers: dict[str, tuple[int, ...]] = {str(i): (i,) for i in range(len(number))}
    wnids: dict[str, tuple[int, ...]] = {wnid: (i,) for wnid, i in number.items()}
    text = resources.files("sightline.data.named").joinpath("second_sets.json").read_text(encoding="utf-8")
    held = json.loads(text)
    found = {
        "imagenet-v2": ClassMap(name="imagenet-v2", source="Recht et al. 2019: a folder per number", folders=numbers),
        "imagenet-sketch": ClassMap(name="imagenet-sketch", source="Wang et al. 2019: a folder per id", folders=wnids),
    }
    for name in ("imagenet-r", "imagenet-a", "objectnet"):
        folders = held[name].get("folders") or {wnid: [wnid] for wnid in held[name]["wnids"]}
        mapped = {folder: tuple(number[w] for w in ids) for folder, ids in folders.items()}
        found[name] = ClassMap(name=name, source=held[name]["source"], folders=mapped)
    return found


def find_class_map(classes: Sequence[str], kind: str | None = None) -> ClassMap | None:
    """The class map of a test set with these class folders, or None if they are none of ImageNet's.

    `kind` names it; otherwise the folders must be all of the map's. Part of a set of ids or numbers counts as ImageNet
    with all of its classes: which list it is part of cannot be known.

    >>> sl.data.find_class_map(["n01443537", "n02084071x"]) is None
    True
    """
    known, given = class_maps(), set(classes)
    if kind is not None:
        if kind not in known:
            raise ValueError(f"There is no class map {kind!r}; there are {', '.join(known)}.")
        if not given & set(known[kind].folders):
            raise ValueError(f"No folder of {kind} is among the classes {listed(classes)}: is this {kind}?")
        return known[kind]
    for name in ("imagenet-a", "imagenet-r"):
        if given == set(known[name].folders):
            return known[name]
    if set(known["objectnet"].folders) <= given:
        return known["objectnet"]
    return next((known[n] for n in ("imagenet-v2", "imagenet-sketch") if given <= set(known[n].folders)), None)


def read_class_map(path: str | Path) -> ClassMap:
    """A class map of your own: a JSON file of folder names to WordNet ids or class numbers of ImageNet, one or several.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "map.json").write_text('{"fish": ["n01440764", 1]}')
    ...     sl.data.read_class_map(folder + "/map.json").folders
    {'fish': (0, 1)}
    """
    number = {wnid: i for i, wnid in enumerate(imagenet_classes())} | {i: i for i in range(1000)}
    try:
        held: Any = read_json(path)
        given = {str(name): list(v) if isinstance(v, list) else [v] for name, v in held.items()}
        folders = {name: tuple(number[one] for one in ids) for name, ids in given.items()}
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{printable(path)} is no class map ({error!s:.100}): expected JSON such as "
            '{"alarm_clock": ["n02708093", "n03196217"]}, with WordNet ids or numbers of ImageNet-1k.'
        ) from error
    if not folders or not all(folders.values()):
        raise ValueError(f"{printable(path)} maps no folder, or one of them to nothing.")
    return ClassMap(name=Path(path).stem, source=printable(path), folders=folders)


class WithoutBorder(Dataset):
    """Images without a border of some pixels."""

    def __init__(self, parent: Dataset, border: int = BORDER):
        self.parent, self.border = parent, border
        self.name, self.classes, self.labels = parent.name, parent.classes, parent.labels

    def image(self, index: int) -> Pixels:
        pixels = np.asarray(decode(self.parent.image(index)))
        b = self.border
        return pixels[b:-b, b:-b] if min(pixels.shape[:2]) > 2 * b else pixels

    def where(self, index: int) -> str:
        return self.parent.where(index)

    def stamps(self, indices: Ints) -> list[FileStamp] | None:
        return self.parent.stamps(indices)
