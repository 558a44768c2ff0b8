"""DeiT-Tiny's features of 1,110 photographs of pets, kept in pets.npz: the photographs take 40 seconds of a core.

`python -m tests.evals.pets` writes the file again from the photographs and weights beside the checkout (Oxford-IIIT
Pets, Parkhi et al. 2012, CC BY-SA 4.0; 37 breeds with 20 training and 10 test photographs each).
"""

from pathlib import Path

import numpy as np
import torch

import sightline as sl
from tests.evals.makers import SHARED

FILE = Path(__file__).with_name("pets.npz")
SPLITS = ("train", "test")


def open_split(split):
    return sl.dataset(SHARED / "pets", split=split)


def extract(data):
    spec = sl.ImageSpec(size=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=0.875)
    model = sl.load(SHARED / "deit_tiny_patch16_224_in1k.npz", image=spec)
    return sl.extract(model, data, tokens="cls", batch=37)


def kept(split):
    """The features of all photographs, rounded to half precision."""
    with np.load(FILE) as file:
        features = torch.from_numpy(file[split]).float()
        return sl.evals.FeatureTable.of(features, file[f"{split} labels"], classes=file["classes"].tolist())


def write():
    tables = {split: extract(open_split(split)) for split in SPLITS}
    features = {split: table.features.half().numpy() for split, table in tables.items()}
    labels = {f"{split} labels": table.labels.astype(np.uint8) for split, table in tables.items()}
    np.savez(FILE, classes=np.array(tables["train"].classes), **features, **labels)


if __name__ == "__main__":
    write()
