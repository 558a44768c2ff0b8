"""Hygiene: each defect that is planted is found, named once, and nothing else is."""

import numpy as np
import pytest
from PIL import Image

import sightline as sl
from sightline.data.quality.duplicates import perceptual_hashes


def image(seed, size=64):
    low = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(low).resize((size, size), Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path):
    for split, start in (("train", 0), ("test", 500)):
        for k, kind in enumerate(("a", "b")):
            (tmp_path / split / kind).mkdir(parents=True)
            for i in range(30):
                image(start + 100 * k + i).save(tmp_path / split / kind / f"{i:02}.png")
    return tmp_path


def kinds(report):
    return {(f.kind, f.where.split("/")[-1]) for f in report.findings}


def both(folder):
    return sl.data.check(sl.Folder(folder, "train"), sl.Folder(folder, "test"))


def test_a_clean_folder_has_no_findings(folder):
    assert both(folder).findings == ()


def test_broken_and_odd_files(folder):
    a = folder / "train" / "a"
    (a / "broken.png").write_bytes(b"nothing")
    image(900).save(a / "cut.jpg")
    (a / "cut.jpg").write_bytes((a / "cut.jpg").read_bytes()[:-500])
    image(901).convert("CMYK").save(a / "cmyk.jpg")
    Image.fromarray(np.asarray(image(902).convert("L")).astype(np.uint16) * 257).save(a / "deep.png")
    image(903).convert("P").save(a / "palette.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    image(904).save(a / "turned.jpg", exif=exif)
    image(905).save(a / "moving.gif", save_all=True, append_images=[image(906)])
    image(907, 12).save(a / "tiny.png")
    (folder / "train" / "c").mkdir()
    want = {("unreadable", "broken.png"), ("truncated", "cut.jpg"), ("cmyk", "cmyk.jpg"), ("16-bit", "deep.png")}
    want |= {
        ("palette", "palette.png"),
        ("rotated", "turned.jpg"),
        ("animated", "moving.gif"),
        ("palette", "moving.gif"),
    }
    want |= {("tiny", "tiny.png"), ("empty class", "c")}
    assert {k for k in kinds(both(folder)) if k[0] != "label leak"} == want


def test_twins_within_and_between(folder):
    train, test = folder / "train", folder / "test"
    (train / "a" / "copy.png").write_bytes((train / "a" / "00.png").read_bytes())
    (train / "b" / "other.png").write_bytes((train / "a" / "05.png").read_bytes())
    (test / "b" / "leaked.png").write_bytes((train / "b" / "03.png").read_bytes())
    image(100 + 4).resize((50, 50)).save(test / "b" / "smaller.png")
    image(7).save(test / "a" / "again.jpg", quality=60)
    want = {("duplicate", "copy.png"), ("conflicting labels", "other.png"), ("duplicate across splits", "leaked.png")}
    want |= {("near duplicate across splits", name) for name in ("smaller.png", "again.jpg")}
    assert kinds(both(folder)) == want


def test_a_size_that_tells_the_label_is_a_leak(tmp_path):
    for k, kind in enumerate(("a", "b")):
        (tmp_path / kind).mkdir()
        for i in range(30):
            image(100 * k + i, 60 + k * (i % 3 != 0)).save(tmp_path / kind / f"{i}.png")
    report = sl.data.check(sl.Folder(tmp_path))
    assert report.counts() == {"label leak": 1}
    assert "size" in report.findings[0].detail


def test_flat_images_are_not_all_twins():
    levels = np.arange(40, dtype=np.uint8) * 6
    d = sl.data.Arrays(np.broadcast_to(levels[:, None, None], (40, 32, 32)).copy(), np.zeros(40, np.int64))
    assert sl.data.check(d).counts().get("near duplicate", 0) < 40
    assert not any(f.kind == "duplicate" for f in sl.data.check(d).findings)


def test_mutated_files_are_findings_never_a_crash(tmp_path):
    chance = np.random.default_rng(0)
    (tmp_path / "a").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 3
    for kind in ("gif", "tif", "png", "webp", "jpg", "bmp"):
        more = {"save_all": True, "append_images": [image(2, 24)]} if kind in ("gif", "tif", "png", "webp") else {}
        image(1, 24).save(tmp_path / f"seed.{kind}", **more, **({"exif": exif} if kind in ("jpg", "webp") else {}))
        data = (tmp_path / f"seed.{kind}").read_bytes()
        for i in range(60):
            spoilt = bytearray(data)
            for at in chance.integers(0, len(data) if i % 2 else min(len(data), 200), 6):
                spoilt[at] = chance.integers(256)
            (tmp_path / "a" / f"{i}.{kind}").write_bytes(bytes(spoilt))
    report = sl.data.check(sl.Folder(tmp_path / "a"))
    assert {"unreadable", "truncated"} <= set(report.counts())


def test_near_means_near():
    thumbs = np.stack([np.asarray(image(i, 32).convert("L")) for i in range(400)])
    prints = perceptual_hashes(thumbs)
    noisy = np.clip(thumbs + np.random.default_rng(0).normal(0, 3, thumbs.shape), 0, 255).astype(np.uint8)
    apart = [bin(int(a) ^ int(b)).count("1") for a, b in zip(prints, perceptual_hashes(noisy))]
    assert np.median(apart) <= 4
    assert np.mean([bin(int(a) ^ int(b)).count("1") for a, b in zip(prints, np.roll(prints, 1))]) > 20


def test_a_contact_sheet_is_drawn_bad_images_crossed_out(folder):
    (folder / "train" / "a" / "00.png").write_bytes(b"bad")
    report = sl.data.check(sl.Folder(folder, "train"), sheet=folder / "sheet.png")
    with Image.open(report.sheet) as sheet:
        assert sheet.size[0] == 10 * 100 + 4
    with pytest.raises(ValueError, match=r"\.png or \.jpg file; got .*sheet\.txt"):
        sl.data.check(sl.Folder(folder, "train"), sheet=folder / "sheet.txt")


def test_copies_of_one_image_cost_no_comparison_of_all_pairs(monkeypatch):
    from sightline.data.quality import duplicates

    compared, count = [], duplicates._bit_counts
    monkeypatch.setattr(duplicates, "_bit_counts", lambda words: compared.append(len(words)) or count(words))
    copies = np.repeat(np.random.default_rng(0).integers(0, 256, (1, 32, 32), dtype=np.uint8), 2000, axis=0)
    hashes = (duplicates.perceptual_hashes(copies), duplicates.halve(copies), np.zeros(2000, np.int64))
    pairs = list(duplicates.find_duplicates(hashes, hashes, near=8, same=True))
    assert [(p.first, p.second) for p in pairs] == [(0, i) for i in range(1, 2000)]
    assert sum(compared) < 2 * duplicates.CANDIDATES, "all pairs, in nine bands, are 36 million"


def test_no_image_stops_the_check(folder, monkeypatch):
    from sightline.data.quality import checks

    decode, calls = checks.decode_pixels, []

    def exhausted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError("no more")
        return decode(*arguments)

    monkeypatch.setattr(checks, "decode_pixels", exhausted)
    report = sl.data.check(sl.Folder(folder, "train"))
    assert len(calls) == report.images
    assert "MemoryError: no more" in [f.detail for f in report.findings]
