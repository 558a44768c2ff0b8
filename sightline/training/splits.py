"""Training, validation and test data of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.data.datasets import Dataset
from sightline.data.source import available_splits, dataset

FEW = 20  # validation images that decide little
SCENES, MOST_HELD_OUT = 10_000, 2_000  # images of synthetic scenes for training, and for validation or test


@dataclass(frozen=True, kw_only=True)
class DataSplit:
    """Training, validation and test data, and where the validation data comes from.

    >>> split = sl.training.split_data("scenes/shape", num=100, size=16)
    >>> len(split.train), len(split.val), len(split.test), split.rule
    (100, 100, 100, 'the split val')
    """

    train: Dataset
    val: Dataset | None
    test: Dataset | None
    rule: str

    def describe(self) -> str:
        """Which images are for what, in one line."""
        train = f"{len(self.train):,} images to train on"
        val = "no validation"
        if self.val is not None:
            drawn = "" if self.rule.startswith("the split") else ", stratified by class"
            few = "; too few to tell much, --val 0.3 takes more" if len(self.val) < FEW and drawn else ""
            val = f"validation: {self.rule} ({len(self.val):,} images{drawn}{few})".replace("(1 images", "(1 image")
        test = f"test: {len(self.test):,}" if self.test is not None else "no test (--split 0.8 keeps a fifth for one)"
        return f"{train}; {val}; {test}"


def split_data(
    data: str | Path,
    *,
    val: str | None = None,
    num: int | None = None,
    fraction: float | None = None,
    size: int | None = None,
    split: float | None = None,
) -> DataSplit:
    """Open a dataset for training, by name or by path, with validation and test data.

    `val` is the name of a split, a share of the training data such as "0.1", or "none". By default it is the split val;
    without one, a tenth of the training data is held out, or 2 % of 20,000 images and more. The split test, if there is
    one and it is not the validation data, is for the end. `num` and `size` are for synthetic scenes; `fraction` keeps
    a share of the training data. Data without splits has no test data, unless `split` says which share of the images is
    to train on: the others are the test, stratified by class.

    >>> split = sl.training.split_data("scenes/shape", val="0.25", num=100, size=16, fraction=0.5)
    >>> len(split.train), len(split.val), split.rule
    (38, 25, '25 % of the training data')
    """
    splits, options = available_splits(data), _scene_options(str(data), num, size)
    held_out_options = {**options, "num": min(MOST_HELD_OUT, options["num"])} if options else {}
    train = dataset(data, split="train" if "train" in splits else None, **options)
    test: Dataset | None = None
    if split is not None:
        train, test = _divided(data, train, splits, split)
    name = "val" if val is None and "val" in splits else val
    held_out: Dataset | None = None
    if name in splits:
        held_out, rule = dataset(data, split=name, **held_out_options), f"the split {name}"
    elif name == "none":
        rule = "none"
    else:
        share = _share(name, len(train))
        train, held_out = train.split(1 - share, seed=0)
        rule = f"{100 * share:g} % of the training data"
    if "test" in splits and name != "test":
        test = dataset(data, split="test", **held_out_options)
    return DataSplit(train=train if fraction is None else train.subset(fraction), val=held_out, test=test, rule=rule)


def _divided(data: str | Path, whole: Dataset, splits: tuple[str, ...], share: float) -> tuple[Dataset, Dataset]:
    """A share of the images to train on, and the others for the test."""
    if splits:
        raise ValueError(f"--split is for data without splits; {data} has {', '.join(splits)}.")
    if not 0 < share < 1:
        raise ValueError(
            f"--split is the share of the images to train on, between 0 and 1, such as 0.8; got {share:g}."
        )
    return whole.split(share, seed=0)


def _scene_options(data: str, num: int | None, size: int | None) -> dict[str, Any]:
    if data.startswith("scenes/"):
        return {"num": num or SCENES, "size": size or 32}
    if num is not None:
        raise ValueError("--num is for scenes; for other data give --fraction.")
    return {}


def _share(val: str | None, images: int) -> float:
    if val is None:
        return 0.1 if images < 20_000 else 0.02  # ViT, table 4: a tenth of pets, 2 % of CIFAR
    try:
        share = float(val)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError(f"--val is a split's name, a share between 0 and 1, or none; got {val!r}.")
    return share
