"""The table of ImageNet's classes that ships with the package."""

import csv

from sightline.data.named.imagenet import imagenet_classes
from tests import peers
from tests.evals.makers import SHARED, needs_shared


def test_a_thousand_classes_in_the_order_of_their_wordnet_ids():
    classes = imagenet_classes()
    assert len(classes) == len({name.lower() for name in classes.values()}) == 1000
    assert list(classes) == sorted(classes)
    assert all(len(wnid) == 9 and wnid[0] == "n" and wnid[1:].isdecimal() for wnid in classes)
    names = list(classes.values())
    assert (names[0], names[1], names[999]) == ("tench", "goldfish", "toilet tissue")
    assert (names[134], names[517]) == ("crane (bird)", "crane (machine)")
    assert all(name == name.strip() and 0 < len(name) <= 31 and "," not in name for name in names)


def test_names_agree_with_torchvisions():
    theirs = peers.torchvision.models.ResNet50_Weights.DEFAULT.meta["categories"]
    differ = [i for i, (a, b) in enumerate(zip(imagenet_classes().values(), theirs)) if a != b]
    assert differ == [134, 264, 474, 517, 638, 639]  # the three words that occur twice


@needs_shared
def test_numbers_agree_with_labeled_photographs():
    wnids = list(imagenet_classes())
    with (SHARED / "imagenet-samples" / "labels.csv").open() as file:
        for row in csv.DictReader(file):
            wnid, _, name = row["file"].removesuffix(".jpg").partition("_")
            assert wnids[int(row["class_index"])] == wnid
            assert imagenet_classes()[wnid] == name.replace("_", " ")
