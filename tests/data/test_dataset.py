"""Parts of a dataset are seeded, nested and balanced; files are found, refused or named, never a crash."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import sightline as sl


def arrays(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    return sl.data.Arrays(np.zeros((len(labels), 1, 1), np.uint8), labels, classes=[str(i) for i in range(len(counts))])


def rows(part):
    return set(part.origins()[1].tolist())


sizes = st.lists(st.integers(10, 40), min_size=2, max_size=6)


@given(sizes, st.integers(0, 5))
def test_shots_are_nested_and_exact(counts, seed):
    d = arrays(counts)
    one, five, ten = (d.few_shot(n, seed=seed) for n in (1, 5, 10))
    assert rows(one) < rows(five) < rows(ten)
    assert five.counts() == [5] * len(counts)
    assert rows(d.few_shot(5, seed=seed)) == rows(five)
    assert rows(d.subset(per_class=5, seed=seed)) == rows(five)


@given(sizes, st.integers(0, 5))
def test_fractions_are_nested_and_balanced(counts, seed):
    d = arrays(counts)
    parts = [d.subset(f, seed=seed) for f in (0.1, 0.3, 1.0)]
    assert rows(parts[0]) <= rows(parts[1]) <= rows(parts[2])
    assert len(parts[1]) == max(1, round(0.3 * len(d)))
    assert all(abs(n - 0.3 * c) <= 1.5 for n, c in zip(parts[1].counts(), counts))


@given(sizes, st.floats(0.1, 0.9), st.integers(0, 5))
def test_a_split_shares_nothing_and_loses_nothing(counts, fraction, seed):
    d = arrays(counts)
    train, val = d.split(fraction, seed=seed)
    assert rows(train) | rows(val) == set(range(len(d)))
    assert not rows(train) & rows(val)
    assert all(abs(n - fraction * c) <= 1.5 for n, c in zip(train.counts(), counts))


@given(st.integers(1, 200), st.integers(0, 3), st.data())
def test_samples_are_nested_without_repeats(n, seed, data):
    d = arrays([n])
    k = data.draw(st.integers(1, n))
    sample = d.sample(k, seed=seed).origins()[1].tolist()
    assert len(set(sample)) == k
    assert d.sample(n, seed=seed).origins()[1].tolist()[:k] == sample


def test_the_long_tail():
    d = arrays([100] * 10)
    mild, steep = d.imbalanced(10, seed=0), d.imbalanced(100, seed=0)
    assert rows(steep) < rows(mild)
    assert steep.counts()[0] == 100
    assert steep.counts()[-1] == 1
    assert steep.counts() == sorted(steep.counts(), reverse=True)


def test_a_view_of_a_view_looks_at_the_source():
    d = arrays([10, 10])
    part = d.subset(indices=[3, 1, 15]).subset(indices=[2, 0])
    assert part.origins()[0] is d
    assert part.origins()[1].tolist() == [15, 3]
    assert [label for _, label in part] == [1, 0]


def test_fingerprints_tell_datasets_apart():
    a, b = (sl.dataset("scenes/shape", num=100, seed=s) for s in (0, 1))
    assert a.fingerprint() == sl.dataset("scenes/shape", num=100).fingerprint()
    assert len({a.fingerprint(), b.fingerprint(), a.subset(0.5).fingerprint()}) == 3


@pytest.mark.parametrize(
    "ask",
    [
        lambda d: d.few_shot(11),
        lambda d: d.few_shot(0),
        lambda d: d.subset(),
        lambda d: d.subset(0.5, per_class=1),
        lambda d: d.subset(1.5),
        lambda d: d.subset(indices=[99]),
        lambda d: d.subset(indices=[]),
        lambda d: d.sample(0),
        lambda d: d.sample(21),
        lambda d: d.split(1.0),
        lambda d: d.imbalanced(0.5),
    ],
)
def test_parts_that_cannot_be_had_are_refused(ask):
    with pytest.raises(ValueError, match=r"."):
        ask(arrays([10, 10]))
    with pytest.raises(IndexError):
        arrays([2])[2]


def save(path, value=0, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 0)).save(path)


def test_a_folder_per_class_with_splits(tmp_path):
    for split in ("train", "val"):
        for kind in ("b", "a"):
            save(tmp_path / split / kind / "deep" / "1.PNG")
    with pytest.raises(ValueError, match="train, val"):
        sl.Folder(tmp_path)
    assert sl.Folder(tmp_path, "val").classes == ("a", "b")
    assert len(sl.dataset(tmp_path, split="train")) == 2
    with pytest.raises(ValueError, match="no folder test"):
        sl.Folder(tmp_path, "test")


def test_a_class_called_train_is_a_class(tmp_path):
    for kind in ("train", "bus"):
        save(tmp_path / kind / "1.png")
    assert sl.Folder(tmp_path).classes == ("bus", "train")


def test_a_flat_folder_is_one_class_and_an_empty_one_an_error(tmp_path):
    save(tmp_path / "images" / "1.png")
    assert len(sl.Folder(tmp_path / "images").classes) == 1
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="has no images"):
        sl.Folder(tmp_path / "none")
    with pytest.raises(ValueError, match="is not a folder"):
        sl.Folder(tmp_path / "nowhere")


def test_links_out_of_the_folder_are_refused_and_named(tmp_path):
    save(tmp_path / "secret" / "key.png")
    save(tmp_path / "data" / "a" / "1.png")
    os.symlink(tmp_path / "secret" / "key.png", tmp_path / "data" / "a" / "2.png")
    os.symlink(tmp_path / "secret", tmp_path / "data" / "b")
    os.symlink(tmp_path / "data" / "a" / "1.png", tmp_path / "data" / "a" / "3.png")
    os.symlink(tmp_path / "data", tmp_path / "data" / "a" / "loop")
    os.symlink("nowhere.png", tmp_path / "data" / "a" / "broken.png")
    d = sl.Folder(tmp_path / "data")
    assert [os.path.basename(p) for p in d.paths if "loop" not in p] == ["1.png", "3.png", "broken.png"]
    assert {os.path.basename(p) for p in d.skipped} == {"2.png", "b"}
    assert set(sl.Folder(tmp_path / "data", follow_links=True).classes) == {"a", "b"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such file names")
def test_names_with_newlines_and_other_bytes(tmp_path):
    folder = os.fsencode(tmp_path / "odd")
    os.mkdir(folder)
    for kind in (b"new\nline", b"not-utf8-\xff\xfe", "grün".encode()):
        os.mkdir(os.path.join(folder, kind))
        with open(os.path.join(folder, kind, b"p\n\xff.png"), "wb") as file:
            Image.new("RGB", (4, 4)).save(file, "PNG")
    d = sl.Folder(tmp_path / "odd")
    assert len(d) == 3
    assert all(pixels.shape == (4, 4, 3) for pixels, _ in d)
    json.dumps([d.classes, d.name, d.where(0)]).encode()
    assert all(text.isprintable() and text.encode() for text in (*d.classes, d.where(0), d.where(1), d.where(2)))
    for i in range(3):
        with open(d.paths[i], "wb") as file:
            file.write(b"broken")
    with pytest.raises(sl.data.TooManyBad) as caught:
        list(d.batches(sl.ImageSpec(size=(4, 4)), batch=3))
    assert "\n" not in str(caught.value)
    str(caught.value).encode()


def test_manifests(tmp_path):
    for i in range(3):
        save(tmp_path / "p" / f"{i}.png", i)
    (tmp_path / "list.csv").write_text("path,label,split\np/0.png,dog,train\np/1.png,cat,train\np/2.png,dog,test\n")
    (tmp_path / "list.jsonl").write_text('{"file": "p/0.png", "class": 10}\n\n{"file": "p/2.png", "class": 9}\n')
    d = sl.dataset(tmp_path / "list.csv", split="train")
    assert (len(d), d.classes, d.labels.tolist()) == (2, ("cat", "dog"), [1, 0])
    d = sl.dataset(tmp_path / "list.jsonl")
    assert (d.classes, d.labels.tolist(), int(d[1][0][0, 0, 0])) == (("9", "10"), [1, 0], 2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "path,label\n../outside.png,x\n"),
        ("a.csv", "path,label\n/etc/hostname,x\n"),
        ("a.csv", "name,label\nx.png,x\n"),
        ("a.csv", "path,label\n,x\n"),
        ("a.csv", ""),
        ("a.jsonl", "{broken\n"),
        ("a.jsonl", "[1, 2]\n"),
        ("a.jsonl", '{"path": "x.png"}\n'),
    ],
)
def test_manifests_that_are_wrong_are_one_sentence(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=r"a\.(csv|jsonl)"):
        sl.dataset(tmp_path / name)


def test_arrays_in_npz_files(tmp_path):
    images, labels = np.arange(48, dtype=np.uint8).reshape(3, 4, 4), np.array([[0], [2], [1]])
    np.savez(tmp_path / "a.npz", x_train=images, y_train=labels, x_test=images[:1], y_test=labels[:1])
    assert len(sl.dataset(tmp_path / "a.npz", split="train")) == 3
    assert len(sl.dataset(tmp_path / "a.npz", split="test").classes) == 1
    with pytest.raises(ValueError, match="split='train'"):
        sl.dataset(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", images=images.astype(np.float32), labels=labels)
    with pytest.raises(ValueError, match="uint8"):
        sl.dataset(tmp_path / "b.npz")
    (tmp_path / "c.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"c\.npz"):
        sl.dataset(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", images=np.array([object()]), labels=labels)
    with pytest.raises(ValueError, match=r"."):
        sl.dataset(tmp_path / "d.npz")


def test_hugging_face_without_its_package_is_one_sentence():
    pytest.importorskip("transformers")  # the hub's client may be there while `datasets` is not
    try:
        import datasets  # noqa: F401
    except ImportError:
        with pytest.raises(ValueError, match=r'pip install "sightline\[hub\]"'):
            sl.dataset("hf:mnist")
