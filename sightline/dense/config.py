"""What a dense head is: its kind, its classes, and the sizes that make it."""

from dataclasses import dataclass
from typing import Literal

from sightline.data.targets.target import BACKGROUND

Task = Literal["segment", "detect"]
LARGEST = {"queries": 10_000, "width": 8_192, "blocks": 256, "mask_stride": 1_024}  # a file may say anything
HeadKind = Literal["linear", "layers", "queries"]


@dataclass(frozen=True, kw_only=True)
class DenseConfig:
    """A head for dense tasks. Every kind segments; objects are detected by queries only.

    >>> sl.dense.DenseConfig(task="segment", kind="linear", classes=("cat",)).names
    ('background', 'cat')
    >>> sl.dense.DenseConfig(task="detect", kind="linear", classes=("cat",))
    Traceback (most recent call last):
        ...
    ValueError: A linear head gives each pixel a class and tells no objects apart: task=detect needs --set head=queries.
    """

    task: Task
    kind: HeadKind
    classes: tuple[str, ...]  # of objects, without the background
    queries: int = 50
    width: int = 128  # of the decoder that a CNN gets; a ViT's queries are as wide as its tokens
    blocks: int = 2  # through which the queries run: the last ones of a ViT, new ones after a CNN
    mask_stride: int = 4  # pixels per cell of the masks that queries predict

    def __post_init__(self) -> None:
        if self.task == "detect" and self.kind != "queries":
            raise ValueError(
                f"A {self.kind} head gives each pixel a class and tells no objects apart: task=detect needs "
                "--set head=queries."
            )
        if not self.classes:
            raise ValueError("A dense head needs at least one class of objects.")
        for name, most in LARGEST.items():
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name}={getattr(self, name)}: expected 1 to {most:,}.")
        if self.width % 32:
            raise ValueError(f"The width of the decoder is a multiple of 32; got {self.width}.")

    @property
    def names(self) -> tuple[str, ...]:
        """What is predicted: objects, and in segmentation the background too."""
        return (BACKGROUND, *self.classes) if self.task == "segment" else self.classes
