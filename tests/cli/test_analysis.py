"""The verbs look and compare: tables, --json, exit codes."""

import json

import pytest

from sightline.cli import main


def run(capsys, *arguments):
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = stop.code or 0
    out = capsys.readouterr()
    return code, out.out, out.err


def test_look(capsys, tmp_path):
    base = ("look", "vit-nano4", "scenes/shape", "--out", str(tmp_path), "--num", "12", "--only", "residual,positions")
    code, out, err = run(capsys, *base)
    assert code == 0
    assert "residual" in out
    assert "untrained" in err
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
    lines = [line for line in err.splitlines() if "untrained" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("sightline: ")
