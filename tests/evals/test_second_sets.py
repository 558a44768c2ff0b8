"""Second test sets of ImageNet's classes: small folders in their layout, and a model whose answers are known."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import sightline as sl
from sightline.views.table import view_of
from tests.command import run
from tests.evals.makers import random_model

WNIDS = list(sl.data.find_class_map(["n01440764"]).folders)  # of all 1,000 classes, in their order


class Reader(torch.nn.Module):
    """Predicts the class whose number is written in the first pixel, and its second choice in the next."""

    image = sl.ImageSpec(size=(4, 4), mean=(0.0,) * 3, std=(1.0,) * 3, fit="squash", interpolation="nearest")

    def __init__(self, names=None):
        super().__init__()
        self.class_names = names

    def features(self, x):
        raise NotImplementedError

    def forward(self, x):
        code = (x[:, :, 0, :2] * 255).round().long()
        number = (code[:, 0] * 256 + code[:, 1]) % 1000
        out = torch.zeros(len(x), 1000)
        out.scatter_(1, number[:, 1:], 1.0)
        return out.scatter_(1, number[:, :1], 2.0)


def write(folder, *choices, border=0):
    """Images in which a first and a second choice are written."""
    folder.mkdir(parents=True)
    for i, (first, second) in enumerate(choices):
        pixels = np.zeros((4, 4, 3), np.uint8)
        for x, number in enumerate((first, second)):
            pixels[0, x] = (number // 256, number % 256, 0)
        Image.fromarray(np.pad(pixels, ((border,) * 2, (border,) * 2, (0, 0)), constant_values=255)).save(
            folder / f"{i}.png"
        )


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """ImageNet val of four classes, and every second set with one mistake among the shared classes or outside."""
    root = tmp_path_factory.mktemp("sets")
    r, a = sl.data.class_maps()["imagenet-r"], sl.data.class_maps()["imagenet-a"]
    both = next(w for w in r.folders if w in a.folders)
    only_r = next(w for w in r.folders if w not in a.folders)
    x, y = r.folders[both][0], r.folders[only_r][0]
    none = next(i for i, w in enumerate(WNIDS) if w not in r.folders and w not in a.folders)
    clock, digital = sl.data.class_maps()["objectnet"].folders["alarm_clock"]
    wrong = next(numbers[0] for w, numbers in a.folders.items() if w != both)
    val = {both: (x, 0), only_r: (none, y), WNIDS[none]: (none, 0), WNIDS[clock]: (clock, 0)}
    for wnid, choices in val.items():
        write(root / "val" / wnid, choices)
    write(root / "imagenet-r" / both, (x, 0), (y, 0))
    write(root / "imagenet-r" / only_r, (none, y))
    write(root / "imagenet-a" / both, (none, x), (wrong, x))
    write(root / "v2" / "10", (10, 0), (1, 0))
    write(root / "v2" / "2", (2, 0))
    write(root / "sketch" / WNIDS[3], (3, 0))
    for folder in sl.data.class_maps()["objectnet"].folders:
        clocks = [(digital, 0), (none, clock)] if folder == "alarm_clock" else []
        write(root / "objectnet" / folder, *clocks, border=2)
    write(root / "objectnet" / "air_freshener", (1, 0), border=2)
    return root


def test_accuracy_is_over_the_shared_classes_and_stands_beside_the_first_set_on_them(sets):
    names = ("val", "imagenet-r", "imagenet-a", "v2", "sketch")
    result = sl.evals.evaluate_sets(Reader(), {n: sl.dataset(sets / n) for n in names})
    assert result.classes.tolist() == [1000, 200, 200, 1000, 1000]
    # in R the second choice of the third image counts, since the first is none of the 200; so it does in val
    assert result.top1 == pytest.approx([3 / 4, 2 / 3, 1 / 2, 2 / 3, 1])
    assert result.open_top1 == pytest.approx([3 / 4, 1 / 3, 0, 2 / 3, 1])
    assert result.first_top1[:3] == pytest.approx([3 / 4, 1, 1])
    assert result.summary()["imagenet-a - val"] == pytest.approx(-1 / 2)
    assert ((result.low <= result.top1) & (result.top1 <= result.high)).all()
    assert "with the same 200 classes" in view_of(result).sentence_of(result)


def test_objectnet_is_recognized_by_its_folders_and_loses_its_border(sets, tmp_path):
    result = sl.evals.evaluate_sets(Reader(), {"val": sl.dataset(sets / "val"), "o": sl.dataset(sets / "objectnet")})
    assert (result.classes[1], result.counts[1]) == (113, 2)  # the air freshener has no class in ImageNet
    assert result.top1[1] == 1  # a digital clock is an alarm clock; no other of the 113 is predicted
    assert result.open_top1[1] == 1 / 2
    assert result.how["kinds"]["o"] == "objectnet"
    assert sl.Result.load(result.save(tmp_path / "r.npz")).summary() == result.summary()
    known = sl.evals.TestSets(**{**vars(result), "how": {**result.how, "variant": "vit-h14"}})
    assert "ViT-H/14 61.7 % (jft-300m)" in view_of(known).paper_of(known).finding


def test_a_model_with_names_is_matched_by_them(sets):
    names = [f"{name}" for name in sl.data.named.imagenet.imagenet_classes().values()]
    data = {"val": sl.dataset(sets / "val"), "v2": sl.dataset(sets / "v2")}
    assert sl.evals.evaluate_sets(Reader(names), data).top1 == pytest.approx([3 / 4, 2 / 3])
    with pytest.raises(ValueError, match="neither the names nor the ids of ImageNet-1k"):
        sl.evals.evaluate_sets(Reader([f"thing {i}" for i in range(1000)]), data)


def test_a_class_map_of_your_own(sets, tmp_path):
    write(tmp_path / "mine" / "fish", (0, 5), (7, 1))
    write(tmp_path / "mine" / "other", (9, 9))
    (tmp_path / "map.json").write_text(json.dumps({"fish": ["n01440764", 1], "dog": 207}))
    data = {"val": sl.dataset(sets / "val"), "mine": sl.dataset(tmp_path / "mine")}
    mine = sl.data.read_class_map(tmp_path / "map.json")
    result = sl.evals.evaluate_sets(Reader(), data, maps={"mine": mine})
    assert (result.counts[1], result.classes[1], result.top1[1], result.open_top1[1]) == (2, 1, 1.0, 0.5)
    with pytest.raises(ValueError, match="cannot be matched by name or number"):
        sl.evals.evaluate_sets(Reader(), data)
    (tmp_path / "bad.json").write_text('{"fish": "n0"}')
    with pytest.raises(ValueError, match=r"bad.json is no class map .* expected JSON such as"):
        sl.data.read_class_map(tmp_path / "bad.json")
    with pytest.raises(ValueError, match="class map is about ImageNet's 1,000 classes; the model has 10"):
        sl.evals.evaluate_sets(random_model(classes=10), {"mine": data["mine"], "m": data["mine"]}, maps={"mine": mine})
    with pytest.raises(ValueError, match="No folder of imagenet-a is among"):
        sl.evals.evaluate_sets(Reader(), {"val": data["val"], "imagenet-a": sl.dataset(sets / "v2")})


def test_the_command_takes_several(sets, tmp_path, capsys):
    model = tmp_path / "net.safetensors"
    sl.save(random_model("vit-nano4", size=16, classes=1000), model)
    second = [f"--second={sets / n}" for n in ("imagenet-r", "objectnet")]
    code, out, err = run(capsys, "eval", str(model), str(sets / "val"), *second, "--json")
    assert code == 0, err
    assert {"val", "imagenet-r", "objectnet", "objectnet - val"} <= set(json.loads(out))
    code, _, err = run(capsys, "eval", str(model), str(sets / "val"), f"--class-map={model}")
    assert code == 2
    assert "--class-map is for one test set" in err
