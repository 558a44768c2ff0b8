"""The verbs that measure, as they are typed."""

import json
import re

import pytest

import sightline as sl
from sightline.cli import main
from tests.evals.makers import random_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "nano.safetensors"
    sl.save(random_model(classes=10), path)
    return str(path)


def run(capsys, *words, code=0):
    if code:
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == code
        return capsys.readouterr().err
    main(words)
    return capsys.readouterr().out


def test_fewshot(capsys, weights, tmp_path):
    saved = str(tmp_path / "few.npz")
    words = ("fewshot", weights, "scenes/shape", "--num", "60", "--shots", "1,all", "--seeds", "2", "--save", saved)
    said = json.loads(run(capsys, *words, "--json"))
    assert [row["shots"] for row in said["rows"]] == [1, "all"]
    assert len(said["per class"]) == 10
    assert sl.Result.load(saved).mean[0] == said["rows"][0]["accuracy"]
    assert "accuracy" in run(capsys, *words)


def test_eval(capsys, weights):
    said = json.loads(
        run(capsys, "eval", weights, "scenes/shape", "--num", "40", "--json", "--per-class", "--confused", "3")
    )
    assert said["images"] == 40
    assert len(said["per class"]) == 10
    assert "top-1" in run(capsys, "eval", weights, "scenes/shape", "--num", "40", "--per-class", "--confused", "2")
    two = json.loads(run(capsys, "eval", weights, "scenes/shape", "--num", "20", "--second", "scenes/aerial", "--json"))
    assert set(two) == {"scenes/shape", "scenes/aerial", "scenes/aerial - scenes/shape", "published"}


def test_eval_shows_how_much_few_images_tell(capsys, weights, tmp_path):
    lines = run(capsys, "eval", weights, "scenes/shape", "--num", "40").splitlines()
    assert any("95 % interval" in line for line in lines)
    assert any(re.match(r" top-1 .* to ", line) for line in lines)
    assert any(line.startswith(" top-5") for line in lines)
    sl.save(
        sl.build("bit-nano", classes=2),
        tmp_path / "two.safetensors",
        classes=list(sl.dataset("scenes/cells", num=4).classes),
    )
    two = run(capsys, "eval", str(tmp_path / "two.safetensors"), "scenes/cells", "--num", "20")
    assert "top-5" not in two  # of two classes it is always 1


def test_eval_real(capsys, weights, tmp_path):
    path = tmp_path / "real.json"
    path.write_text(json.dumps([[i % 10] if i else [] for i in range(20)]))
    said = json.loads(run(capsys, "eval", weights, "scenes/shape", "--num", "20", "--real", str(path), "--json"))
    assert (said["scored"], said["skipped"]) == (19, 1)


def test_probe(capsys, weights):
    said = json.loads(run(capsys, "probe", weights, "scenes/shape", "--num", "60", "--shots", "2", "--json"))
    assert len(said) == 6
    said = run(capsys, "probe", weights, "scenes/shape", "--num", "60", "--layers", "features,embed", "--probe", "knn")
    assert "embed" in said


def test_what_was_measured_once_has_no_column_of_intervals(capsys, weights):
    words = ("probe", weights, "scenes/shape", "--num", "60", "--layers", "embed")
    said = run(capsys, *words, "--probe", "knn")
    assert "not a number" not in said
    assert "±" not in said


def test_episodes(capsys, weights):
    sizes = ("--ways", "2,5", "--shots", "1", "--queries", "5", "--episodes", "20")
    said = json.loads(run(capsys, "episodes", weights, "scenes/objects", "--num", "200", *sizes, "--json"))
    assert [row["ways"] for row in said["rows"]] == [2, 5]
    assert -1 <= said["cosine between"] <= said["cosine within"] <= 1


def test_vtab(capsys, weights):
    said = json.loads(run(capsys, "vtab", weights, "--tasks", "cells", "--batch", "256", "--json"))
    assert said["rows"][0]["task"] == "cells"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("fewshot", "no-such", "scenes/shape"), "no file or folder no-such"),
        (("fewshot", "{w}", "scenes/nothing"), "There is no scenes/nothing"),
        (("fewshot", "{w}", "scenes/shape", "--num", "20", "--shots", "5"), "5 shots need 5"),
        (("fewshot", "{w}", "scenes/shape", "--shots", "many"), "whole numbers such as 1,5,10"),
        (("fewshot", "{w}", "scenes/shape", "--l2", "much"), "expected a number or sweep"),
        (("probe", "{w}", "scenes/shape", "--num", "20", "--probe", "forest"), "ridge, logistic or knn"),
        (("eval", "{w}", "scenes/objects", "--num", "20"), "cannot be matched"),
        (("episodes", "{w}", "scenes/shape", "--num", "20"), "need 20 images"),
        (("vtab", "{w}", "--suite", "vtab", "--root", "nowhere"), "caltech101 is not in"),
        (("probe", "{w}", "scenes/shape", "--num", "20", "--layers", "nothing"), "No layer of"),
    ],
)
def test_mistakes_are_one_sentence(capsys, weights, words, sentence):
    said = run(capsys, *(w.format(w=weights) for w in words), code=2)
    assert sentence in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()[-1:]) == 1
