"""Files that are broken, hostile or not what they claim: one clear sentence, nothing half-written, never a crash."""

import contextlib
import io
import json
import os
import pickle
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from sightline.weights.conversion import to_format
from tests.weights.makers import google_npz

CASES = 300  # per container and half: 3,000 damaged files in all


def tiny() -> torch.nn.Module:
    torch.manual_seed(0)
    model = sl.build(sl.models.ViTConfig(width=64, depth=1, heads=1, mlp_width=64, patch=8, size=16, classes=3), seed=1)
    with torch.no_grad():
        model.head.weight.normal_()
    return model


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> dict[str, bytes]:
    """One valid file of each container and naming."""
    at = tmp_path_factory.mktemp("valid")
    model = tiny()
    files = {"own.safetensors": "sightline", "timm.safetensors": "timm", "google.npz": "npz", "hf.pth": "hf"}
    out = {name: sl.save(model, at / name, to=to).read_bytes() for name, to in files.items()}
    bare = io.BytesIO()
    np.savez_compressed(bare, **{k: v.numpy() for k, v in to_format(model.state_dict(), model.config, "npz").items()})
    return {**out, "packed.npz": bare.getvalue()}


CONTAINERS = ("own.safetensors", "timm.safetensors", "google.npz", "hf.pth", "packed.npz")


def attempt(path: Path, data: bytes) -> None:
    """Load bytes: a model or WeightsError, and nothing else."""
    path.write_bytes(data)
    told = ""
    try:
        model = sl.load(path)
        assert all(p.isfinite().all() for p in model.parameters())
    except sl.weights.WeightsError as error:
        told = str(error)
    assert "\n" not in told.strip()
    assert len(told) < 1200


def damage(data: bytes, random: random.Random) -> bytes:
    """A way in which files break: flipped bytes, a cut, a hole, a doubled piece, other numbers in a header."""
    out = bytearray(data)
    head = min(len(out), 2048)
    place = random.choice([random.randrange(head), random.randrange(len(out)), len(out) - 1 - random.randrange(head)])
    match random.randrange(7):
        case 0:
            for _ in range(random.randint(1, 8)):
                out[(place + random.randrange(64)) % len(out)] = random.randrange(256)
        case 1:
            del out[place:]
        case 2:
            del out[place : place + random.randint(1, 64)]
        case 3:
            out[place:place] = out[place : place + random.randint(1, 64)]
        case 4:
            out[place : place + 8] = struct.pack("<Q", random.choice([0, 1, 2**31, 2**40, 2**63 - 1, 2**64 - 1]))
        case 5:  # digits to other digits: shapes, offsets, sizes
            digits = [i for i, b in enumerate(out[:head]) if 48 <= b <= 57] or [0]
            for _ in range(random.randint(1, 3)):
                out[random.choice(digits)] = random.choice(b"0123456789")
        case 6:
            out[place : place + 32] = bytes(len(out[place : place + 32]))
    return bytes(out)


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("half", [0, 1])
def test_damaged_files_raise_only_our_errors(name, half, valid, tmp_path):
    order = random.Random(f"{name}{half}")
    for _ in range(CASES):
        attempt(tmp_path / name, damage(valid[name], order))
    assert os.listdir(tmp_path) == [name]


@settings(max_examples=150)
@given(st.binary(max_size=400))
def test_any_bytes_are_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "model.npz"
    for start in (b"", b"PK\x03\x04", b"\x80\x02", struct.pack("<Q", len(data)) + b"{"):
        path.write_bytes(start + data)
        with pytest.raises(sl.weights.WeightsError):
            sl.load(path)


@settings(max_examples=100)  # `make attack` has thousands
@given(st.data())
def test_shapes_keys_and_types_at_random(data):
    """State dicts with keys dropped, renamed or doubled and tensors of other shapes and types."""
    state = dict(to_format(tiny().state_dict(), tiny().config, data.draw(st.sampled_from(["timm", "npz", "hf"]))))
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(state)))
        match data.draw(st.integers(0, 5)):
            case 0 if len(state) > 1:
                del state[key]
            case 1:
                state[key] = torch.zeros(data.draw(st.lists(st.integers(0, 70), max_size=5)))
            case 2:
                state[data.draw(st.text(max_size=20))] = state[key]
            case 3:
                state[key] = state[key].to(data.draw(st.sampled_from([torch.int64, torch.bool, torch.float16])))
            case 4:
                state[key] = torch.full(state[key].shape, float("nan"))
            case _:
                state[key.replace("0", "1")] = state.pop(key)
    with contextlib.suppress(sl.weights.WeightsError):
        sl.load(state)


def refused(path: Path, why: str) -> None:
    with pytest.raises(sl.weights.WeightsError, match=why):
        sl.load(path)


def test_cut_files_say_so(valid, tmp_path):
    for name in ("own.safetensors", "timm.safetensors"):
        (tmp_path / name).write_bytes(valid[name][:-100])
        refused(tmp_path / name, "cut short")
    (tmp_path / "google.npz").write_bytes(valid["google.npz"][:-3000])
    refused(tmp_path / "google.npz", "damaged or cut short")
    (tmp_path / "hf.pth").write_bytes(valid["hf.pth"][:-3000])
    refused(tmp_path / "hf.pth", "damaged|does not load as plain weights")


