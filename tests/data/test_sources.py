"""The smaller sources and tools: the hub, the progress bar, memory."""

import io
import tracemalloc
from types import SimpleNamespace

import numpy as np
from PIL import Image

import sightline as sl
from sightline import progress as bar
from sightline.data.named.hub import HubDataset


class Table(list):
    """What the `datasets` package gives, as far as it is used."""

    features = {"image": object(), "label": SimpleNamespace(names=["cat", "dog"])}  # noqa: RUF012

    def __getitem__(self, key):
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def test_a_hub_table_is_a_dataset(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (5, 4), (9, 0, 0)).save(file, "PNG")
    (tmp_path / "p.png").write_bytes(file.getvalue())
    rows = [
        {"bytes": file.getvalue(), "path": None},
        {"bytes": None, "path": str(tmp_path / "p.png")},
        Image.new("L", (5, 4)),
    ]
    d = HubDataset(
        Table({"image": image, "label": i % 2} for i, image in enumerate(rows)),
        image="image",
        label="label",
        name="hf:x",
    )
    assert d.classes == ("cat", "dog")
    assert [(pixels.shape, label) for pixels, label in d] == [((4, 5, 3), 0), ((4, 5, 3), 1), ((4, 5, 3), 0)]


def test_progress_speaks_only_of_what_takes_long(capsys, monkeypatch):
    assert list(bar.progress(range(5), "quick")) == list(range(5))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(bar, "LOG_EVERY", -1.0)
    assert list(bar.progress(range(3), "slow")) == [0, 1, 2]
    assert "slow: 0 of 3" in capsys.readouterr().err


def test_a_transfer_shows_its_bytes_on_a_terminal_only(capsys):
    with bar.byte_progress("file", total=10) as advance:
        advance(5)
    with bar.status("waiting"):
        pass
    assert capsys.readouterr().out == ""


def test_splits_of_names_and_folders(tmp_path, monkeypatch):
    for path in ("train/cat", "test/cat", "val"):
        (tmp_path / "mine" / path).mkdir(parents=True)
    assert sl.data.available_splits(tmp_path / "mine") == ("train", "test"), "an empty val has no classes"
    assert sl.data.available_splits("cifar10") == ("train", "test")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar10" / "val" / "cat").mkdir(parents=True)
    assert sl.data.available_splits("cifar10") == ("val",), "a folder of that name comes first, as when it is opened"
    assert sl.data.available_splits("nowhere.csv") == ()


class Endless(sl.Dataset):
    def __init__(self, n):
        self.name, self.classes, self.labels = "endless", ("a",), np.zeros(n, np.int64)

    def image(self, index):
        return np.zeros((4, 4, 3), np.uint8)

    def images(self, indices):
        return np.zeros((len(indices), 4, 4, 3), np.uint8)

    def where(self, index):
        return str(index)


def test_memory_does_not_grow_over_an_epoch():
    batches = iter(Endless(1_000_000).batches(sl.ImageSpec(size=(4, 4)), batch=2000, shuffle=True, device=None))
    for _ in range(20):
        next(batches)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    seen = sum(len(images) for images, _ in batches)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert seen == 960_000
    assert after - before < 200_000


def test_labels_may_be_a_list_and_a_manifest_may_say_class_index(tmp_path):
    images = np.zeros((3, 8, 8, 3), np.uint8)
    assert sl.data.Arrays(images, [0, 1, 0]).counts() == [2, 1]
    for i in range(3):
        Image.fromarray(images[i]).save(tmp_path / f"{i}.png")
    (tmp_path / "labels.csv").write_text("file,class_index\n0.png,14\n1.png,2\n2.png,14\n")
    assert sl.dataset(tmp_path / "labels.csv").classes == ("2", "14")


def test_splits_of_folders_and_what_they_are_paired_with(tmp_path):
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for kind in ("cat", "dog"):
            (tmp_path / split / kind).mkdir(parents=True)
            Image.fromarray(rng.integers(0, 255, (8, 9, 3), dtype=np.uint8)).save(tmp_path / split / kind / "1.png")
    assert sl.data.available_splits(tmp_path) == ("train", "val")
    assert sl.data.held_out_split(tmp_path) == "val"
    assert sl.data.available_splits(tmp_path / "train") == ()
    assert sl.data.held_out_split(tmp_path / "train") is None
    first, second = sl.data.dataset_pair(tmp_path)
    assert [d.where(0).split("/")[-3] for d in (first, second)] == ["train", "val"]
    assert sl.data.dataset_pair(tmp_path, split="val")[1] is None
    assert len(sl.data.dataset_pair(tmp_path, split="val", against=str(tmp_path / "train"))[1]) == 2
    facts = sl.data.describe_dataset(first)
    assert (facts.images, facts.classes, facts.per_class, facts.height, facts.width) == (
        2,
        ("cat", "dog"),
        (1, 1),
        8,
        9,
    )


def test_one_image_is_data_to_look_at(tmp_path):
    Image.new("RGB", (9, 7), "red").save(tmp_path / "cat.png")
    data = sl.dataset(tmp_path / "cat.png")
    assert (len(data), data.classes) == (1, ("cat",))
    assert sl.data.available_splits(tmp_path / "cat.png") == ()
