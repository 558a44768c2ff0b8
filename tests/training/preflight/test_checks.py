"""Before the first step: what is refused, and the plan that is printed and kept."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import sightline as sl
from sightline.training.parallel import ProcessGroup
from sightline.training.preflight.checks import check_disk, check_run
from sightline.training.preflight.measure import measure_speed
from sightline.training.preflight.overlap import count_overlap
from sightline.training.train_state import TrainState
from tests.training.tiny import data, model, recipe

ALONE = ProcessGroup()


def check(train, *, val=None, m=None, processes=ALONE, evals=(), **changes):
    m = model(classes=len(train.classes)) if m is None else m
    return check_run(m, train, recipe(**changes), val=val, processes=processes, evals=evals)


def make_images(n=40, classes=10, seed=0, labels=None):
    chance = np.random.default_rng(seed)
    stack = chance.integers(0, 256, (n, 16, 16, 3), dtype=np.uint8)
    return sl.data.Arrays(
        stack, np.arange(n) % classes if labels is None else labels, classes=[f"c{i}" for i in range(classes)]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pets")
    for i in range(24):
        home = root / ("cat", "dog")[i % 2]
        home.mkdir(exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(home / f"{i}.png")
    return root


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 128}, r"batch=128 .*only 72: --set batch=64, or --set repeat=true"),
        ({"batch": 128, "micro": 16}, r"8 passes accumulated"),
        ({"steps": 10, "warmup": 10}, r"warm-up of 10 steps is as long as the training of 10"),
        ({"epochs": 0.01}, r"make no optimizer step"),
        ({"decay": "staircase", "milestones": (9,)}, r"first milestone \(9\) comes after the last step \(4\)"),
        ({"sizes": ((0, 8), (0.9, 16))}, r"4 steps end before the last size"),
        ({"sizes": ((0, 15), (0.5, 16))}, r"15 x 15"),
        ({"patience": 3}, r"needs validation data"),
        ({"task": "masked", "augment": sl.data.Augment(cutmix=1.0)}, r"CutMix .*augment.cutmix=0 for task=masked"),
        ({"task": "masked", "sizes": ((0, 8), (0.5, 16))}, r"for task=classify"),
    ],
)  # fmt: skip
def test_times_that_cannot_be_meant(changes, words):
    with pytest.raises(ValueError, match=words):
        check(data()[0], **changes)


@pytest.mark.parametrize("changes", [{"warmup": 0}, {"warmup": 3}, {"warmup": 0.5}, {"batch": 72}, {"epochs": 0.3}])
def test_times_at_the_edge_are_fine(changes):
    assert check(data()[0], **changes).steps >= 1


def test_a_batch_may_be_repeated_on_purpose(tmp_path):
    train = make_images(10)
    run = sl.fit(model(), train, recipe(batch=16, repeat=True, steps=2), out=tmp_path / "run")
    assert run.about["plan"]["epoch_steps"] == 1


def test_batch_that_the_processes_cannot_share():
    with pytest.raises(ValueError, match="split evenly over 3"):
        check(data()[0], processes=ProcessGroup(size=3))
    with pytest.raises(ValueError, match="fsdp"):
        check(data()[0], processes=ProcessGroup(size=2, strategy="fsdp"), sizes=((0, 8), (0.5, 16)))


def test_normalization_that_does_not_fit_the_weights(tmp_path):
    sl.save(model(), tmp_path / "m.safetensors")
    other = sl.ImageSpec(size=(16, 16), mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match=r"normalized by mean .* leave image= out"):
        check(data()[0], m=sl.load(tmp_path / "m.safetensors", image=other))
    kept = sl.load(tmp_path / "m.safetensors")
    check(data()[0], m=sl.load(tmp_path / "m.safetensors", image=kept.image))
    resized = sl.load(tmp_path / "m.safetensors", image=other, size=32)
    with pytest.raises(ValueError, match="normalized"):
        sl.fit(resized, data()[0], recipe(size=16), out=tmp_path / "run")
    assert resized.config.size == (32, 32)  # refused before anything was done to it
    assert not (tmp_path / "run").exists()


def test_labels_with_nothing_to_learn():
    with pytest.raises(
        ValueError, match=r"All 40 images of arrays have the label 'c3': there is nothing to learn\. In a folder"
    ):
        check(make_images(labels=np.full(40, 3)))
    with pytest.raises(ValueError, match="nothing to learn"):
        check(make_images(labels=np.zeros(40, int), classes=1))
    table = np.zeros((40, 10), bool)
    table[:, 2:4] = True
    with pytest.raises(ValueError, match=r"\['c2', 'c3'\]"):
        check(make_images(labels=table), loss="sigmoid")


def test_no_images():
    with pytest.raises(ValueError, match="holds no images"):
        check(make_images(0), m=model())
    with pytest.raises(ValueError, match="holds no images"):
        check(make_images(), val=make_images(0))


def test_several_labels_need_sigmoid():
    table = np.eye(10, dtype=bool)[np.arange(40) % 10]
    with pytest.raises(ValueError, match="--set loss=sigmoid"):
        check(make_images(labels=table))
    assert check(make_images(labels=table), loss="sigmoid").steps == 4


def test_classes_of_another_number_or_name(tmp_path):
    train = make_images()
    with pytest.raises(ValueError, match=r"model has 7 classes, arrays has 10: .*classes=10"):
        check(train, m=model(classes=7))
    m = model()
    m.class_names = tuple(f"c{i}" for i in (0, 2, 1, *range(3, 10)))
    with pytest.raises(ValueError, match=r"calls class 1 'c2', arrays calls it 'c1'"):
        check(train, m=m)
    m.class_names = train.classes
    check(train, m=m)
    check(train, m=model(classes=7), task="masked")  # no labels, no classes


def test_validation_of_other_classes():
    with pytest.raises(ValueError, match=r"different classes \(10 and 4, such as \['c4'"):
        check(make_images(), val=make_images(classes=4, seed=1))
    turned = make_images(seed=1)
    turned.classes = turned.classes[::-1]
    with pytest.raises(ValueError, match="another order"):
        check(make_images(), val=turned)
    check(make_images(), val=make_images(classes=4, seed=1), task="masked")


def test_overlap_within_one_source():
    whole = sl.dataset("scenes/shape", num=96, size=16)
    train, val = whole.split(0.75)
    check(train, val=val)
    with pytest.raises(ValueError, match=r"24 of the 24 validation images are also training"):
        check(whole, val=val)
    with pytest.raises(ValueError, match=r"72 of the 96 validation images"):
        check(train, val=whole)
    with pytest.raises(ValueError, match=r"data\.split"):
        check(whole, val=whole, task="masked")


def test_overlap_of_a_folder_opened_twice(folder, tmp_path):
    a, b = sl.Folder(folder), sl.Folder(folder)
    train, val = a.split(0.75)
    check(train, val=val)
    assert count_overlap(train, b) == len(train)
    assert count_overlap(train, b.split(0.75)[1]) == 0
    (tmp_path / "link").symlink_to(folder)
    assert count_overlap(a, sl.Folder(tmp_path / "link")) == len(a)


def test_overlap_of_scenes_opened_twice():
    train = sl.dataset("scenes/shape", num=64, size=16)
    assert count_overlap(train, sl.dataset("scenes/shape", num=32, size=32)) == 32
    assert count_overlap(train, sl.dataset("scenes/shape", split="val", num=32, size=16)) == 0
    assert count_overlap(train, sl.data.Scenes("shape", num=32, size=16, seed=1)) == 0


def test_overlap_of_shards_opened_twice(folder, tmp_path):
    sl.data.shard(sl.Folder(folder), tmp_path / "shards", per_shard=8)
    train, val = sl.data.Shards(tmp_path / "shards").split(0.75)
    assert count_overlap(train, val) == 0
    assert count_overlap(train, sl.data.Shards(tmp_path / "shards")) == len(train)


def test_overlap_by_pixels_lets_few_twins_pass():
    train, val = make_images(40), make_images(200, seed=1)
    assert count_overlap(train, val) == 0
    val.stack[:2] = train.stack[:2]  # one in a hundred: a published test set may have so many
    assert count_overlap(train, val) == 0
    val.stack[2] = train.stack[7]
    assert count_overlap(train, val) == 3
    assert count_overlap(train, sl.data.Arrays(train.stack.copy(), train.labels)) == 40


def test_evaluators_are_pairs():
    for odd in ((0, len), (2.5, len), (3,), len):
        with pytest.raises(ValueError, match="evals are pairs"):
            check(data()[0], evals=[odd])


def test_disk_too_full(tmp_path):
    plan, m = check(data()[0]), model()
    weights = sum(4 * p.numel() for p in m.parameters())
    check_disk(tmp_path / "not" / "there", plan, m, free=3 * weights)
    with pytest.raises(ValueError, match="need"):
        check_disk(tmp_path / "not" / "there", plan, m, kept=1, free=3 * weights)
    with pytest.raises(ValueError, match=r"need \d+ MiB, and .* has 1 free: give another --out"):
        check_disk(tmp_path, plan, model(width=192, heads=3), free=2**20)


def test_disk_too_full_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("", (), {"free": 1000})())
    with pytest.raises(ValueError, match="free some space"):
        sl.fit(model(), data()[0], recipe(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_plan_s_numbers(tmp_path, capsys):
    settings = recipe(epochs=2, micro=5, warmup=0.25, weight_decay=0.1, frozen=("embed.*",), ema=0.9)
    m = model()
    run = sl.fit(m, data()[0], settings, out=tmp_path / "run")
    plan = json.loads((run.path / "run.json").read_text())["plan"]
    count = sum(p.numel() for p in m.parameters())
    still = sum(p.numel() for p in m.embed.parameters())
    assert (plan["steps"], plan["epoch_steps"], plan["batch"], plan["passes"]) == (8, 4, 16, 4)
    assert plan["epochs"] == pytest.approx(8 * 16 / 72)
    assert (plan["warmup"], plan["warmup_share"]) == (2, 0.25)
    assert (plan["parameters"], plan["trainable"]) == (count, count - still)
    assert sorted(g["decay"] for g in plan["groups"]) == [0.0, 0.1]
    assert sum(g["parameters"] for g in plan["groups"]) == plan["trainable"]
    # parameters and average, two moments of what learns, and one counter for each tensor
    tensors = sum(g["tensors"] for g in plan["groups"])
    assert plan["state_bytes"] == 4 * (2 * count + 2 * (count - still) + tensors)
    for measured in ("step_seconds", "activation_bytes", "loader_images_per_second", "model_images_per_second"):
        assert plan[measured] > 0
    said = capsys.readouterr().err
    for words in ("8 steps of 16 images", "4 passes per step", "warm-up: 2 steps, 25 % of the training",
                  f"{still:,} of {count:,} parameters are frozen", "the loader prepares", "MiB"):  # fmt: skip
        assert words in said


def test_the_trial_step_changes_nothing(tmp_path):
    m, train = model(dropout=0.1), data()[0]
    before = {n: t.clone() for n, t in m.state_dict().items()}
    state = TrainState(m, recipe(), ProcessGroup())
    plan = measure_speed(state, train, check(train))
    assert plan.step_seconds is not None
    assert all(torch.equal(before[n], t) for n, t in m.state_dict().items())
    assert all(p.grad is None for p in m.parameters())
    assert not any(t.any() for p in state.trainable for t in state.optimizer.state[p].values())


def test_compiling_without_a_compiler_is_refused(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"needs a C\+\+ compiler, and no-such-compiler is not here.*compile=false"):
        check(data()[0], compile=True)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX")
    with pytest.raises(ValueError, match="install g"):
        check(data()[0], compile=True)
    monkeypatch.setenv("CXX", sys.executable)  # only looked for here, not run
    check(data()[0], compile=True)
