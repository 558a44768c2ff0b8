"""Single bits flipped in every kind of file that we write: refused, in one sentence that names the file."""

import json
import os
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import sightline as sl
from sightline import files, fingerprints
from sightline.archives import map_array, save_array
from sightline.studies.demo import load_or_compute
from sightline.training.parallel import ProcessGroup
from sightline.training.run import checkpoint
from tests.training.tiny import model

FLIPS, CASES = 24, 60
TENSORS = {"task/head.weight": torch.arange(600.0), "optimizer/head.weight/step": torch.ones(())}
FACTS = {"step": 2, "best": {"score": 0.5, "step": 1}, "stale": 0, "over": False, "size": [16, 16]}
RUN = {
    "name": "vit",
    "seed": 0,
    "data": {"name": "scenes/shape", "train": 72},
    "plan": {"steps": 4, "batch": 16},
    "identity": {"recipe": {"task": "classify"}, "model": {"weights": "ab"}, "data": {"train": "cd"}},
    "ended": {"step": 4, "best": {"score": 0.5, "step": 4}},
}
LOG = "".join(json.dumps({"step": i, "train/loss": 2.0 / i, "val/accuracy": 0.1 * i}) + "\n" for i in range(1, 5))
HUB = {
    "model_type": "vit",
    "num_attention_heads": 2,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
    "id2label": {"0": "cat", "1": "dog"},
    "pretrained_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "crop_pct": 0.9},
}
IMAGES = {
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "size": {"height": 16},
    "do_center_crop": True,
    "resample": 3,
}


def table():
    return sl.evals.FeatureTable.of(np.random.default_rng(0).normal(size=(20, 8)), np.arange(20) % 4)


def result():
    return sl.analysis.ObjectMass(title="Mass", caption="a", mass=np.linspace(0, 1, 50), area=np.linspace(1, 2, 50))


def weights(to):
    return lambda path: sl.save(model(depth=1, gelu="erf"), path, to=to, probes=False, classes=list("abcdefghij"))


def state(path):
    checkpoint.write_state(path.parent, TENSORS, FACTS, ProcessGroup())


def read_state(path):
    checkpoint.read_state_facts(path)
    checkpoint.read_state(path, {k: torch.zeros_like(v) for k, v in TENSORS.items()})


OWN = {  # name of the file: how it is written, how it is read
    "model.safetensors": (weights("sightline"), sl.load),
    "timm.safetensors": (weights("timm"), sl.load),
    "state.safetensors": (state, read_state),
    "features.safetensors": (lambda path: table().save(path), sl.evals.FeatureTable.read),
    "result.npz": (lambda path: result().save(path), sl.Result.load),
}
ZIPS = {"model.npz": weights("npz"), "model.pth": weights("timm")}


def flipped(whole, order):
    """One bit of the file; every second time one of its first 2,000 bytes, where the header is."""
    damaged = bytearray(whole)
    damaged[order.randrange(min(len(whole), order.choice([2000, len(whole)])))] ^= 1 << order.randrange(8)
    return bytes(damaged)


@pytest.mark.parametrize("name", OWN)
def test_a_flipped_bit_in_our_own_file_is_refused(name, tmp_path):
    write, read = OWN[name]
    path, order = tmp_path / name, random.Random(name)
    write(path)
    read(path)
    whole = path.read_bytes()
    for _ in range(FLIPS):
        path.write_bytes(flipped(whole, order))
        with pytest.raises(ValueError, match=r"\S") as error:
            read(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ZIPS)
def test_a_flipped_bit_in_a_zip_changes_nothing_that_is_loaded(name, tmp_path):
    """Dates and attributes of a zip file are not in its checksums, and nobody reads them."""
    path, order = tmp_path / name, random.Random(name)
    ZIPS[name](path)
    whole, expected = path.read_bytes(), sl.load(path)
    refused = 0
    for _ in range(FLIPS):
        path.write_bytes(flipped(whole, order))
        try:
            loaded = sl.load(path)
        except sl.weights.WeightsError:
            refused += 1
            continue
        assert (loaded.config, loaded.image, loaded.class_names) == (
            expected.config,
            expected.image,
            expected.class_names,
        )
        assert all(torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), expected.state_dict().values()))
    assert refused > FLIPS / 2


