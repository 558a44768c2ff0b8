"""A few bytes that declare gigabytes: refused by what they declare, before memory is taken."""

import json
import os
import pickle
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sightline as sl
from tests.attack.child import limit_memory

ROOT = Path(__file__).parents[2]
ROOM = 700 << 20  # bytes; each of the bombs asks for more


def torch_file(path: Path, pickled: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in (("data.pkl", pickled), ("version", b"3\n"), ("byteorder", b"little")):
            archive.writestr(f"archive/{name}", body)
    return path


class Call:
    """Pickled, it asks for a call."""

    def __init__(self, function, *arguments):
        self.what = function, arguments

    def __reduce__(self):
        return self.what


def bytearray_of(path):
    return torch_file(path, pickle.dumps({"head.weight": Call(bytearray, 2**40)}, protocol=2))


def expanded(path, **options):
    torch.save({"head.weight": torch.zeros(1).expand(10**6, 10**6)}, path, **options)
    return path


def many_names(path):
    """One tensor of a megabyte under four thousand names."""
    one = torch.zeros(1 << 18)
    torch.save({f"blocks.{i}.norm1.weight": one for i in range(4_000)}, path)
    return path


def copies(path):
    """A collection that is made of another, five thousand times."""
    pairs = b"".join(b"M" + struct.pack("<H", i) + b"K\x01\x86" for i in range(20_000))
    start = b"\x80\x02ccollections\nOrderedDict\nq\x00]q\x01(" + pairs + b"e"
    return torch_file(path, start + b"h\x00h\x01\x85R" * 5_000 + b".")


def array_file(path, shape, body=b"", name="images.npy"):
    """An .npz whose array claims a shape that its bytes are not."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, header.getvalue() + body)
        labels = BytesIO()
        np.save(labels, np.zeros(4, np.int64))
        archive.writestr("labels.npy", labels.getvalue())
    return path


def claims(path, size):
    """An .npz whose directory claims that its first member has so many bytes."""
    data = bytearray(array_file(path, (4, 8, 8), bytes(256)).read_bytes())
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = struct.pack("<L", size)
    path.write_bytes(data)
    return path


def labels_up_to(path, label):
    np.savez(path, images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0, label]))
    return path


def shard_with(path, label):
    image = BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    with tarfile.open(path, "w") as tar:
        for suffix, body in (("png", image.getvalue()), ("cls", label)):
            info = tarfile.TarInfo(f"0.{suffix}")
            info.size = len(body)
            tar.addfile(info, BytesIO(body))
    return path


def images_of(path):
    return sl.dataset(path).counts()


def long_strips(path):
    """Resized by its short side, a strip of 12,000 pixels takes gigabytes."""
    for name in ("cat", "dog"):
        (path / name).mkdir()
        Image.new("RGB", (12_000, 1)).save(path / name / "a.png")
    return path


def observed(path):
    return sl.attention_distance(sl.build("vit-nano4", classes=2, depth=1), sl.dataset(path))


BOMBS = {
    "bytearray": (sl.load, lambda p: bytearray_of(p / "a.pth"), "which weights do not need"),
    "expanded": (sl.load, lambda p: expanded(p / "a.pth"), "on 4 bytes"),
    "expanded, old": (sl.load, lambda p: expanded(p / "a.pth", _use_new_zipfile_serialization=False), "on 4 bytes"),
    "many names": (sl.load, lambda p: many_names(p / "a.pth"), "declares tensors of 4,194,304,000"),
    "copies": (sl.load, lambda p: copies(p / "a.pth"), "over and over"),
    "array shape": (images_of, lambda p: array_file(p / "a.npz", (2**20, 2**10, 2**10)), "does not match its"),
    "directory": (images_of, lambda p: claims(p / "a.npz", 2**32 - 2), "does not match its|claims to unfold"),
    "label in arrays": (images_of, lambda p: labels_up_to(p / "a.npz", 10**9), "a label 1000000000"),
    "label in a shard": (images_of, lambda p: shard_with(p / "a.tar", b"1000000000"), "a label 1000000000"),
    "label of many digits": (images_of, lambda p: shard_with(p / "a.tar", b"9" * 4000), "a label 9223372036854775806"),
    "images that are looked at": (observed, long_strips, "12000 x 1 pixels"),
    "label of features": (
        lambda p: sl.evals.FeatureTable.of(np.eye(2), [0, 10**9]), lambda p: p, "a label 1000000000",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each bomb led to, in a process whose memory is limited."""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("limits are those of Linux")
    folder = tmp_path_factory.mktemp("bombs")
    done = subprocess.run(
        [sys.executable, "-m", "tests.attack.test_bombs", str(folder)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_by_what_it_declares(name, said):
    kind, message = said[name]
    assert kind in ("ValueError", "WeightsError", "TooManyBad"), message
    assert re.search(BOMBS[name][2], message), message


def test_labels_in_a_manifest_may_be_any_number(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    rows = "".join(f"a.png,{label}\n" for label in ("10", "9" * 5000, "9", "cat", "1000000000"))
    (tmp_path / "list.csv").write_text("path,label\n" + rows)
    assert [c[:10] for c in sl.dataset(tmp_path / "list.csv").classes] == ["9", "10", "1000000000", "9" * 10, "cat"]


def outcome(opener, path):
    try:
        return ["loaded", str(opener(path))[:200]]
    except Exception as error:
        return [type(error).__name__, str(error)]


def main(folder):
    made = {}
    for number, (name, (_, make, _)) in enumerate(BOMBS.items()):
        (folder / str(number)).mkdir()
        made[name] = make(folder / str(number))
    good = labels_up_to(folder / "good.npz", 1)
    outcome(images_of, good)
    outcome(sl.load, good)
    limit_memory(ROOM)
    print(json.dumps({name: outcome(BOMBS[name][0], path) for name, path in made.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
