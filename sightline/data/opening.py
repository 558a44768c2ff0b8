"""Open images for a model: files, folders, patterns, PIL images, arrays and tensors."""

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from sightline.data.errors import BadImage, printable
from sightline.data.folder import find_images
from sightline.data.images import (
    SUFFIXES,
    EncodedImage,
    decode,
    from_pil,
    normalize,
    read_bytes,
    resize_and_crop,
    to_tensor,
)
from sightline.spec import ImageSpec


def image_files(where: str | os.PathLike[str]) -> list[str]:
    """The image files at a path: the file itself, those in a folder and its subfolders, or what a pattern matches."""
    text = os.fspath(where)
    if os.path.isdir(text):
        files = find_images(text)
        if not files:
            raise BadImage(f"{printable(text)} has no images ({', '.join(SUFFIXES[:5])} ...).")
        return files
    if os.path.lexists(text) or not glob.has_magic(text):
        return [text]  # if it does not exist, opening it reports that
    matches = [p for p in sorted(glob.glob(text, recursive=True)) if not os.path.isdir(p)]
    if not matches:
        raise BadImage(f"No file matches {printable(text)}.")
    return [p for p in matches if p.lower().endswith(SUFFIXES)] or matches


def open_images(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], spec: ImageSpec
) -> Float[Tensor, "b 3 y x"]:
    """One normalized batch for a model with this ImageSpec, from files, a folder with its subfolders, or a pattern such
    as "cats/*.jpg".

    >>> import tempfile; from PIL import Image
    >>> folder = tempfile.TemporaryDirectory()
    >>> Image.new("RGB", (40, 30), "red").save(f"{folder.name}/red.png")
    >>> sl.open_images(f"{folder.name}/*.png", sl.ImageSpec(size=(16, 16))).shape
    torch.Size([1, 3, 16, 16])
    >>> folder.cleanup()
    """
    return model_batch(image_files(paths) if isinstance(paths, str | os.PathLike) else list(paths), spec)


def model_batch(images: Sequence[Any], spec: ImageSpec) -> Tensor:
    """One normalized batch for a model. Floating-point tensors are taken as already preprocessed."""
    if not images:
        raise ValueError("No images to open: the list is empty.")
    first = images[0]
    if isinstance(first, Tensor) and first.is_floating_point():
        shapes = {tuple(p.shape) for p in images}
        if shapes != {(len(spec.mean), *spec.size)}:
            raise ValueError(
                f"Preprocessed images for this model are {(len(spec.mean), *spec.size)}; got {sorted(shapes)}. "
                "Give uint8 images, files or a Dataset to have them preprocessed."
            )
        batch = torch.stack(list(images))
        if not (torch.isfinite(batch.sum()) or torch.isfinite(batch).all()):  # a sum is finite only of finite values
            raise ValueError("The images contain NaN or infinite values.")
        return batch
    return normalize(to_tensor([resize_and_crop(open_image(p), spec) for p in images]), spec)


def open_image(image: Any) -> Image.Image:
    """One image of any of these types, as upright RGB."""
    match image:
        case Image.Image():
            return from_pil(image, printable(getattr(image, "filename", "")) or "The PIL image")
        case str() | os.PathLike():
            return decode(read_bytes(Path(image)))
        case EncodedImage():
            return decode(image)
        case Tensor() if image.dtype == torch.uint8 and image.ndim == 3 and image.shape[0] == 3:
            return open_image(image.permute(1, 2, 0).cpu().numpy())
        case np.ndarray() if image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
            return from_pil(Image.fromarray(np.ascontiguousarray(image)), "The image")
    what = f"{type(image).__name__} {tuple(getattr(image, 'shape', ()))} {getattr(image, 'dtype', '')}"
    raise ValueError(
        "An image is a file, a PIL image, a uint8 array (h, w, 3), a uint8 tensor (3, h, w) or a preprocessed float "
        f"tensor (3, h, w); got {what.strip()}."
    )
