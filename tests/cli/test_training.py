"""The verbs that train, as they are typed."""

import json
import re

import numpy as np
import pytest
from PIL import Image

import sightline as sl
from sightline.cli import main
from sightline.cli.training import sparkline

NANO = ("--model", "vit-nano4", "--with", "depth=2", "--size", "16", "--set", "batch=16")
SCENES = ("scenes/shape", "--num", "96")


def run(capsys, *words, code=0):
    try:
        main([str(w) for w in words])
        found = 0
    except SystemExit as stop:
        found = stop.code
    said = capsys.readouterr()
    assert found == code, said.err
    return said.out if code == 0 else said.err


def held(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder with one class and one with two."""
    root = tmp_path_factory.mktemp("folders")
    for i, home in enumerate([*["one/cat"] * 12, *["two/cat", "two/dog"] * 12]):
        (root / home).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / home / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def smoked(tmp_path_factory):
    """A run that `train --smoke` made."""
    out = tmp_path_factory.mktemp("runs") / "smoke"
    main(["train", *SCENES, *NANO, "--smoke", "--out", str(out)])
    return out


def test_smoke_is_two_steps_and_one_evaluation(smoked):
    rows = sl.Run(smoked).rows()
    assert [row["step"] for row in rows] == [1, 2]
    assert ["val/accuracy" in row for row in rows] == [False, True]
    assert sl.load(smoked).config.depth == 2


def test_the_same_command_again_says_the_same(capsys, smoked):
    before = held(smoked)
    said = json.loads(run(capsys, "train", *SCENES, *NANO, "--smoke", "--out", smoked, "--json"))
    assert said["steps"] == 2
    assert said["weights"] == str(smoked / "model.safetensors")
    assert said["train/loss"] == sl.Run(smoked).rows()[-1]["train/loss"]
    assert held(smoked) == before


@pytest.mark.parametrize(
    ("other", "words"),
    [(("--set", "lr=0.5"), "recipe.lr is"), (("--seed", "1"), "recipe.seed is 0 there, 1 here"),
     (("--fraction", "0.5"), "data.train")],
)  # fmt: skip
def test_folder_of_another_run_is_left_alone(capsys, smoked, other, words):
    before = held(smoked)
    said = run(capsys, "train", *SCENES, *NANO, "--smoke", *other, "--out", smoked, code=2)
    assert "contains another run" in said
    assert words in said
    assert held(smoked) == before


def test_views_of_photographs_without_classes(capsys, folders, tmp_path):
    lejepa = ("--model", "bit-nano", "--size", "16", "--recipe", "laptop_lejepa", "--smoke", "--out", tmp_path / "x")
    said = json.loads(run(capsys, "train", folders / "one/cat", *lejepa, "--json"))
    assert said["steps"] == 2
    assert sl.Run(tmp_path / "x").about["plan"]["batch"] == 8
    said = run(capsys, "train", *SCENES, *NANO, "--task", "lejepa", "--set", "augment.cutmix=1", "--out", "y", code=2)
    assert "which views show the same one: --set augment.cutmix=0" in said


def test_tune_takes_a_run_folder(capsys, smoked, folders, tmp_path):
    how = ("--set", "batch=8", "--smoke", "--out", tmp_path / "tuned", "--json")
    said = json.loads(run(capsys, "tune", folders / "two", "--model", smoked, "--size", "16", *how))
    assert said["steps"] == 2
    tuned = sl.load(tmp_path / "tuned")
    assert tuned.class_names == ("cat", "dog")
    assert sl.Run(tmp_path / "tuned").about["name"] == "laptop_tune (smoke)"


def test_a_rehearsal_makes_room_for_the_real_run(capsys, tmp_path):
    run(capsys, "train", *SCENES, *NANO, "--smoke", "--out", tmp_path / "run")
    main(["train", *SCENES, *NANO, "--set", "steps=1", "--set", "batch=8", "--out", str(tmp_path / "run")])
    real, said = sl.Run(tmp_path / "run"), capsys.readouterr()
    assert f"Next: sightline predict {real.folder} IMAGE" in said.err
    assert "norm/gradient" not in said.out
    assert real.about["ended"]["step"] == 1
    assert not sl.training.is_rehearsal(real)


def test_tune_by_what_the_data_is_like(capsys, smoked, tmp_path):
    how = ("--set", "batch=8", "--set", "lr=0.5", "--smoke", "--size", "16", "--data-is", "small-similar")
    run(capsys, "tune", *SCENES, "--model", smoked, *how, "--out", tmp_path / "tuned")
    recipe = sl.Run(tmp_path / "tuned").about["identity"]["recipe"]
    assert recipe["trained"] == ["head.*"]
    assert recipe["lr"] == 0.05
    before, after = sl.load(smoked), sl.load(tmp_path / "tuned")
    assert before.blocks[0].mlp.fc1.weight.equal(after.blocks[0].mlp.fc1.weight)


def test_masked_then_tuned(capsys, tmp_path):
    words = ("train", *SCENES, *NANO, "--task", "masked", "--smoke", "--out", tmp_path / "masked", "--json")
    first = json.loads(run(capsys, *words))
    assert "val/accuracy" not in first
    assert first["best"] == pytest.approx(first["val/loss"])
    how = (
        "--set",
        "batch=8",
        "--smoke",
        "--size",
        "16",
        "--recipe",
        "laptop_vit",
        "--out",
        tmp_path / "tuned",
        "--json",
    )
    assert "val/accuracy" in json.loads(run(capsys, "tune", *SCENES, "--model", tmp_path / "masked", *how))


def test_mae_hides_three_quarters_unless_told(capsys, tmp_path):
    run(capsys, "train", *SCENES, *NANO, "--task", "mae", "--smoke", "--out", tmp_path / "mae")
    assert sl.Run(tmp_path / "mae").about["identity"]["recipe"]["corrupt"] == 0.75


def test_test_split_is_measured_once_at_the_end(capsys, tmp_path):
    words = ("train", *SCENES, *NANO, "--set", "steps=2", "--set", "warmup=0", "--out", tmp_path / "run", "--json")
    said = json.loads(run(capsys, *words))
    assert (
        said["test/top-1"]
        == sl.evaluate(sl.load(tmp_path / "run"), sl.dataset("scenes/shape", "test", num=96, size=16)).top1
    )
    assert json.loads(run(capsys, *words)) == said
    table = run(capsys, *words[:-1])
    assert re.search(r"test/top-1 .*\(.* to .*\)", table)  # 96 images, as the interval says


def test_prove_resume(capsys, tmp_path):
    words = ("train", *SCENES, *NANO, "--set", "ema=0.9", "--set", "augment.mixup=0.2", "--prove-resume", "--json")
    said = json.loads(run(capsys, *words, "--out", tmp_path / "run"))
    assert said == {"steps": 6, "interrupted at": 3, "same weights": True, "same losses": True}
    assert not (tmp_path / "run").exists()


def test_runs(capsys, smoked, tmp_path):
    rows = json.loads(run(capsys, "runs", smoked.parent, "--json"))
    assert [row["run"] for row in rows] == [str(smoked)]
    assert rows[0]["state"] == "finished"
    assert len(rows[0]["train/loss"]) == 2
    table = run(capsys, "runs", smoked.parent)
    assert "scenes/shape" in table
    assert sparkline(rows[0]["train/loss"]) in table
    assert "contains no runs" in run(capsys, "runs", tmp_path, code=2)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/run.json").write_text("{}")
    assert "not written by Sightline" in run(capsys, "runs", tmp_path, code=2)


def test_runs_fit_a_terminal_as_a_table(capsys, smoked, monkeypatch):
    monkeypatch.chdir(smoked.parent)
    monkeypatch.setenv("COLUMNS", "80")
    table = run(capsys, "runs", ".")
    assert "losses" in table
    assert "losses:" not in table  # one value per line, where a table does not fit
    assert "scenes/shape  smoke run" in table  # not taken for a training, whose accuracy could be read


def test_sparkline():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], width=8) == "▁▂▃▄▅▆▇█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([]) == ""
    assert sparkline([float("nan"), 1.0]) == "▁"
    assert len(sparkline(list(range(1000)))) <= 7


def test_recipes(capsys):
    listed = {row["recipe"] for row in json.loads(run(capsys, "recipes", "--json"))}
    assert listed == set(sl.recipes.names())
    assert json.loads(run(capsys, "recipes", "vit_finetune", "--json"))["optimizer"] == "sgd"
    assert "laptop_vit" in run(capsys, "recipes")
    assert "vit_finetune" in run(capsys, "recipes", "vit_finetun", code=2)
    fields = run(capsys, "recipes", "laptop_tune")
    assert "augment.mixup" in fields  # as --set takes it
    assert "{" not in fields


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--set", "lrr=1"), "no field 'lrr'; did you mean lr?"),
        (("--set", "augment.mixupp=1"), "did you mean mixup"),
        (("--set", "lr=fast"), "lr is a number; got 'fast'"),
        (("--set", "lr"), "name=value"),
        (("--set", "warmup=100000"), "warm-up"),
        (("--set", "batch=1000"), "has only"),
        (("--set", "epochs=0.001"), "no optimizer step"),
        (("--set", "frozen=bloks.*"), "matches no parameter"),
        (("--set", "frozen=*"), "nothing to train"),
        (("--set", "loss=hinge"), "loss is one of softmax, sigmoid"),
        (("--recipe", "laptop_vti"), "Did you mean laptop_vit"),
        (("--recipe", "vit_pretrain"), "has no row for vit-nano4"),
        (("--with", "dept=2"), "did you mean depth"),
        (("--val", "dev"), "--val is a split's name"),
        (("--fraction", "2"), "expected 0 < fraction <= 1"),
        (("--workers", "-1"), "workers=-1"),
        (("--device", "gpu"), "try --device cpu"),
        (("--few-shot",), "10 images of every class"),
        (("--size", "18"), "Try 16 x 16"),
        (("--size", "15"), "scenes are drawn at 16"),
        (("--set", "optimizer=muon", "--set", 'trained=("head.*",)'), "Muon orthogonalizes the matrices"),
        (("--task", "masked", "--set", "augment.cutmix=1"), "--set augment.cutmix=0 for task=masked"),
        (("--set", "compile=true"), "needs a C++ compiler, and no-such-compiler is not here"),
        (("--set", "layout=channels-last"), "channels-last is for convolutions"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence_and_leave_nothing(capsys, words, sentence, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    said = run(capsys, "train", *SCENES, *NANO, *words, "--out", tmp_path / "run", code=2)
    assert sentence in said
    assert "Traceback" not in said
    assert said.strip().splitlines()[-1].startswith("sightline: ")
    assert not (tmp_path / "run").exists()


def test_models_and_data_that_are_not_there(capsys, folders, smoked, tmp_path):
    said = run(capsys, "tune", folders / "two", "--model", "timm:test_vit", "--out", tmp_path / "timm", code=2)
    assert "save its weights" in said
    out = ("--smoke", "--out", tmp_path / "run")
    assert "vit-nano4" in run(capsys, "train", *SCENES, "--model", "vit-nanoo4", *out, code=2)
    assert "no file or folder" in run(capsys, "tune", *SCENES, "--model", "nothing", *out, code=2)
    assert "There is no scenes/shapes" in run(capsys, "train", "scenes/shapes", *NANO, *out, code=2)
    assert "the label 'cat'" in run(capsys, "train", folders / "one", *NANO, *out, code=2)
    assert "--num is for scenes" in run(capsys, "train", folders / "two", "--num", "5", *NANO, *out, code=2)
    assert "needs patches" in run(capsys, "train", *SCENES, "--model", "bit-nano", "--task", "masked", *out, code=2)
    assert not (tmp_path / "run").exists()


def test_out_that_is_no_folder_for_a_run(capsys, folders):
    before = held(folders)
    said = run(capsys, "train", folders / "two", *NANO, "--smoke", "--out", folders / "two", code=2)
    assert "contains no run but cat" in said
    assert "is a file" in run(capsys, "train", *SCENES, *NANO, "--out", next(iter(before)), code=2)
    assert held(folders) == before


def test_a_recipe_s_own_batch_is_at_most_the_data(capsys, smoked, folders, tmp_path):
    how = ("--size", "16", "--set", "steps=2", "--set", "warmup=1", "--val", "none")
    main(["tune", str(folders / "two"), "--model", str(smoked), *how, "--out", str(tmp_path / "tuned")])
    said = capsys.readouterr().err
    assert "batch 24 instead of the recipe's 64: there are 24 training images" in said
    assert "recipe laptop_tune" in said
    assert "24 images to train on; no validation" in said
    assert sl.Run(tmp_path / "tuned").about["plan"]["batch"] == 24
    asked = (*how, "--set", "batch=32")
    main(["tune", str(folders / "two"), "--model", str(smoked), *asked, "--out", str(tmp_path / "asked")])
    assert sl.Run(tmp_path / "asked").about["plan"]["batch"] == 32


def test_tune_refuses_a_live_model_by_its_reason(capsys, tmp_path):
    said = run(capsys, "tune", "scenes/shape", "--model", "nets.py:small", "--out", tmp_path / "run", code=2)
    assert "tune trains models of Sightline's own code" in said  # not "there is no file nets.py:small"
