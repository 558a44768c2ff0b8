"""A run's state and the folder around it, as somebody may have sent it: nothing in it runs, nothing leads out of it,
and what was only begun counts for nothing."""

import contextlib
import io
import json
import os
import pickle
import re
import shutil

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.cli import main
from sightline.training.run import checkpoint
from sightline.weights.containers.safetensors import SafetensorsSource, write_safetensors
from tests.training.tiny import data, interrupt, losses, model, recipe

TRAIN = ("train", "scenes/shape", "--num", "96", "--model", "vit-nano4", "--with", "depth=2", "--size", "16",
         "--set", "batch=16", "--set", "steps=2", "--set", "epochs=none", "--set", "warmup=0")  # fmt: skip
SENT = ("run.json", "log.jsonl", "model.safetensors", "last.safetensors", "best.safetensors", "test.npz", ".lock",
        "state/state.safetensors", "state/state.json", "state/.metadata", "state/__0_0.distcp",
        "state/step-2/.metadata", "state/step-2/__0_0.distcp")  # fmt: skip


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def pickles(marker, name):
    """The forms in which a pickle travels in a file of this name: bare, as torch writes it, in an array of NumPy's."""
    bare, zipped, array = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pickle.dump(Evil(marker), bare)
    torch.save({"head": Evil(marker)}, zipped)
    np.savez(array, __head__=np.array([Evil(marker)], dtype=object), allow_pickle=True)
    other = {".safetensors": [zipped], ".distcp": [zipped], ".npz": [array]}.get(os.path.splitext(name)[1], [])
    return [held.getvalue() for held in (bare, *other)]


def typed(capsys, *words):
    """The command line's exit code and what it said."""
    try:
        main([str(word) for word in words])
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, capsys.readouterr().err


def unended(folder):
    """A finished run as if it had been killed just before it said so."""
    about = json.loads((folder / "run.json").read_text())
    del about["ended"]
    (folder / "run.json").write_text(json.dumps(about))


