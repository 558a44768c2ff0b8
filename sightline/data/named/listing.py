"""Datasets that need only a name: those of the table, and the scenes."""

from dataclasses import dataclass

from sightline.data.named.store import is_prepared
from sightline.data.named.table import NAMED_DATASETS
from sightline.data.scenes.tasks import TASKS


@dataclass(frozen=True, kw_only=True)
class DatasetListing:
    """A line of `sightline data list`.

    >>> sl.data.list_datasets()[0].splits
    {'train': 50000, 'test': 10000}
    """

    name: str
    classes: int | None  # None: any number
    splits: dict[str, int | None]  # images in each split; None: any number
    here: bool  # whether it can be opened without a download
    about: str

    @property
    def images(self) -> int | None:
        """Images in all splits together."""
        counts = [n for n in self.splits.values() if n is not None]
        return sum(counts) if counts else None


def list_datasets() -> list[DatasetListing]:
    """The datasets that have a name, and whether they are on this machine.

    >>> [d.name for d in sl.data.list_datasets()][:2]
    ['cifar10', 'cifar100']
    """
    named = [
        DatasetListing(
            name=k.name, classes=k.num_classes, splits={**k.splits}, here=is_prepared(k.name), about=k.description
        )
        for k in NAMED_DATASETS.values()
    ]
    drawn = [
        DatasetListing(
            name=f"scenes/{name}",
            classes=len(task.classes) or None,
            splits={"train": None, "val": None, "test": None},
            here=True,
            about=task.about,
        )
        for name, task in TASKS.items()
    ]
    return named + drawn
