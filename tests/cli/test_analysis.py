"""The verbs look and compare: tables, --json, exit codes."""

import json
import re

import pytest

import sightline as sl
from sightline.cli.analysis import first_numbers
from tests.command import run


def test_look(capsys, tmp_path, caplog):
    base = ("look", "vit-nano4", "scenes/shape", "--out", str(tmp_path), "--num", "12", "--only", "residual,positions")
    code, out, _ = run(capsys, *base)
    assert code == 0
    assert "residual" in out
    assert "untrained" in caplog.text
    code, out, _ = run(capsys, *base, "--json")
    assert code == 0
    assert {row["state"] for row in json.loads(out)} == {"kept"}


def test_compare(capsys, tmp_path):
    code, out, _ = run(
        capsys, "compare", "vit-nano4", "bit-nano", "scenes/shape", "--out", str(tmp_path), "--num", "12",
        "--only", "cka-pooled head-subsets attention-distance-b", "--json",
    )  # fmt: skip
    assert code == 0
    assert [row["state"] for row in json.loads(out)] == ["done", "done", "does not apply"]
    assert (tmp_path / "cka-pooled.npz").exists()


def test_exit_1_where_one_of_them_failed_and_0_once_it_is_done(capsys, tmp_path, monkeypatch):
    from sightline.analysis import catalog

    def broken(task):
        raise ValueError("the disk is gone")

    whole = catalog.LOOK["residual"]
    base = ("look", "vit-nano4", "scenes/shape", "--out", str(tmp_path), "--num", "8", "--only", "residual,positions")
    with monkeypatch.context() as patch:
        patch.setitem(catalog.LOOK, "residual", catalog.Analysis(broken, whole.refuses))
        code, out, _ = run(capsys, *base, "--json")
    assert code == 1
    assert {r["name"]: r["state"] for r in json.loads(out)} == {"residual": "failed", "positions": "done"}
    code, out, _ = run(capsys, *base, "--json")
    assert code == 0
    assert {r["name"]: r["state"] for r in json.loads(out)} == {"residual": "done", "positions": "kept"}


ZERO = """
from torch import nn
import sightline as sl

class Unit(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1))
        self.norm = nn.BatchNorm2d(8)
        nn.init.constant_(self.norm.weight, last)

    def forward(self, x):
        return x + self.norm(self.body(x))

def net(last):
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    row = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), Unit(last), Unit(last), *head)
    return sl.adopt(row, image=sl.ImageSpec(size=(32, 32)))

def zero():
    return net(0)

def one():
    return net(1)
"""


def test_compare_of_networks_whose_branches_are_zero_ends_with_a_page(capsys, tmp_path):
    (tmp_path / "nets.py").write_text(ZERO)
    a, b = (f"{tmp_path}/nets.py:{name}" for name in ("zero", "one"))
    code, out, err = run(
        capsys, "compare", a, b, "scenes/shape", "--out", str(tmp_path / "out"), "--num", "12", "--report", "--json",
        "--only", "residual-a residual-b receptive-field-before-a cka-a",
    )  # fmt: skip
    assert code == 0, err
    rows = {row["name"]: row for row in json.loads(out, parse_constant=pytest.fail)}
    assert rows["residual-a"]["numbers"]["ratio of the patches, mean"] == "NaN"
    assert rows["residual-b"]["numbers"]["ratio of the patches, mean"] > 0
    text = (tmp_path / "out/report/report.html").read_text()
    for body in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S):
        json.loads(body, parse_constant=pytest.fail)
    assert "the branch adds nothing" in text
    assert "could not be" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("look", "vit-nano4", "scenes/shape", "--only", "magic"),
        ("look", "no-such-model", "scenes/shape"),
        ("look", "vit-nano4", "scenes/nothing"),
        ("compare", "vit-nano4", "bit-nano", "no-such-folder"),
        ("look", "vit-nano4", "scenes/shape", "--num", "0"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_2(capsys, tmp_path, arguments):
    code, out, err = run(capsys, *arguments, "--out", str(tmp_path))
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("sightline: ")


def test_two_run_folders_are_told_apart_by_their_names(capsys, tmp_path):
    for name in ("wide", "deep"):
        sl.save(sl.build("vit-nano4", classes=5), tmp_path / name / "model.safetensors")
    out = tmp_path / "out"
    where = [str(tmp_path / name / "model.safetensors") for name in ("wide", "deep")]
    words = ("--num", "8", "--only", "cka-pooled", "--report", "--json")
    code, _, _ = run(capsys, "compare", *where, "scenes/shape", "--out", str(out), *words)
    assert code == 0
    assert "wide and deep" in (out / "report" / "report.md").read_text()


def test_names_for_each_model_or_none(capsys, tmp_path):
    words = ("compare", "vit-nano4", "bit-nano", "scenes/shape", "--out", str(tmp_path), "--names", "one")
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "1 names for 2 models" in err


def test_numbers_that_are_not_defined_are_left_out_of_the_table():
    nan = float("nan")
    assert first_numbers({"ratio": nan, "cosine": 0.5}) == "cosine 0.5"
    assert "none is defined" in first_numbers({"ratio": nan})
    assert first_numbers(None) == ""
