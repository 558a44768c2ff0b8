"""A process that opens bombs on every path with little more memory than it has, and tells how far its peak rose.

python -m tests.data.exploding FOLDER: each of its folders holds a dataset with one bomb; `good` holds none.
"""

import json
import logging
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import sightline as sl
from sightline.observe.images import ImageSource
from sightline.observe.model import observe

SPEC = sl.ImageSpec(size=(224, 224))
ROOM = 600  # MB


def bomb(folder):
    return folder / "a" / "bomb.png"


def pixels(folder):
    return np.asarray(Image.open(bomb(folder)).convert("RGB"))


def batch(folder, train=None):
    batches = sl.Folder(folder).batches(SPEC, batch=3, train=train)
    assert all(len(images) == 3 for images, _ in batches)
    return "; ".join(batches.bad.values())


def predicted(folder):
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logging.getLogger("sightline.data").addHandler(handler)
    sl.evals.logits(MODEL, sl.Folder(folder))
    logging.getLogger("sightline.data").removeHandler(handler)
    return "; ".join(heard)


def looked(image):
    return [b.images for b in ImageSource(data=[image], batch=1).batches([observe(MODEL)])]


def sheet(folder):
    drawn = np.asarray(sl.data.contact_sheet(sl.Folder(folder), columns=3, rows=1))
    return "crossed out" if (drawn == (220, 20, 60)).all(-1).any() else "drawn"


MODEL = sl.build("vit-nano4", classes=2)
PATHS = {
    "open_images": lambda f: sl.open_images(bomb(f), SPEC),
    "item": lambda f: list(sl.Folder(f)),
    "evaluation": batch,
    "training": lambda f: batch(f, sl.data.Augment()),
    "training, uncropped": lambda f: batch(f, sl.data.Augment(crop_area=None)),
    "prediction": predicted,
    "check": lambda f: "; ".join(x.detail for x in sl.data.check(sl.Folder(f)).findings if x.kind == "unreadable"),
    "shards": lambda f: "; ".join(sl.data.shard(sl.Folder(f), tempfile.mkdtemp(dir=f.parent)).bad.values()),
    "sheet": sheet,
    "looking at a file": lambda f: looked(bomb(f)),
    "looking at what is opened": lambda f: looked(Image.open(bomb(f))),
    "looking at an array": lambda f: looked(pixels(f)),
    "arrays": lambda f: sl.data.Arrays(pixels(f)[None], [0], name="bomb.npz"),
}


def status(entry):
    """An entry of what Linux knows about this process, in MB. (getrusage begins at the parent's peak.)"""
    return int(Path("/proc/self/status").read_text().split(f"{entry}:")[1].split()[0]) / 2**10


def outcome(path, folder):
    before = status("VmHWM")
    try:
        said = PATHS[path](folder)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return {"megabytes": status("VmHWM") - before, "said": str(said)}


def main(root):
    torch.set_num_threads(1)
    logging.getLogger("sightline.data").propagate = False
    for path in PATHS:  # so that no import counts as a path's memory
        outcome(path, root / "good")
    import resource  # not on Windows, where the tests that start this process are skipped

    most = int(status("VmSize") + ROOM) << 20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    print(json.dumps({f"{f.name} {p}": outcome(p, f) for f in sorted(root.glob("*x*")) for p in PATHS}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
