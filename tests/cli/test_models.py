"""`sightline models` and `sightline show`, as a user types them."""

import json
import logging

import pytest

import sightline as sl
from sightline.cli import main
from sightline.cli.shell import Once


def run(capsys, *arguments):
    try:
        main(arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code
    out = capsys.readouterr()
    return code, out.out, out.err


def test_models_lists_what_matches(capsys):
    code, out, _ = run(capsys, "models", "vit-l*", "--json")
    assert code == 0
    assert [row["model"] for row in json.loads(out)] == ["vit-l32", "vit-l16"]
    code, out, _ = run(capsys, "models")
    assert code == 0
    assert "936,533,224" in out


def test_names_stay_whole_in_80_columns(capsys, monkeypatch):
    """A name that is broken in two cannot be copied."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, "models", "--weights")
    assert all(f"{entry.name} " in out for entry in sl.weights.zoo())
    assert max(map(len, out.splitlines())) <= 80


def test_show_tells_what_a_model_costs(capsys):
    code, out, _ = run(capsys, "show", "vit-b16", "--size", "384", "--json")
    facts = json.loads(out)
    assert (code, facts["tokens"], facts["GMAC per image"]) == (0, 577, 55.484)
    code, out, _ = run(capsys, "show", "r50-vit-b16", "--size", "224x160", "--classes", "0")
    assert code == 0
    assert "14 x 10" in out
    code, out, _ = run(capsys, "show", "bit-r50x1")
    assert "25,549,352" in out


def test_show_lists_parts(capsys):
    code, out, _ = run(capsys, "show", "vit-nano4", "--parts", "--json")
    assert code == 0
    assert "blocks.0.attn.probs" in [row["path"] for row in json.loads(out)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("models", "nothing*"), "No model matches"),
        (("show", "vit-bb16"), "vit-b16"),
        (("show", "vit-b16", "--size", "250"), "256 x 256"),
        (("show", "vit-b16", "--size", "large"), "--size 384"),
        (("show",), "MODEL"),
        (("shwo", "vit-b16"), "show"),
        (("show", "vit-b16", "--classes", "many"), "many"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(capsys, arguments, says):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("sightline: ")
    assert len(err.strip().splitlines()) == 1
    assert says in err


def test_show_takes_files_and_live_models(capsys, tmp_path):
    sl.save(sl.build("vit-nano4", classes=3), tmp_path / "tiny.safetensors")
    code, out, _ = run(capsys, "show", str(tmp_path / "tiny.safetensors"), "--json")
    facts = json.loads(out)
    assert (code, facts["family"], facts["classes"], facts["depth"]) == (0, "ViT", 3, 6)
    (tmp_path / "nets.py").write_text(
        "from torch import nn\nimport sightline as sl\n"
        "def net():\n"
        "    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))\n"
        "    return sl.adopt(net, image=sl.ImageSpec(size=(32, 32)))\n"
    )
    code, out, _ = run(capsys, "show", f"{tmp_path}/nets.py:net", "--json")
    facts = json.loads(out)
    assert (code, facts["family"], facts["parameters"]) == (0, "cnn of torch", 260)
    code, _, err = run(capsys, "show", str(tmp_path / "tiny.safetensors"), "--classes", "5")
    assert code == 2
    assert "own head" in err


def test_the_same_warning_is_said_once(capsys):
    once = Once()
    said = [once.filter(logging.makeLogRecord({"msg": text})) for text in ("file %s", "file %s", "other")]
    assert said == [True, False, True]


def test_ctrl_c_says_what_to_type_and_exits_130(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sl.models, "list_models", interrupted)
    code, _, err = run(capsys, "models")
    assert code == 130
    assert "type the same command again" in err


def test_ctrl_c_in_a_training_says_where_it_was_saved(capsys, monkeypatch):
    def stopped(*_, **__):
        raise sl.training.Stopped("stopped at step 7 of 9, saved in runs/a; run it again to resume")

    monkeypatch.setattr(sl.models, "list_models", stopped)
    code, _, err = run(capsys, "models")
    assert code == 130
    assert "stopped at step 7 of 9, saved in runs/a; run it again to resume" in err