def test_no_verify_loads_what_is_damaged(tmp_path):
    for name, write in (("a.safetensors", weights("sightline")), ("b.pth", weights("timm")), ("c.npz", weights("npz"))):
        write(tmp_path / name)
        whole = bytearray((tmp_path / name).read_bytes())
        whole[len(whole) // 2] ^= 1
        (tmp_path / name).write_bytes(whole)
        with pytest.raises(sl.weights.WeightsError, match=f"{name} is damaged"):
            sl.load(tmp_path / name)
        assert sl.load(tmp_path / name, verify=False).config.depth == 1


def test_files_of_version_0_2_have_no_checksums_and_load(tmp_path):
    path = result().save(tmp_path / "result.npz")
    with np.load(path) as file:
        np.savez_compressed(tmp_path / "old.npz", **file)
    assert np.array_equal(sl.Result.load(tmp_path / "old.npz").mass, result().mass)
    for name in ("state.safetensors", "features.safetensors"):
        write, read = OWN[name]
        write(tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        length = int.from_bytes(whole[:8], "little")
        head = json.loads(whole[8 : 8 + length])
        del head["__metadata__"]["sightline-checksums"]
        text = json.dumps(head).encode()
        (tmp_path / name).write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
        read(tmp_path / name)


def test_a_damaged_shard_index_is_made_again(tmp_path):
    sl.data.shard(sl.dataset("scenes/shape", num=12, size=16), tmp_path, per_shard=5)
    index, order = tmp_path / "index.npz", random.Random(0)
    whole, expected = index.read_bytes(), sl.data.Shards(tmp_path)
    for i in range(FLIPS):
        index.write_bytes(flipped(whole, order) if i else b"PK\x03\x04")
        found = sl.data.Shards(tmp_path)
        assert (found.labels.tolist(), found.offset.tolist()) == (expected.labels.tolist(), expected.offset.tolist())


def test_flipped_bits_in_shards_and_arrays_are_noticed(tmp_path):
    sl.data.shard(sl.dataset("scenes/shape", num=6, size=16), tmp_path / "shards")
    tar, order = tmp_path / "shards" / "00000.tar", random.Random(0)
    whole, data = tar.read_bytes(), sl.data.Shards(tmp_path / "shards")
    at = int(data.offset[3]) + order.randrange(int(data.size[3]))
    tar.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
    found = sl.data.Shards(tmp_path / "shards").images(np.arange(6))
    assert [isinstance(image, sl.data.BadImage) for image in found] == [i == 3 for i in range(6)]
    assert "its checksum differs" in str(found[3])
    save_array(tmp_path / "a.npy", np.arange(200).reshape(10, 20))
    whole = (tmp_path / "a.npy").read_bytes()
    assert np.array_equal(np.load(tmp_path / "a.npy"), map_array(tmp_path / "a.npy"))
    for _ in range(FLIPS):
        (tmp_path / "a.npy").write_bytes(flipped(whole, order))
        with pytest.raises(ValueError, match=r"a\.npy is damaged"):
            map_array(tmp_path / "a.npy")


def test_a_line_of_the_log_that_is_no_text_is_a_damaged_line(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b'{"step": 1}\n\x80\x04\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"log.jsonl is damaged in line 2"):
        sl.Run(tmp_path).rows()


def mutated(text, order):
    """Text that a disk, an editor or a stranger has changed."""
    raw = bytearray(text.encode())
    at = order.randrange(len(raw))
    match order.randrange(6 if text[0] in "[{" else 5):
        case 0:
            raw[at] ^= 1 << order.randrange(8)
        case 1:
            del raw[at:]
        case 2:
            raw[at:at] = b"[" * 3000
        case 3:
            raw[at : at + 4] = order.choice([b"null", b"1e999", b"[]", b"{}", b'"x"', b"-1", b"\xff\xfe"])
        case 4:
            raw = bytearray(order.choice([b"", b"null", b"[]", b"7", b'"x"', b"[" * 5000, b"\0" * 100]))
        case _:
            words = (b"true", b"null", b"[[]]", b"{}", b'""', b"0.5", b"1" * 400)
            return json.dumps(changed(json.loads(text.splitlines()[0]), order, words)).encode()
    return bytes(raw)


def changed(value, order, words):
    """The same JSON with one value exchanged."""
    if isinstance(value, dict) and value and order.random() < 0.9:
        key = order.choice(list(value))
        return {**value, key: changed(value[key], order, words)}
    return json.loads(order.choice(words))


def read_hub(path):
    from sightline.weights.containers.files import open_path

    open_path(path.parent)


def read_zoo(path):
    os.environ["SIGHTLINE_CACHE"] = str(path.parent)
    sl.weights.zoo("*.mine")


def read_run(path):
    run = sl.Run(path.parent)
    run.curves(), run.summary()


ENTRY = {"name": "vit-nano4.mine", "source": "runs/mine", "classes": 10, "image": {"crop": 1.0}, "size": 32}
TEXTS = {
    "run.json": (json.dumps(RUN), read_run),
    "log.jsonl": (LOG, read_run),
    "zoo.json": (json.dumps({"vit-nano4.mine": ENTRY}), read_zoo),
    "config.json": (json.dumps(HUB), read_hub),
    "preprocessor_config.json": (json.dumps(IMAGES), read_hub),
    "classes.json": (json.dumps(list("abcdefghij")), lambda path: sl.data.Shards(path.parent)),
    "manifest.csv": ("path,label\na.png,cat\nb.png,dog\n", sl.data.Manifest),
    "manifest.jsonl": ('{"path": "a.png", "label": "cat"}\n', sl.data.Manifest),
}


@pytest.fixture(scope="module")
def around(tmp_path_factory):
    """The files that stand beside those."""
    folder = tmp_path_factory.mktemp("around")
    sl.data.shard(sl.dataset("scenes/shape", num=6, size=16), folder)
    sl.save(model(depth=1), folder / "model.safetensors", probes=False)
    for name, (text, _) in TEXTS.items():
        (folder / name).write_text(text)
    return folder


def told(read, path):
    """What a reader says about a file; any error but ours is passed on."""
    try:
        read(path)
    except ValueError as error:
        return str(error).strip()
    return ""


@pytest.mark.parametrize("name", TEXTS)
def test_damaged_text_is_one_sentence(name, around, tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path))
    folder, (text, read) = tmp_path / "all", TEXTS[name]
    shutil.copytree(around, folder)
    order = random.Random(name)
    read(folder / name)
    for _ in range(CASES):
        (folder / name).write_bytes(mutated(text, order))
        assert "\n" not in told(read, folder / name)
        assert len(sl.training.list_runs(tmp_path)) == 1  # whatever one run looks like, the others are listed


# what happens then


def images(folder, count=80):
    for i in range(count):
        path = folder / ("cat", "dog")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (i, 0, 0)).save(path)
    return folder


def test_any_image_that_changes_is_noticed(tmp_path, monkeypatch):
    folder = images(tmp_path / "a")
    known = sl.Folder(folder).fingerprint()
    shutil.copytree(folder, tmp_path / "b")
    assert sl.Folder(tmp_path / "b").fingerprint() == known  # moved or copied
    part = sl.Folder(folder).subset(indices=np.arange(40))
    partly = part.fingerprint()
    for path in sorted(folder.rglob("*.png"))[::7]:
        before, times = path.read_bytes(), path.stat()
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))  # as long and as old as before
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert sl.Folder(folder).fingerprint() != known
        path.write_bytes(before)
    assert (sl.Folder(folder).fingerprint(), part.fingerprint()) == (known, partly)
    monkeypatch.setattr(fingerprints, "QUICK", 0)  # too much to read: names, sizes and times
    seen = {sl.Folder(folder).fingerprint()}
    for i, path in enumerate(sorted(folder.rglob("*.png"))):
        os.utime(path, ns=(i, i))
        seen.add(sl.Folder(folder).fingerprint())
    path.rename(path.with_name("new.png"))
    assert len(seen | {sl.Folder(folder).fingerprint()}) == 82


