"""Decoding survives anything and resizing does what models expect."""

import io
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

import sightline as sl
from sightline.data.collate import open_lazily
from sightline.data.images import EncodedImage, decode, decode_jpeg, read_header, resize_and_crop, resized_size

KINDS = ("JPEG", "PNG", "WEBP")
MUTANTS = 5_000


def photo(width=40, height=30, seed=0):
    y, x = np.mgrid[:height, :width]
    chance = np.random.default_rng(seed)
    waves = [127 + 80 * np.sin(x / (3 + c) + y / 5) + chance.normal(0, 12, x.shape) for c in range(3)]
    return Image.fromarray(np.clip(np.stack(waves, 2), 0, 255).astype(np.uint8))


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def mutants(kind, count, seed):
    """Bytes overwritten, cut out, doubled, swapped, cut short: in headers more often than elsewhere."""
    chance = np.random.default_rng(seed)
    seeds = [encoded(photo(), kind), encoded(photo().convert("L"), kind)]
    seeds += [encoded(photo(), "JPEG", progressive=True)] if kind == "JPEG" else []
    seeds += [encoded(photo().convert(m), "PNG") for m in ("P", "RGBA", "I;16")] if kind == "PNG" else []
    seeds += (
        [encoded(photo(), "WEBP", lossless=True, save_all=True, append_images=[photo(seed=1)])]
        if kind == "WEBP"
        else []
    )
    for number in range(count):
        data = bytearray(seeds[number % len(seeds)])
        for _ in range(int(chance.integers(1, 9))):
            reach = max(1, len(data) if chance.random() < 0.5 else min(64, len(data)))
            at, length = int(chance.integers(reach)), int(chance.integers(1, 24))
            match int(chance.integers(5)):
                case 0:
                    data[at : at + 1] = bytes([int(chance.integers(256))])
                case 1:
                    data[at : at + length] = bytes(chance.integers(0, 256, length, dtype=np.uint8))
                case 2:
                    del data[at : at + length]
                case 3:
                    data[at:at] = data[at : at + length] * 3
                case 4:
                    del data[max(8, at) :]
        yield bytes(data)


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files_give_images_or_our_error(kind):
    good, messages = 0, []
    for number, data in enumerate(mutants(kind, MUTANTS // 3 + 1, seed=KINDS.index(kind))):
        try:
            image = decode(EncodedImage(data, f"mutant {number}"))
        except sl.data.BadImage as error:
            messages.append((number, str(error)))
        else:
            assert image.mode == "RGB"
            good += 1
    assert all(f"mutant {number}" in text and text.isprintable() for number, text in messages)
    assert 0 < good < MUTANTS // 3, "some survive, some do not"


def test_the_fast_decoder_gives_the_same_pixels_or_leaves_it_to_pillow():
    same = 0
    for number, data in enumerate(
        [encoded(photo(61, 43), "JPEG", quality=q) for q in (30, 90, 100)] + list(mutants("JPEG", 600, seed=9))
    ):
        image = EncodedImage(data, str(number))
        try:
            fast = decode_jpeg(image, read_header(image))
        except sl.data.BadImage:
            continue
        if fast is not None:
            assert np.array_equal(fast, np.asarray(decode(image)))
            same += 1
    assert same > 20


def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path):
    Image.new("1", (12_000, 9_000)).save(tmp_path / "bomb.png", compress_level=1)
    assert os.path.getsize(tmp_path / "bomb.png") < 100_000
    with pytest.raises(sl.data.BadImage, match="12000 x 9000"):
        sl.open_images(tmp_path / "bomb.png", sl.ImageSpec(size=(8, 8)))


def test_every_mode_becomes_rgb_by_a_rule():
    gray = Image.new("L", (4, 4), 100)
    red = Image.new("RGB", (4, 4), (200, 0, 0))
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    cases = {
        "gray": (encoded(gray, "PNG"), (100, 100, 100)),
        "transparent is white": (encoded(clear, "PNG"), (255, 255, 255)),
        "palette": (encoded(red.convert("P"), "GIF"), (200, 0, 0)),
        "16-bit": (encoded(Image.fromarray(np.full((4, 4), 257 * 77, np.uint16)), "PNG"), (77, 77, 77)),
        "cmyk": (encoded(red.convert("CMYK"), "TIFF"), (200, 0, 0)),
        "bilevel": (encoded(Image.new("1", (4, 4), 1), "PNG"), (255, 255, 255)),
        "first frame": (encoded(red, "GIF", save_all=True, append_images=[clear.convert("RGB")]), (200, 0, 0)),
        "first frame of png": (encoded(red, "PNG", save_all=True, append_images=[clear.convert("RGB")]), (200, 0, 0)),
    }
    for name, (data, want) in cases.items():
        got = np.asarray(decode(EncodedImage(data, name)))[1, 1]
        assert np.abs(got.astype(int) - want).max() <= 6, (name, got)


@pytest.mark.parametrize("turn", range(1, 9))
def test_exif_rotation_is_undone(turn):
    image = photo(24, 16)
    exif = Image.Exif()
    exif[0x0112] = turn
    data = encoded(image, "JPEG", exif=exif, quality=100, subsampling=0)
    got = decode(EncodedImage(data, "turned"))
    want = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert np.array_equal(np.asarray(got), np.asarray(want))


@given(st.integers(9, 90), st.integers(9, 90), st.sampled_from([1.0, 0.95, 0.9, 0.875, 0.5]))
def test_evaluation_is_resize_the_short_side_then_cut_the_center(width, height, crop):
    image = photo(width, height)
    short = int(16 / crop)
    # as torchvision's Resize and CenterCrop compute it
    whole = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    left, upper = round((whole[0] - 16) / 2), round((whole[1] - 16) / 2)
    want = image.resize(whole, Image.Resampling.BICUBIC).crop((left, upper, left + 16, upper + 16))
    assert np.array_equal(resize_and_crop(image, sl.ImageSpec(size=(16, 16), crop=crop)), np.asarray(want))


@given(st.integers(9, 90), st.integers(9, 90), st.sampled_from([1.0, 0.9]), st.sampled_from(["crop", "squash"]))
def test_every_shape_fits_every_spec(width, height, crop, how):
    spec = sl.ImageSpec(size=(8, 24), crop=crop, fit=how)
    assert resize_and_crop(photo(width, height), spec).shape == (8, 24, 3)
    whole = resized_size((width, height), spec)
    assert whole[0] >= 24
    assert whole[1] >= 8


def test_squash_and_crop_differ_as_they_should():
    image = photo(60, 30)
    squash = resize_and_crop(image, sl.ImageSpec(size=(20, 20), fit="squash"))
    assert np.array_equal(squash, np.asarray(image.resize((20, 20), Image.Resampling.BICUBIC)))
    crop = resize_and_crop(image, sl.ImageSpec(size=(30, 30)))
    assert np.array_equal(crop, np.asarray(image)[:, 15:45])


def test_normalize_is_the_formula():
    spec = sl.ImageSpec(size=(4, 4), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    x = torch.arange(96, dtype=torch.uint8).reshape(2, 3, 4, 4)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (spec.mean, spec.std))
    torch.testing.assert_close(sl.data.normalize(x, spec), (x / 255 - mean) / std, rtol=1e-5, atol=1e-6)


def test_open_images_takes_a_path_a_pattern_a_folder_and_a_list(tmp_path):
    for i in range(3):
        photo(seed=i).save(tmp_path / f"{i}.png")
    (tmp_path / "notes.txt").write_text("not an image")
    spec = sl.ImageSpec(size=(8, 8))
    assert len(sl.open_images(tmp_path / "1.png", spec)) == 1
    assert len(sl.open_images(str(tmp_path / "*.png"), spec)) == 3
    assert len(sl.open_images(tmp_path, spec)) == 3
    assert len(sl.open_images([tmp_path / "0.png", str(tmp_path / "2.png")], spec)) == 2
    with pytest.raises(ValueError, match="No file matches"):
        sl.open_images(str(tmp_path / "*.gif"), spec)
    (tmp_path / "below").mkdir()
    (tmp_path / "0.png").rename(tmp_path / "below" / "0.PNG")
    assert len(sl.open_images(tmp_path, spec)) == 3
    assert len(sl.open_images(str(tmp_path / "**"), spec)) == 3


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(sl.data.BadImage, match="not a regular file"):
        sl.open_images(tmp_path / "pipe.jpg", sl.ImageSpec(size=(8, 8)))


def test_a_jpeg_is_decoded_small_only_where_pixels_are_to_spare():
    data = encoded(photo(320, 240), "JPEG")
    box = (0, 0, 320, 240)
    for size, want in (((60, 60), (60, 80)), ((121, 121), (240, 320))):
        header = open_lazily(EncodedImage(data, "x"))
        assert header.crop(box, size).shape[:2] == want
    assert decode(EncodedImage(data, "x")).size == (320, 240)
