"""An entry of the table of named datasets: facts, sources, storage."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sightline.data.datasets import Dataset
from sightline.data.named.fetch import Package, Remote


class Storage(Protocol):
    """How a named dataset is stored on disk."""

    def prepare(self, entry: "NamedDataset", raw: Path, folder: Path) -> bool:
        """Convert the published files in `raw` to what `open` reads from `folder`. False: some of them are missing."""

    @property
    def open(self) -> Callable[..., Dataset]:
        """(entry, folder, split, **options of its own) -> one split of the prepared dataset."""


@dataclass(frozen=True, kw_only=True)
class NamedDataset:
    """A dataset that can be opened by name. One without official files or a package cannot be downloaded; the user
    provides it, as `instructions` say."""

    name: str
    description: str
    splits: dict[str, int]  # images in each; the first is the default
    classes: tuple[str, ...] | int  # names, or their number
    storage: Storage
    official: tuple[Remote, ...] = ()
    package: Package | None = None
    keep_raw: bool = False  # the published files are themselves what is opened
    class_folders: bool = True  # a user's own copy, split/class/image, is opened directly
    instructions: str = field(default="", repr=False)

    @property
    def num_classes(self) -> int:
        return self.classes if isinstance(self.classes, int) else len(self.classes)
