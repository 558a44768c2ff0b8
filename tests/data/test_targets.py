"""Masks and boxes as data: COCO's files against COCO's own code, folders of masks, scenes, and what is refused."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as reference

import sightline as sl
from sightline.data.targets.rle import decode_runs, decode_segmentation, encode_runs, fill_polygon

SIZE = (13, 17)  # height, width
SQUARE = [[2, 3, 9, 3, 9, 8, 2, 8]]
FLIP = sl.data.Augment(crop_area=None, flip=True)


def annotations(**changes):
    objects = [
        {"id": 1, "image_id": 5, "category_id": 7, "iscrowd": 0, "area": 35, "segmentation": SQUARE},
        {"id": 2, "image_id": 5, "category_id": 3, "iscrowd": 1,
         "segmentation": {"size": list(SIZE), "counts": encode_runs(np.eye(*SIZE, dtype=bool))}},
    ]  # fmt: skip
    held = {
        "images": [{"id": i, "file_name": f"{i}.png", "width": SIZE[1], "height": SIZE[0]} for i in (5, 9)],
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": objects,
    }
    return {**held, **changes}


@pytest.fixture
def coco(tmp_path):
    """A function that writes an annotation file with two images and returns its path."""

    def write(**changes):
        for i in (5, 9):
            Image.fromarray(np.full((*SIZE, 3), 10 * i, np.uint8)).save(tmp_path / f"{i}.png")
        path = tmp_path / "instances.json"
        path.write_text(json.dumps(annotations(**changes)))
        return path

    return write


@pytest.fixture
def masks(tmp_path):
    """A folder in the plain layout: two classes, two objects of the first one, and a pixel of no class."""
    for name in ("images", "masks", "objects", "splits"):
        (tmp_path / name).mkdir()
    kinds, objects = np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
    kinds[:3, :4], objects[:3, :4] = 1, 1
    kinds[6:9, 5:9], objects[6:9, 5:9] = 1, 2
    kinds[10:, 10:], objects[10:, 10:] = 2, 3
    kinds[12, 16] = 255
    for name in "ab":
        Image.fromarray(np.zeros((*SIZE, 3), np.uint8)).save(tmp_path / "images" / f"{name}.png")
        Image.fromarray(kinds).save(tmp_path / "masks" / f"{name}.png")
        Image.fromarray(objects).save(tmp_path / "objects" / f"{name}.png")
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\n")
    (tmp_path / "splits" / "train.txt").write_text("a\n")
    return tmp_path


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools with NumPy 2
@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_polygons_and_run_lengths_are_those_of_cocos_own_code(seed):
    chance = np.random.default_rng(seed)
    h, w = (int(v) for v in chance.integers(3, 40, 2))
    corners = chance.uniform(-3, max(h, w) + 3, (chance.integers(3, 8), 2)).round(int(chance.integers(0, 3)))
    theirs = reference.merge(reference.frPyObjects([corners.ravel().tolist()], h, w))
    truth = reference.decode(theirs).astype(bool)
    assert (fill_polygon(corners, (h, w)) == truth).all()
    assert (decode_segmentation({"size": [h, w], "counts": theirs["counts"].decode()}, (h, w)) == truth).all()
    assert (decode_runs(encode_runs(truth), (h, w)) == truth).all()


def test_coco_gives_objects_crowds_and_areas(coco):
    data = sl.dataset(coco())
    assert data.object_classes == ("cat", "dog")
    assert len(data) == 2
    target = data.target(0)
    assert target.classes.tolist() == [2, 1]
    assert target.is_crowd.tolist() == [False, True]
    assert target.boxes[0].tolist() == [2, 3, 9, 8]
    assert target.areas.tolist() == [35, 13]
    kinds, objects = target.label_map()
    assert set(kinds[3:8, 2:9].ravel()) == {2}
    assert kinds[0, 0] == -1
    assert set(objects.ravel()) == {0, 1}
    assert data.target(1).masks.shape == (0, *SIZE)
    assert data.labels.tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": []}, "lists no images"),
        ({"images": [{"id": 1, "file_name": "a.png", "width": 4}]}, "no height"),
        ({"images": [{"id": 1, "file_name": "a.png", "width": 10**6, "height": 10**6}]}, "1000000 x 1000000"),
        ({"images": [{"id": 1, "file_name": "../../a.png", "width": 4, "height": 4}]}, "outside"),
        ({"images": [{"id": 1, "file_name": "a.png", "width": 4, "height": 4}] * 2}, "two entries of one image id"),
        ({"categories": "dog"}, "lists no categories"),
        ({"categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "dog"}]}, "two classes of objects named 'dog'"),
        ({"annotations": [{"image_id": 1, "category_id": 7}]}, "not listed"),
    ],
)
def test_a_bad_annotation_file_is_refused_in_a_sentence(coco, changes, said):
    with pytest.raises(ValueError, match=said):
        sl.data.Coco(coco(**changes))


@pytest.mark.parametrize("text", ["", "[1]", "{" * 9, '{"images": 1}'])
def test_a_file_that_is_no_annotation_file_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json"):
        sl.dataset(tmp_path / "a.json")


@pytest.mark.parametrize(
    "held",
    [
        None, [], [[1, 2, 3, 4]], [[1, 2, 3, 4, 5, "a"]], [[0, 0, 1e30, 0, 1, 1]], [[0, 0, float("nan"), 0, 1, 1]],
        {"size": [13, 17], "counts": [3]}, {"size": [13, 17], "counts": [-1, 222]},
        {"size": [13, 17], "counts": "\x01"},
        {"size": [13, 17], "counts": "P" * 40}, {"size": [10**9, 10**9], "counts": [10**18]},
        [[-8e6, 0, 8e6, 0] * 9],
    ],
)  # fmt: skip
def test_a_bad_mask_names_its_annotation(coco, held):
    one = {"id": 44, "image_id": 5, "category_id": 7, "segmentation": held}
    with pytest.raises(sl.data.BadImage, match="annotation 44"):
        sl.data.Coco(coco(annotations=[one])).target(0)


def test_a_folder_of_masks_tells_objects_and_void_apart(masks):
    data = sl.dataset(masks)
    assert data.object_classes == ("cat", "dog")
    assert data.instances
    assert len(data) == 2
    target = data.target(0)
    assert target.classes.tolist() == [1, 1, 2]
    assert target.masks.sum((1, 2)).tolist() == [12, 12, 3 * 7 - 1]
    assert target.label_map()[0, 12, 16] == -1
    assert sl.data.available_splits(masks) == ("train",)
    assert len(sl.dataset(masks, split="train")) == 1


def test_without_numbers_of_objects_there_are_classes_only(masks):
    for file in (masks / "objects").iterdir():
        file.unlink()
    (masks / "objects").rmdir()
    data = sl.data.MaskFolder(masks)
    assert not data.instances
    assert data.target(0).classes.tolist() == [1, 2]


def test_vocs_folders_have_vocs_names(masks):
    for old, new in (("images", "JPEGImages"), ("masks", "SegmentationClass"), ("objects", "SegmentationObject")):
        (masks / old).rename(masks / new)
    (masks / "classes.txt").unlink()
    data = sl.dataset(masks)
    assert data.object_classes[:2] == ("aeroplane", "bicycle")
    assert len(data.object_classes) == 20


def test_bad_masks_are_refused_in_a_sentence(masks):
    data = sl.data.MaskFolder(masks)
    Image.fromarray(np.full(SIZE, 9, np.uint8)).save(masks / "masks" / "a.png")
    with pytest.raises(sl.data.BadImage, match="value 9; expected classes 0 to 2"):
        data.target(0)
    Image.fromarray(np.zeros((*SIZE, 3), np.uint8)).save(masks / "masks" / "a.png")
    with pytest.raises(sl.data.BadImage, match="RGB image; a mask has one value per pixel"):
        data.target(0)
    (masks / "masks" / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(sl.data.BadImage, match="not a mask"):
        data.target(0)
    (masks / "masks" / "a.png").write_bytes(b"nothing")
    with pytest.raises(sl.data.BadImage, match=r"not a mask that can be read \(unknown format\)"):
        data.target(0)
    with pytest.raises(ValueError, match="no list"):
        sl.data.MaskFolder(masks, "val")
    (masks / "splits" / "train.txt").write_text("a\nc\n")
    with pytest.raises(ValueError, match=r"split train of .* lists 1 without an image and a mask .* 'c'"):
        sl.data.MaskFolder(masks, "train")


def test_the_trimaps_of_pets_come_with_the_dataset(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "annotations" / "trimaps").mkdir(parents=True)
    trimap = np.full(SIZE, 2, np.uint8)
    trimap[3:9, 4:12], trimap[5:7, 6:10] = 3, 1
    Image.new("RGB", SIZE[::-1]).save(tmp_path / "images" / "beagle_1.jpg")
    Image.fromarray(trimap).save(tmp_path / "annotations" / "trimaps" / "beagle_1.png")
    (tmp_path / "list.csv").write_text("path,label,split\nimages/beagle_1.jpg,beagle,train\n")
    data = sl.data.Pets(tmp_path, "train")
    assert data.classes == ("beagle",)
    assert data.object_classes == ("pet",)
    assert not data.instances
    kinds = data.target(0).label_map()[0]
    assert (kinds == 1).sum() == 8
    assert (kinds == -1).sum() == 6 * 8 - 8
    Image.fromarray(trimap + 1).save(tmp_path / "annotations" / "trimaps" / "beagle_1.png")
    with pytest.raises(sl.data.BadImage, match="no trimap"):
        data.target(0)
    (tmp_path / "annotations" / "trimaps" / "beagle_1.png").unlink()
    with pytest.raises(sl.data.BadImage, match=r"There is no image .*beagle_1\.png"):
        data.target(0)


def test_scenes_know_what_they_drew():
    data = sl.dataset("scenes/count", num=16, size=48)
    for i in range(len(data)):
        pixels, target = data.image_and_target(i)
        assert (pixels == data[i][0]).all()
        assert len(target.classes) == data.labels[i] + 1
        assert target.masks.sum(0).max() == 1  # visible parts do not overlap
        shapes = data.scene(i).factors["shape"]
        assert [data.object_classes[c - 1] for c in target.classes] == shapes.tolist()


def test_the_smaller_of_two_overlapping_masks_is_on_top():
    big, small = np.ones((6, 6), bool), np.zeros((6, 6), bool)
    small[2:4, 2:4] = True
    for order in ((big, small), (small, big)):
        maps = sl.data.Target(classes=np.array([1, 1]), masks=np.stack(order)).label_map()
        assert (maps[1] == 0).sum() == 0
        assert len(np.unique(maps[1][2:4, 2:4])) == 1
        assert len(np.unique(maps[1])) == 2


@pytest.mark.parametrize(
    "augment", [FLIP, sl.data.Augment(crop_area=(0.3, 0.7)), sl.data.Augment(crop_area=None, flip=False, shift=0.2),
                sl.data.Augment(crop_side=0.5, crop_area=None, flip="alternating")],
)  # fmt: skip
def test_image_and_masks_move_alike(augment, tmp_path):
    """An image whose pixels spell their own labels is transformed like its label map, by nearest neighbors."""
    chance = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    for i in range(6):
        kinds = np.kron(chance.integers(0, 5, (6, 5)), np.ones((4, 6))).astype(np.uint8)
        Image.fromarray(kinds).save(tmp_path / "masks" / f"{i}.png")
        Image.fromarray(np.repeat(kinds[..., None] * 50, 3, axis=2)).save(tmp_path / "images" / f"{i}.png")
    view = sl.data.with_targets(sl.dataset(tmp_path))
    spec = sl.ImageSpec(size=(16, 20), interpolation="nearest")
    batches = view.batches(spec, batch=6, train=augment, seed=3, device=None)
    (images, maps), (again, same) = (next(iter(batches)) for _ in range(2))
    assert torch.equal(images, again)
    assert torch.equal(maps, same)
    agree = (images[:, 0] == 50 * maps[:, 0]).float().mean()
    assert agree > 0.9  # Pillow's centers of pixels differ from ours by at most half a pixel
    assert (images[:, 0] == 50 * maps[:, 0].flip(-1)).float().mean() < 0.6


def test_evaluation_squashes_the_whole_image_and_workers_change_nothing():
    view = sl.data.with_targets(sl.dataset("scenes/count", num=6, size=32))
    spec = sl.ImageSpec(size=(16, 16), crop=0.5, fit="crop")
    alone = [m for _, m in view.batches(spec, batch=3)]
    assert [len(m) for m in alone] == [3, 3]
    exact = np.stack([view.target(i).label_map() for i in range(6)])[:, :, 1::2, 1::2]
    assert (torch.cat(alone).numpy() == exact).all()


def test_a_bad_image_takes_the_masks_of_its_replacement_along(coco):
    path = coco(annotations=[])
    (path.parent / "5.png").write_bytes(b"broken")
    view = sl.data.with_targets(sl.dataset(path))
    bad = {}
    images, maps = next(iter(view.batches(sl.ImageSpec(size=SIZE), batch=2, device=None, bad=bad)))
    assert list(bad) == [str(path.parent / "5.png")]
    assert (images == 90).all()
    assert not maps.any()


def test_masks_of_another_size_than_the_image_are_refused(coco):
    path = coco()
    Image.new("RGB", (4, 4)).save(path.parent / "5.png")
    view = sl.data.with_targets(sl.dataset(path).subset(indices=[0]))
    with pytest.raises(sl.data.TooManyBad, match="4 x 4 pixels, its masks have 17 x 13"):
        list(view.batches(sl.ImageSpec(size=(8, 8)), batch=1))


def test_data_without_masks_and_augmentation_that_masks_cannot_follow_are_refused():
    arrays = sl.data.Arrays(np.zeros((4, 8, 8, 3), np.uint8), np.arange(4))
    with pytest.raises(ValueError, match="has no masks"):
        sl.data.with_targets(arrays)
    view = sl.data.with_targets(sl.dataset("scenes/count", num=4, size=16))
    for setting in ({"mixup": 0.2}, {"cutmix": 1.0}, {"trivial": True}, {"randaugment": (2, 5)}):
        with pytest.raises(ValueError, match=r"masks do not follow: --set augment\." + next(iter(setting))):
            view.batches(sl.ImageSpec(size=(16, 16)), batch=2, train=sl.data.Augment(**setting))


def test_a_fingerprint_covers_the_masks(coco):
    first = sl.data.with_targets(sl.dataset(coco())).fingerprint()
    assert sl.data.with_targets(sl.dataset(coco())).fingerprint() == first
    assert sl.data.with_targets(sl.dataset(coco(annotations=[]))).fingerprint() != first
