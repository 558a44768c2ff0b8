"""Speed of the data room, per core, beside torchvision's PIL pipeline in one interleaved run.

    python -m benchmarks.data            # about two minutes; prints a table and writes benchmarks/results/data.json

Each round times every contender once, in turn, so that a busy machine slows all of them alike; the ratio of a round is
taken within it, and the medians of ratios over the rounds are what is reported.
"""

import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import sightline as sl
from sightline.data import images
from sightline.data.images import EncodedImage

ROUNDS = 7
SPEC = sl.ImageSpec(size=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), interpolation="bilinear")


class Memory(sl.Dataset):
    """Encoded images that are held in memory: what is timed is the transform, not the disk."""

    def __init__(self, files):
        self.name, self.files, self.classes = "memory", files, ("0",)
        self.labels = np.zeros(len(files), np.int64)

    def image(self, index):
        return EncodedImage(self.files[index], str(index))

    def where(self, index):
        return str(index)


def photographs(count=96):
    """JPEG of 500 x 375: scenes at 512 px with their grain, quality 90, about as heavy as photographs of that size."""
    scenes = sl.dataset("scenes/objects", num=count, size=512)
    files = []
    for pixels, _ in scenes:
        buffer = io.BytesIO()
        Image.fromarray(pixels).resize((500, 375)).save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    return files


def torchvision_transform():
    # torchvision's compiled operators are missing beside a CPU build of torch; importing it asks for two schemas
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # they are there after all
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision import transforms

    return library, transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(SPEC.mean, SPEC.std),
        ]
    )


def timed(run):
    start = time.process_time()  # of this process alone: "per core", whatever else the machine does
    count = run()
    return count / (time.process_time() - start)


def training_transform(files):
    """Images per second of one core, to a normalized float batch: ours with and without simplejpeg, torchvision's."""
    library, theirs = torchvision_transform()
    ours = Memory(files).batches(SPEC, batch=32, train=sl.data.Augment(crop_area=(0.08, 1.0)))
    installed = images.simplejpeg

    def run_ours(decoder):
        images.simplejpeg = decoder
        count = sum(len(batch) for batch, _ in ours)
        images.simplejpeg = installed
        return count

    def run_theirs():
        for start in range(0, len(files), 32):
            torch.stack([theirs(Image.open(io.BytesIO(f)).convert("RGB")) for f in files[start : start + 32]])
        return len(files)

    rounds = [
        (timed(lambda: run_ours(None)), timed(run_theirs), timed(lambda: run_ours(installed)))
        for _ in range(2 * ROUNDS + 1)
    ][1:]
    del library
    what, peer = "training transform to 224 px, JPEG 500 x 375", "torchvision (PIL)"
    rows = [summary(f"{what}, Pillow alone", [(a, b) for a, b, _ in rounds], peer)]
    if installed is not None:
        rows.append(summary(f"{what}, with simplejpeg", [(c, b) for _, b, c in rounds], peer))
    return rows


def summary(what, rounds, peer):
    ratios = [a / b for a, b in rounds]
    return {
        "what": what,
        "ours, images/s": round(statistics.median(a for a, _ in rounds), 1),
        "peer": peer,
        "peer, images/s": round(statistics.median(b for _, b in rounds), 1),
        "ratio, median": round(statistics.median(ratios), 3),
        "ratio, range": [round(min(ratios), 3), round(max(ratios), 3)],
    }


def rendering(size, count):
    scenes = sl.dataset("scenes/objects", num=count, size=size)
    rates = [timed(lambda: len(scenes.images(np.arange(count)))) for _ in range(ROUNDS)]
    return {"what": f"scenes at {size} px", "ours, images/s": round(statistics.median(rates[1:]), 1)}


def shard_reading(folder):
    """Bytes per second of shards in shuffled order, beside reading the same files from end to end."""
    sl.data.shard(Memory(photographs(64) * 60), folder, per_shard=500)
    shards = sl.data.Shards(folder)
    size = sum(os.path.getsize(p) for p in shards.paths)

    def shuffled():
        for start in range(0, len(shards), 256):
            order = shards.order(0, 0, np.arange(start, min(start + 256, len(shards))))
            shards.images(order)
        return size / 1e6

    def straight():
        for path in shards.paths:
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass
        return size / 1e6

    rounds = [(timed(shuffled), timed(straight)) for _ in range(ROUNDS)]
    row = summary("shards, shuffled, MB/s (files in the page cache)", rounds, "reading the files straight")
    return {k.replace("images/s", "MB/s"): v for k, v in row.items()}


FLAT = """
import numpy as np, sightline as sl
from benchmarks.race import high_water
class Synthetic(sl.Dataset):
    def __init__(self, n):
        self.name, self.classes = "synthetic", ("a", "b")
        self.labels = np.zeros(n, np.int64)
        self.tile = np.random.default_rng(0).integers(0, 256, (256, 8, 8, 3), dtype=np.uint8)
    def image(self, i): return self.tile[i % 256]
    def images(self, i): return self.tile[i % 256]
    def where(self, i): return str(i)
b = Synthetic(1_000_000).batches(sl.ImageSpec(size=(8, 8)), batch=1000, shuffle=True, device=None)
peaks = []
for step, _ in enumerate(b):
    if step in (50, 999):
        peaks.append(high_water())
print(*peaks)
"""


def flat_memory():
    """Peak memory early and at the end of an epoch of a million entries, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", FLAT], capture_output=True, text=True, check=True)
    early, late = (float(v) for v in done.stdout.split())
    return {"what": "epoch of 1,000,000 entries", "MB after 5 %": round(early, 1), "MB at the end": round(late, 1)}


def main():
    torch.set_num_threads(1)
    rows = [*training_transform(photographs()), rendering(32, 2000), rendering(128, 200)]
    with tempfile.TemporaryDirectory() as folder:
        rows.append(shard_reading(folder))
    rows.append(flat_memory())
    for row in rows:
        print(", ".join(f"{k}: {v}" for k, v in row.items()))
    out = Path(__file__).parent / "results" / "data.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"cores": 1, "rounds": ROUNDS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
