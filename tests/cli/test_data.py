"""`sightline data`, as it is typed."""

import json

import pytest
from PIL import Image

from sightline.cli import main


def run(capsys, *words, code=0):
    if code:
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == code
    else:
        main(words)
    return capsys.readouterr()


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "test"):
        for k, kind in enumerate(("cat", "dog")):
            (tmp_path / split / kind).mkdir(parents=True)
            for i in range(3):
                color = (40 * i, 90 * k, 250 if split == "test" else 0)
                image = Image.new("RGB", (40, 30), color)
                image.putpixel((5 * i, 7 + 9 * k), (255, 255, 255))
                image.save(tmp_path / split / kind / f"{i}.png")
    return tmp_path


def test_list(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_DATA", str(tmp_path))
    rows = json.loads(run(capsys, "data", "list", "--json").out)
    assert {"cifar10", "imagenet-real", "dsprites", "scenes/objects"} <= {r["name"] for r in rows}
    monkeypatch.setenv("COLUMNS", "80")
    out = run(capsys, "data", "list").out
    assert "cifar10" in out
    assert len(out.splitlines()) <= 3.5 * len(rows)  # "about" has room: three lines or so, not six


def test_a_folder_without_findings_is_one_line(folder, capsys):
    words = ("data", "check", str(folder / "train"))
    assert json.loads(run(capsys, *words, "--json").out)["findings"] == []
    assert run(capsys, *words).out.splitlines()[-1].endswith("6 images, no findings")


def test_two_splits_say_what_to_type(folder, capsys):
    assert "--split test" in run(capsys, "data", "info", str(folder), code=2).err


def test_info(capsys, folder):
    facts = json.loads(run(capsys, "data", "info", str(folder), "--split", "train", "--json").out)
    assert (facts["images"], facts["class names"], facts["per class"]) == (6, ["cat", "dog"], [3, 3])
    assert "scenes/count" in run(capsys, "data", "info", "scenes/count").out


def test_check_compares_the_splits_and_says_so_by_its_exit_code(capsys, folder):
    (folder / "test" / "cat" / "leak.png").write_bytes((folder / "train" / "cat" / "1.png").read_bytes())
    out = run(capsys, "data", "check", str(folder), "--sheet", str(folder / "s.png"), "--json").out
    report = json.loads(out)
    assert report["counts"]["duplicate across splits"] >= 1
    assert (folder / "s.png").exists()
    assert "leak.png" in run(capsys, "data", "check", str(folder), "--strict", code=1).out


def test_shard_and_read_back(capsys, folder, tmp_path):
    out = str(tmp_path / "shards")
    facts = json.loads(
        run(capsys, "data", "shard", str(folder), out, "--split", "train", "--per-shard", "4", "--json").out
    )
    assert (facts["shards"], facts["images"]) == (2, 6)
    assert json.loads(run(capsys, "data", "info", out, "--json").out)["class names"] == ["cat", "dog"]


@pytest.mark.parametrize(
    "words",
    [
        ("info", "no-such-folder"),
        ("get", "no-such-name"),
        ("get", "imagenet"),
        ("shard", "scenes/none", "x"),
        ("check", "/dev/null"),
    ],
)
def test_mistakes_are_one_sentence(capsys, monkeypatch, tmp_path, words):
    monkeypatch.setenv("SIGHTLINE_DATA", str(tmp_path))
    message = run(capsys, "data", *words, code=2).err
    assert message.startswith("sightline: ")
    assert message.count("\n") == 1
