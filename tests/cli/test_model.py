"""MODEL as FILE.py:FUNCTION: anybody's module on the command line."""

import json

import pytest

from tests.cli.test_analysis import run

FILE = """
from torch import nn
import sightline as sl

def small():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return sl.adopt(net, image=sl.ImageSpec(size=(32, 32)))

def ours():
    return sl.build("vit-nano4", classes=4).eval()

number = 3

def broken():
    return 1 / 0
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("function", ["small", "ours"])
def test_a_function_of_the_user_makes_the_model(file, function, capsys, tmp_path):
    arguments = ("--out", str(tmp_path / "out"), "--num", "8", "--only", "receptive-field", "--json")
    code, out, err = run(capsys, "look", f"{file}:{function}", "scenes/shape", *arguments)
    assert code == 0, err
    assert [row["state"] for row in json.loads(out)] == ["done"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine.py:nobody", "no function 'nobody'"),
        ("mine.py:number", "no function"),
        ("other.py:small", "There is no"),
        ("mine.py:broken", "mine.py, line 15 failed with ZeroDivisionError"),
    ],
)
def test_what_is_not_there(file, name, said, capsys, tmp_path):
    code, _, err = run(capsys, "eval", str(tmp_path / name), "scenes/shape")
    assert code == 2
    assert said in err