def test_one_flipped_byte_in_an_npz_is_found_by_its_checksum(valid, tmp_path):
    data = bytearray(valid["google.npz"])
    data[len(data) // 2] ^= 1
    (tmp_path / "google.npz").write_bytes(data)
    refused(tmp_path / "google.npz", "checksum")


def test_header_bombs_are_refused_before_memory_is_taken(tmp_path):
    path = tmp_path / "bomb.safetensors"
    path.write_bytes(struct.pack("<Q", 2**40) + b"{" + b" " * 100)
    refused(path, "claims a header of 1099511627776 bytes")
    entry = {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 4 * 2**40]}
    text = json.dumps({"head.weight": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    refused(path, "cut short")
    same = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    text = json.dumps({"a": same, "b": same}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    refused(path, "overlap")
    other = {**same, "data_offsets": [24, 40]}
    text = json.dumps({"a": same, "b": other}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(40))
    refused(path, "a gap of 8 bytes")


def test_a_file_rewritten_in_place_does_not_reach_a_loaded_model(tmp_path):
    file = sl.save(tiny(), tmp_path / "model.safetensors")
    model = sl.load(file)
    before = model.head.weight.clone()
    with file.open("r+b") as raw:
        raw.seek(-100_000, os.SEEK_END)
        raw.write(bytes(100_000))
    assert torch.equal(model.head.weight, before)


def test_zip_bombs_are_refused_before_they_unfold(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo("head/kernel.npy")
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, bytes(2**20))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02") + 24
    data[at : at + 4] = struct.pack("<L", 2**32 - 2)
    path.write_bytes(data)
    refused(path, "claims to unfold to 4,294,967,294")


def test_pickles_never_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    for file in ("evil.pth", "old.pth"):
        torch.save({"head": Evil()}, tmp_path / file, _use_new_zipfile_serialization=file == "evil.pth")
        refused(tmp_path / file, "never unpickles")
    (tmp_path / "raw.pkl").write_bytes(pickle.dumps(Evil()))
    refused(tmp_path / "raw.pkl", "never unpickles")
    np.savez(tmp_path / "evil.npz", head=np.array([Evil()], dtype=object), allow_pickle=True)
    refused(tmp_path / "evil.npz", "Python objects")
    assert not (tmp_path / "ran").exists()


def test_values_that_are_no_weights(tmp_path):
    arrays = google_npz()
    arrays["head/kernel"][3, 2] = np.nan
    np.savez(tmp_path / "nan.npz", **arrays)
    refused(tmp_path / "nan.npz", "head/kernel has 1 NaN or infinite values out of 640")
    arrays["head/kernel"] = np.zeros((64, 10), dtype=np.int32)
    np.savez(tmp_path / "int.npz", **arrays)
    refused(tmp_path / "int.npz", "head/kernel has type int32; expected floating point")
    arrays["head/kernel"] = np.zeros((65, 10), dtype=np.float32)
    np.savez(tmp_path / "shape.npz", **arrays)
    refused(tmp_path / "shape.npz", r"head/kernel has shape \(65, 10\); expected \(64, 10\)")
    arrays["head/kernel"] = np.zeros((64, 10), dtype=np.complex64)
    np.savez(tmp_path / "complex.npz", **arrays)
    refused(tmp_path / "complex.npz", "complex64")


def test_a_large_finite_sum_is_no_infinity(tmp_path):
    arrays = google_npz()
    arrays["head/bias"] = np.full(10, 3e38, dtype=np.float32)
    np.savez(tmp_path / "large.npz", **arrays)
    assert sl.load(tmp_path / "large.npz").head.bias[0] == np.float32(3e38)


def test_nothing_is_left_behind_when_writing_fails(tmp_path):
    model = tiny()
    with torch.no_grad():
        model.head.bias[0] = float("nan")
    with pytest.raises(sl.weights.WeightsError, match=r"head\.bias has NaN"):
        sl.save(model, tmp_path / "model.safetensors")
    with pytest.raises(sl.weights.WeightsError, match="meta device"):
        sl.save(sl.build("vit-nano4", device="meta"), tmp_path / "model.safetensors")
    for name in ("model", "model.npz", "model.pth"):
        with pytest.raises(sl.weights.WeightsError, match="written to a"):
            sl.save(tiny(), tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_an_old_file_survives_a_failed_write(tmp_path, monkeypatch):
    file = sl.save(tiny(), tmp_path / "model.safetensors")
    before = file.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "no space left")))
    with pytest.raises(OSError, match="no space"):
        sl.save(tiny(), file)
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_what_is_not_there(tmp_path):
    with pytest.raises(sl.weights.WeightsError, match="Did you mean vit-b16"):
        sl.load("vit-b16.augreg")
    with pytest.raises(sl.weights.WeightsError, match="is a folder without"):
        sl.load(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(sl.weights.WeightsError, match="several shards"):
        sl.load(tmp_path)
