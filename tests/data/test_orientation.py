"""How a camera was held changes no path's pixels: what is stored turned is seen as if it were stored upright.

Every path is asked for what it shows of a file that is stored upright, and of the same image stored in one of EXIF's
eight ways; both must be the same, to the bit where the format loses nothing.
"""

import functools
import io
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

import sightline as sl
from sightline.data import images
from sightline.data.images import orient_pixels, oriented_size, stored_box
from sightline.data.named.hub import HubDataset
from sightline.observe.images import ImageSource
from sightline.observe.model import observe
from tests.data.test_sources import Table
from tests.evals.makers import random_model

TURNS = range(1, 9)
STORED = {  # how an upright image is stored under each orientation: the inverse of what EXIF says to do
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
SHAPES = {"square": (97, 97), "wide": (131, 83)}
FINE, COARSE = sl.ImageSpec(size=(64, 64), crop=0.9), sl.ImageSpec(size=(16, 16))  # COARSE: a JPEG is decoded smaller
LOSSLESS = ("png", "late.png", "raw.png", "webp", "tif")


def scene(shape):
    """Smooth, so that JPEG keeps it, and like none of its mirror images."""
    width, height = shape
    y, x = np.mgrid[:height, :width]
    red, green = 255 * x / width, 255 * y / height
    blue = 255 * np.exp(-((x - 0.3 * width) ** 2 + (y - 0.2 * height) ** 2) / (0.02 * width * height))
    return Image.fromarray(np.stack([red, green, blue], 2).astype(np.uint8))


def exif(turn):
    block = Image.Exif()
    block[0x0112] = turn
    return block


def chunk(kind, body):
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


@functools.cache
def stored(shape, turn, kind):
    """The bytes of a file that shows the scene if, and only if, its orientation is heeded."""
    image = scene(shape)
    image = image.transpose(STORED[turn]) if turn > 1 else image
    file = io.BytesIO()
    block = exif(turn).tobytes()
    match kind:
        case "jpg":
            image.save(file, "JPEG", quality=100, subsampling=0, exif=block)
        case "webp":
            image.save(file, "WEBP", lossless=True, exif=block)
        case "tif":
            image.save(file, "TIFF", exif=exif(turn))
        case "png":
            image.save(file, "PNG", exif=block)
        case _:
            image.save(file, "PNG")
    data = file.getvalue()
    if kind == "late.png":  # behind the pixels, as the format allows
        data = data[:-12] + chunk(b"eXIf", block[6:]) + data[-12:]
    if kind == "raw.png":  # as ImageMagick wrote it before PNG had a chunk for it
        text = f"\nexif\n{len(block):8}\n{block.hex()}\n".encode()
        data = data[:33] + chunk(b"tEXt", b"Raw profile type exif\0" + text) + data[33:]
    return data


@pytest.fixture
def folder_of(tmp_path):
    def make(shape, turn, kind):
        root = tmp_path / f"{turn}-{kind}" / "a"
        root.mkdir(parents=True, exist_ok=True)
        (root / f"1.{kind.split('.')[-1]}").write_bytes(stored(shape, turn, kind))
        return root.parent

    return make


def batch(dataset, spec, **settings):
    (pixels, _) = next(iter(dataset.batches(spec, device=None, **settings)))
    return pixels.numpy()


def trained(dataset, spec, **more):
    """Nine views of the one image, drawn anew for each."""
    return batch(dataset, spec, batch=9, train=sl.data.Augment(crop_area=(0.3, 1.0), **more))


def sharded(folder):
    out = folder.with_suffix(".shards")
    if not out.exists():
        sl.data.shard(sl.Folder(folder), out)
    return sl.data.Shards(out)


def hub(held):
    return HubDataset(Table([{"image": held, "label": 0}]), image="image", label="label", name="hf:x")


def file_of(folder):
    return next((folder / "a").iterdir())


def opened(folder):
    return Image.open(file_of(folder))


@functools.cache
def model():
    return random_model(classes=3)


def looked_at(data):
    (found,) = ImageSource(data=[data], batch=1).batches([observe(model())])
    return found.images[0].numpy()


VIEWS = {
    "item": lambda f: sl.Folder(f)[0][0],
    "evaluation": lambda f: batch(sl.Folder(f), FINE, batch=1),
    "evaluation, squashed": lambda f: batch(sl.Folder(f), sl.ImageSpec(size=(32, 48), fit="squash"), batch=1),
    "training": lambda f: trained(sl.Folder(f), FINE),
    "training, decoded smaller": lambda f: trained(sl.Folder(f), COARSE),
    "training, all of it": lambda f: batch(sl.Folder(f), FINE, batch=9, train=sl.data.Augment(crop_area=None)),
    "training, strongly": lambda f: trained(sl.Folder(f), FINE, randaugment=(2, 9), erase=0.5, shift=0.2),
    "windows": lambda f: batch(sl.Folder(f), FINE, batch=9, train=sl.data.Augment(crop_area=None, crop_side=0.8)),
    "open_images": lambda f: sl.open_images(f / "a", FINE).numpy(),
    "shards, evaluation": lambda f: batch(sharded(f), FINE, batch=1),
    "shards, training": lambda f: trained(sharded(f), FINE),
    "hub, bytes": lambda f: trained(hub({"bytes": file_of(f).read_bytes(), "path": None}), FINE),
    "hub, path": lambda f: trained(hub({"bytes": None, "path": str(file_of(f))}), FINE),
    "hub, opened": lambda f: trained(hub(opened(f)), FINE),
    "contact sheet": lambda f: np.asarray(sl.data.contact_sheet(sl.Folder(f), columns=1, rows=1)),
    "predictions": lambda f: sl.evals.logits(model(), sl.Folder(f)),
    "looking at a file": lambda f: looked_at(file_of(f)),
    "looking at what is opened": lambda f: looked_at(opened(f)),
}


def same(got, want, kind):
    got, want = got.astype(float), want.astype(float)
    assert got.shape == want.shape
    if kind in LOSSLESS:
        assert np.array_equal(got, want), kind
    else:  # encoded anew, and perhaps decoded at a part of its scale, where a box has only whole pixels
        assert np.abs(got - want).mean() < 0.02 * np.ptp(want), kind


@pytest.mark.parametrize("kind", ["jpg", "png"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("view", VIEWS)
def test_every_path_sees_the_image_upright(view, shape, kind, folder_of):
    want, *turned = (VIEWS[view](folder_of(SHAPES[shape], turn, kind)) for turn in TURNS)
    for got in turned:
        same(got, want, kind)


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("view", ["evaluation", "training", "hub, opened", "looking at what is opened"])
def test_every_format_has_its_orientation(view, kind, folder_of):
    for shape in SHAPES.values():
        want = VIEWS[view](folder_of(shape, 1, kind))
        for turn in TURNS[1:]:
            same(VIEWS[view](folder_of(shape, turn, kind)), want, kind)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("view", ["training", "training, decoded smaller"])
def test_a_jpeg_is_upright_without_simplejpeg_too(view, shape, folder_of, monkeypatch):
    want = VIEWS[view](folder_of(SHAPES[shape], 1, "jpg"))
    monkeypatch.setattr(images, "simplejpeg", None)
    for turn in TURNS:
        same(VIEWS[view](folder_of(SHAPES[shape], turn, "jpg")), want, "jpg")


@pytest.mark.parametrize("view", VIEWS)
def test_a_turn_that_is_not_heeded_would_be_seen(view, folder_of):
    """Otherwise the tests above could not fail."""
    want = VIEWS[view](folder_of(SHAPES["square"], 1, "png"))
    for turn in TURNS[1:]:
        folder = folder_of(SHAPES["square"], turn, "png")
        with Image.open(file_of(folder)) as image:
            image.load()
        image.save(file_of(folder), "PNG")  # the same pixels, and no orientation
        with pytest.raises(AssertionError):
            same(VIEWS[view](folder), want, "jpg")


@pytest.mark.parametrize("kind", ["jpg", *LOSSLESS])
@pytest.mark.parametrize("turn", TURNS[1:])
def test_check_knows_an_image_stored_otherwise(turn, kind, folder_of):
    folder = folder_of(SHAPES["wide"], turn, kind)
    (folder / "a" / f"0.{kind}").write_bytes(stored(SHAPES["wide"], 1, kind))
    counts = sl.data.check(sl.Folder(folder)).counts()
    assert counts.get("duplicate", 0) + counts.get("near duplicate", 0) == 1
    assert kind == "jpg" or counts["duplicate"] == 1
    assert counts.get("rotated", 0) == (kind != "tif")  # Pillow turns TIFF itself, before it can be told


@given(st.sampled_from(TURNS), st.integers(1, 9), st.integers(1, 9), st.data())
def test_cutting_then_turning_is_turning_then_cutting(turn, width, height, data):
    pixels = np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3)
    size = oriented_size((width, height), turn)
    left, upper = (data.draw(st.integers(0, side - 1)) for side in size)
    right, lower = (data.draw(st.integers(at + 1, side)) for at, side in zip((left, upper), size))
    x0, y0, x1, y1 = stored_box((left, upper, right, lower), size, turn)
    whole = orient_pixels(pixels, turn)
    assert whole.shape[:2] == size[::-1]
    assert np.array_equal(orient_pixels(pixels[y0:y1, x0:x1], turn), whole[upper:lower, left:right])


@pytest.mark.parametrize("turn", TURNS)
def test_turning_is_what_pillow_does(turn):
    image = scene((31, 17))
    image.getexif()[0x0112] = turn
    assert np.array_equal(orient_pixels(np.asarray(image), turn), np.asarray(ImageOps.exif_transpose(image)))


def test_a_broken_exif_block_spoils_no_image():
    good = stored((20, 10), 6, "jpg")
    for at in range(good.index(b"Exif"), good.index(b"Exif") + len(exif(6).tobytes())):
        data = bytearray(good)
        data[at] ^= 0xFF
        assert images.decode(images.EncodedImage(bytes(data), "x")).size in ((20, 10), (10, 20))
