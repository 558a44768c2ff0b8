"""The 1,000 classes of ImageNet-1k (ILSVRC 2012) in the order of their numbers, from imagenet.csv next to this file.

The classes are synsets of WordNet 3.0, numbered in ascending order of their ids, as published weights number them. A
name is the first lemma of its synset; six names that occur twice there (crane, cardigan, maillot) are made unique by a
word in parentheses. The ids and lemmas were read from timm 1.0.30 (imagenet_synsets.txt, imagenet_synset_to_lemma.txt),
and the names agree with torchvision's.
"""

import csv
from functools import cache
from importlib import resources


@cache
def imagenet_classes() -> dict[str, str]:
    """The name of each class by its WordNet id, in the order of the class numbers."""
    text = resources.files("sightline.data.named").joinpath("imagenet.csv").read_text(encoding="utf-8")
    return {row["wnid"]: row["name"] for row in csv.DictReader(text.splitlines())}