def pointer(name):
    """state.json as it once was."""
    return json.dumps({"step": 99, "best": None, "stale": 0, "over": False, "size": [16, 16], "folder": name})


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """A run that the command line made."""
    out = tmp_path_factory.mktemp("runs") / "sent"
    main([*TRAIN, "--out", str(out)])
    return out


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was asked to stop after two of four steps."""
    out = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(sl.training.Stopped):
        sl.fit(model(), data()[0], recipe(ema=0.9), out=out, evals=[(2, interrupt)])
    return out


def gone_on(folder):
    return sl.fit(model(), data()[0], recipe(ema=0.9), out=folder)


def refused(folder, words):
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(ValueError, match=words) as error:
        gone_on(folder)
    assert "\n" not in str(error.value)
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


@pytest.mark.parametrize("name", SENT)
def test_a_pickle_in_a_run_folder_never_runs(name, sent, tmp_path, capsys):
    for i, evil in enumerate(pickles(tmp_path / "ran", name)):
        folder = tmp_path / str(i) / "sent"
        shutil.copytree(sent, folder)
        if name != "test.npz":  # read when all is done
            unended(folder)
        if name.endswith((".metadata", ".distcp")):
            (folder / "state/state.json").write_text(pointer(os.path.dirname(name.removeprefix("state/")) or "."))
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(evil)
        with contextlib.suppress(ValueError):
            sl.load(folder)
        for words in (("runs", folder.parent), (*TRAIN, "--out", folder)):
            code, said = typed(capsys, *words)
            assert code in (0, 2), said
            assert "Traceback" not in said
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["step-2", "../elsewhere", "absolute", "link", "missing"])
def test_state_of_the_former_kind_is_refused_wherever_it_points(name, stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    home = tmp_path / "run/state"
    for place in (home / "step-2", tmp_path / "run/elsewhere"):
        place.mkdir()
        (place / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    (home / "link").symlink_to(tmp_path / "run/elsewhere")
    (home / "state.json").write_text(pointer(str(tmp_path / "run/elsewhere") if name == "absolute" else name))
    words = r"no longer read\): start again with another --out, or use the weights in .*/run/model\.safetensors\."
    refused(tmp_path / "run", words)
    (home / "state.safetensors").unlink()  # as it was once: one form or the other
    refused(tmp_path / "run", words)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["state", "state/state.safetensors", "state/state.json"])
def test_links_do_not_lead_out_of_the_folder(name, stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    place, target = tmp_path / "run" / name, tmp_path / "elsewhere"
    if place.exists():
        shutil.move(place, target)
    place.symlink_to(target)
    refused(tmp_path / "run", "Training cannot resume from .*/run/state")


def test_a_lock_that_is_a_link_empties_nothing(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    (tmp_path / "thesis").write_text("three years")
    (tmp_path / "run/.lock").symlink_to(tmp_path / "thesis")
    with pytest.raises(ValueError, match=r"\.lock is a link, .*: remove it"):
        gone_on(tmp_path / "run")
    assert (tmp_path / "thesis").read_text() == "three years"


def rewritten(folder, change=dict, **facts):
    """The state with other values, or other words about itself."""
    file = folder / "state/state.safetensors"
    (folder / "state/before.safetensors").unlink()
    source = SafetensorsSource(file)
    head = {**json.loads(source.header[checkpoint.HEADER]), **facts}
    write_safetensors(file, change({n: source.read(n) for n in source.shapes}), {checkpoint.HEADER: json.dumps(head)})


@pytest.mark.parametrize(
    "facts",
    [{"step": "2"}, {"step": -1}, {"step": None}, {"best": 3}, {"best": {}}, {"size": 16}, {"size": [16]}, {"over": 0}],
    ids=str,
)
def test_a_state_that_says_nonsense_is_refused(facts, stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    rewritten(tmp_path / "run", **facts)
    refused(tmp_path / "run", r"state\.safetensors \(its header is damaged\)")


def test_a_state_of_other_sizes_or_shapes_is_refused(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "a")
    rewritten(tmp_path / "a", size=[64, 64])
    refused(tmp_path / "a", "its images have size")
    for i, other in enumerate((torch.zeros(()), torch.zeros(10, dtype=torch.float64))):
        shutil.copytree(stopped, tmp_path / f"b{i}")
        rewritten(tmp_path / f"b{i}", lambda held, other=other: {**held, "task/head.bias": other})
        refused(tmp_path / f"b{i}", re.escape("belongs to another run: task/head.bias is "))


def test_a_damaged_state_says_what_to_do(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    file = tmp_path / "run/state/state.safetensors"
    (tmp_path / "run/state/before.safetensors").unlink()
    whole = file.read_bytes()
    for broken in (b"", whole[:-7], whole[:100], whole.replace(b"sightline-state", b"sightline-other")):
        file.write_bytes(broken)
        refused(tmp_path / "run", "start again with another --out, or use the weights in")
    file.write_bytes(whole)
    assert gone_on(tmp_path / "run").finished


@pytest.mark.parametrize("name", ["state", "next"])  # next: killed before it was renamed
def test_a_damaged_state_is_set_aside_and_the_one_before_is_used(name, tmp_path, caplog):
    train, settings = data()[0], recipe(save_every=1, steps=3)
    with pytest.raises(sl.training.Stopped):
        sl.fit(model(), train, settings, out=tmp_path / "run", evals=[(2, interrupt)])
    newest = tmp_path / "run/state/state.safetensors"
    if name == "next":
        newest = newest.rename(newest.with_name("next.safetensors"))
    whole = bytearray(newest.read_bytes())
    whole[-50] ^= 8
    newest.write_bytes(whole)
    sl.fit(model(), train, settings, out=tmp_path / "run")
    sl.fit(model(), train, settings, out=tmp_path / "whole")
    assert "state.safetensors is damaged" in caplog.text
    assert (tmp_path / "run/state/state.safetensors.damaged").read_bytes() == whole
    for file in ("model.safetensors", "state/state.safetensors", "state/before.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_run_of_version_0_2_resumes_with_its_number_of_threads(stopped, tmp_path, caplog):
    shutil.copytree(stopped, tmp_path / "run")
    record = tmp_path / "run/run.json"
    about, seen = json.loads(record.read_text()), []
    about["machine"]["threads"] = 3
    about["identity"].pop("version")
    about["identity"]["data"]["train"] = about["identity"]["model"]["weights"] = "0123456789abcdef"
    record.write_text(json.dumps(about))
    evals = [(1, lambda _: seen.append(torch.get_num_threads()))]
    assert sl.fit(model(), data()[0], recipe(ema=0.9), out=tmp_path / "run", evals=evals).finished
    assert set(seen) == {3}
    assert torch.get_num_threads() == 1
    assert "began with 3 threads" in caplog.text
    assert "cannot be compared" in caplog.text
    with pytest.raises(ValueError, match=r"recipe\.ema"):
        sl.fit(model(), data()[0], recipe(ema=0.5), out=tmp_path / "run")


class Killed(BaseException):
    """The process ends here."""


def killing(part):
    """Instead of write_safetensors: so much of the file, under the name that it has until it is complete."""

    def write(path, tensors, header, **settings):
        write_safetensors(path, tensors, header, **settings)
        whole = path.read_bytes()
        path.unlink()
        if part is not None:
            path.with_name(f".{path.name}.x1y2z3").write_bytes(whole[: int(part * len(whole))])
        raise Killed

    return write


@pytest.mark.parametrize("part", [None, 0.5, 1])
def test_a_kill_while_the_first_state_is_written_changes_nothing(part, tmp_path, monkeypatch):
    train, val = data()
    settings = recipe(loss="sigmoid", head_bias=-2.3, save_every=2, ema=0.9)
    whole = sl.fit(model(), train, settings, val=val, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_safetensors", killing(part))
        with pytest.raises(Killed):
            sl.fit(model(), train, settings, val=val, out=tmp_path / "killed")
    assert (tmp_path / "killed/state").is_dir()
    killed = sl.fit(model(), train, settings, val=val, out=tmp_path / "killed")
    assert losses(killed) == losses(whole)
    for name in ("model.safetensors", "best.safetensors", "state/state.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("changes", [{}, {"ema": 0.9}, {"optimizer": "sgd"}, {"task": "masked"}], ids=str)
def test_every_tensor_comes_back_bit_by_bit(changes, tmp_path):
    train, _ = data()
    settings = recipe(**changes)
    whole = sl.fit(model(), train, settings, out=tmp_path / "whole")
    with pytest.raises(sl.training.Stopped):
        sl.fit(model(), train, settings, out=tmp_path / "halves", evals=[(2, interrupt)])
    halves = sl.fit(model(), train, settings, out=tmp_path / "halves")
    assert losses(halves) == losses(whole)
    a, b = (tmp_path / name / "state/state.safetensors" for name in ("whole", "halves"))
    assert a.read_bytes() == b.read_bytes()
