"""The images that the page offers: those of one folder, or a few photographs that ship with the package, and scenes
that are drawn on demand."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from sightline.data.datasets import Dataset
from sightline.data.errors import BadImage
from sightline.data.folder import find_images
from sightline.data.images import EncodedImage, decode, read_bytes, read_header
from sightline.data.source import dataset

SAMPLES = Path(__file__).with_name("samples")
SCENES = 6
SCENE_SIDE = 224  # pixels
MEGAPIXELS = 50
MEGABYTES = 20
SMALL = 72  # side of a thumbnail


@dataclass(frozen=True)
class Offered:
    """An image that can be picked by its number."""

    name: str
    path: str = ""  # empty: a scene
    scene: int = 0


@dataclass
class Gallery:
    """Images by number: no path comes from a browser, and no file outside of the folder is opened."""

    folder: str = ""
    offered: list[Offered] = field(init=False)

    def __post_init__(self) -> None:
        self.offered = [*self.files(), *(Offered(f"scene {i + 1}", scene=i) for i in range(SCENES))]

    def files(self) -> list[Offered]:
        if not self.folder:
            return [Offered(p.stem, path=str(p)) for p in sorted(SAMPLES.glob("*.jpg"))]
        if not os.path.isdir(self.folder):
            raise ValueError(f"{self.folder} is no folder; --images takes a folder of photographs.")
        inside = [p for p in find_images(self.folder) if Path(p).resolve().is_relative_to(self.root())]
        if not inside:
            raise ValueError(f"{self.folder} has no images; --images takes a folder of photographs.")
        return [Offered(os.path.relpath(p, self.folder), path=p) for p in sorted(inside)]

    def open(self, number: int) -> tuple[str, Image.Image]:
        """The name and the pixels of an image."""
        one = self.offered[number]
        if not one.path:
            return one.name, decode(self.scenes().image(one.scene))
        if not Path(one.path).resolve().is_relative_to(self.root()):  # it may have become a link
            raise BadImage(f"{one.name} is no longer in the folder.")
        return one.name, open_bytes(read_bytes(one.path))

    def root(self) -> Path:
        """The folder outside of which nothing is opened."""
        return Path(self.folder or SAMPLES).resolve()

    def python(self, number: int) -> str:
        """The same image in Python."""
        one = self.offered[number]
        scene = f'sl.dataset("scenes/objects", num={SCENES}, size={SCENE_SIDE}).image({one.scene})'
        return repr(one.path) if one.path else scene

    def thumbnail(self, number: int) -> Image.Image:
        """A small image."""
        image = self.open(number)[1]
        image.thumbnail((2 * SMALL, SMALL))
        return image

    def scenes(self) -> Dataset:
        """Scenes with objects whose class is their shape."""
        return dataset("scenes/objects", num=SCENES, size=SCENE_SIDE)


def open_upload(data: bytes) -> Image.Image:
    """An uploaded image, refused if it has too many bytes or pixels; nothing is written."""
    if len(data) > MEGABYTES * 1_000_000:
        raise BadImage(f"The image has {len(data) / 1e6:.0f} MB; at most {MEGABYTES} are read.")
    return open_bytes(EncodedImage(data, "The image"))


def open_bytes(raw: EncodedImage) -> Image.Image:
    """Decoded as everywhere else, after a look at its size."""
    width, height = read_header(raw).size
    if width * height > MEGAPIXELS * 1_000_000:
        raise BadImage(f"{raw.name} has {width} x {height} pixels; at most {MEGAPIXELS} million are read.")
    return decode(raw)