def test_shards_and_arrays_have_fingerprints_of_all_images(tmp_path):
    data = sl.dataset("scenes/shape", num=100, size=16)
    pixels = np.asarray(data.images(np.arange(100)))
    known = sl.data.Arrays(pixels, data.labels).fingerprint()
    for i in range(0, 100, 9):
        other = pixels.copy()
        other[i, 0, 0, 0] ^= 1
        assert sl.data.Arrays(other, data.labels).fingerprint() != known
    sl.data.shard(data, tmp_path, per_shard=60)
    whole = (tmp_path / "00001.tar").read_bytes()
    first = sl.data.Shards(tmp_path)
    known = first.fingerprint()
    at = int(first.offset[-1]) + 20
    (tmp_path / "00001.tar").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert sl.data.Shards(tmp_path).fingerprint() != known


def test_a_damaged_result_is_set_aside_and_computed_again(tmp_path, caplog):
    data, vit = sl.dataset("scenes/shape", num=8, size=16), model(depth=1)

    def look():
        return [row.state for row in sl.look(vit, data, tmp_path, only=["patch-filters", "feature-pca"], n=4)]

    look()
    path = tmp_path / "patch-filters.npz"
    whole = path.read_bytes()
    path.write_bytes(flipped(whole, random.Random(1)))
    damaged = path.read_bytes()
    assert sorted(look()) == ["done", "kept"]
    assert path.read_bytes() == whole
    assert (tmp_path / "patch-filters.npz.damaged").read_bytes() == damaged
    assert "patch-filters.npz.damaged and computed again" in caplog.text
    with files.exclusive(tmp_path), pytest.raises(ValueError, match="Another process is writing to"):
        look()


def test_the_demo_keeps_results_of_this_model_and_these_images_only(tmp_path):
    path, who = tmp_path / "a.npz", sl.spec.ModelId(name="a", fingerprint="1")
    calls = []

    def compute():
        calls.append(1)
        return result()

    for model_id, seen in ((who, "x"), (who, "x"), (who, "y"), (replace(who, fingerprint="2"), "y")):
        load_or_compute(path, compute, model_id, seen)
    assert len(calls) == 3
    path.write_bytes(b"PK")
    load_or_compute(path, compute, who, "x")
    assert (tmp_path / "a.npz.damaged").read_bytes() == b"PK"


def test_one_process_writes_features(tmp_path):
    data = sl.dataset("scenes/shape", num=4, size=16)
    out = tmp_path / "f.safetensors"
    with files.exclusive_file(out), pytest.raises(ValueError, match=r"Another process is writing to .*f\.safetensors"):
        sl.extract(model(depth=1), data, out=out)
    (tmp_path / ".f.safetensors.part").write_bytes(b"no features")
    (tmp_path / ".f.safetensors.part.json").write_text('{"key": 3')
    sl.extract(model(depth=1), data, out=out)
    assert [p.name for p in tmp_path.iterdir()] == ["f.safetensors"]
