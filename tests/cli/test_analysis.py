"""The verbs look and compare: tables, --json, exit codes."""

import json

import pytest

import sightline as sl
from sightline.cli import main


def run(capsys, *arguments):
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = stop.code or 0
    out = capsys.readouterr()
    return code, out.out, out.err


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
