"""What the operating system refuses or offers: full disks, links, pipes, depth; and what a terminal obeys."""

import errno
import io
import logging
import os
import signal
import sys

import numpy as np
import pytest
from PIL import Image

import sightline as sl
from sightline.cli import main
from sightline.cli.shell import VisibleLines, os_sentence
from sightline.files import append
from sightline.progress import ProgressBar
from sightline.training.run.checkpoint import read_facts

posix = pytest.mark.skipif(os.name != "posix", reason="pipes and links are those of POSIX")


def complaint(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([str(w) for w in words])
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture
def folder(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(2):
            pixels = np.random.default_rng(i + len(name)).integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{i}.png")
    return tmp_path / "data"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_what_the_system_refuses_is_a_sentence(number, capsys, monkeypatch, folder, tmp_path):
    def refuse(*arguments, **options):
        raise OSError(number, os.strerror(number), str(tmp_path / "sheet.png"))

    monkeypatch.setattr("sightline.data.quality.checks.save_sheet", refuse)
    said = complaint(capsys, "data", "check", folder, "--sheet", tmp_path / "sheet.png")
    assert "sheet.png cannot be used" in said
    assert os.strerror(number) in said


def test_the_sentence_names_both_files_and_what_to_do():
    error = OSError(errno.ENOSPC, "No space left on device", "a.part", None, "a.npz")
    said = "a.part and a.npz cannot be used (No space left on device): free some space, or write elsewhere."
    assert os_sentence(error) == said
    assert os_sentence(OSError("odd")) == "A file cannot be used (odd)."


@posix
def test_links_that_lead_nowhere_or_to_themselves(folder):
    os.symlink(folder / "cat" / "gone.png", folder / "cat" / "2.png")
    os.symlink(folder / "cat" / "self.png", folder / "cat" / "self.png")
    os.symlink(folder / "loop", folder / "loop")
    os.symlink(folder, folder / "dog" / "above")
    data = sl.Folder(folder)
    assert len(data) == 6
    kinds = sl.data.check(data).counts()
    assert kinds["unreadable"] == 2
    assert len(sl.data.Folder(folder / "dog").paths) == 2


PIPES = {
    "weights": lambda p: sl.load(p / "pipe.npz"),
    "hub config": lambda p: sl.load(p / "hub"),
    "arrays": lambda p: sl.dataset(p / "pipe.npz"),
    "labels": lambda p: sl.dataset(p / "pipe.csv"),
    "shard": lambda p: sl.dataset(p / "pipe.tar"),
    "features": lambda p: sl.evals.FeatureTable.read(p / "pipe.npz"),
    "result": lambda p: sl.Result.load(p / "pipe.npz"),
    "training state": lambda p: read_facts(p / "run"),
    "labels of ReaL": lambda p: sl.evals.score_real([0], p / "pipe.npz"),
    "image": lambda p: sl.open_images(p / "pipe.png", sl.ImageSpec(size=(8, 8))),
}


@posix
@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_where_a_file_is_expected_is_refused_and_nothing_hangs(name, tmp_path):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "model.safetensors").write_bytes(b"")
    (tmp_path / "run").mkdir()
    for pipe in ("pipe.npz", "pipe.csv", "pipe.tar", "pipe.png", "hub/config.json", "run/state.safetensors"):
        os.mkfifo(tmp_path / pipe)

    def hanging(*_):
        pytest.fail("it waits for the other end of the pipe")

    before = signal.signal(signal.SIGALRM, hanging)
    signal.alarm(30)
    try:
        with pytest.raises(ValueError, match="regular file"):
            PIPES[name](tmp_path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@posix
def test_a_link_where_a_partial_file_is_expected_leads_nobody_astray(tmp_path):
    (tmp_path / "victim").write_text("mine")
    for name in (".f.safetensors.part", ".f.safetensors.part.json", "log.txt"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    data = sl.dataset("scenes/shape", num=4, size=16)
    sl.extract(sl.build("vit-nano4", classes=8, size=16, depth=1), data, out=tmp_path / "f.safetensors")
    with pytest.raises(ValueError, match=r"log.txt is not a plain file"):
        append(tmp_path / "log.txt", "more")
    assert (tmp_path / "victim").read_text() == "mine"


@posix
@pytest.mark.parametrize("name", ["figures", "data"])
def test_a_linked_folder_in_a_report_is_not_written_through(tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / name).symlink_to(tmp_path / "mine")
    mass = sl.analysis.ObjectMass(title="Mass", caption="", mass=np.array([0.6, 0.5]), area=np.array([0.2, 0.1]))
    with pytest.raises(ValueError, match=rf"sent/{name} is a link to another folder"):
        sl.write_report([mass], tmp_path / "sent")
    assert not list((tmp_path / "mine").iterdir())


@pytest.fixture
def nested(tmp_path):
    """An image below 1,500 folders, which no one else could remove."""
    here, place = os.getcwd(), tmp_path / "data"
    place.mkdir()
    try:
        os.chdir(place)
        for _ in range(1500):
            os.mkdir("a")
            os.chdir("a")
        Image.new("RGB", (8, 8), "red").save("deep.png")
        os.chdir(here)
        yield place
    finally:
        os.chdir(here)
        _remove_nested(place)


@posix
def test_fifteen_hundred_nested_folders(nested):
    assert len(sl.Folder(nested)) == 1
    assert sl.open_images(nested, sl.ImageSpec(size=(8, 8))).shape == (1, 3, 8, 8)


def _remove_nested(place):
    """From the inside: whatever descends by calling itself cannot."""
    paths = [os.fspath(place)]
    while os.path.isdir(inner := os.path.join(paths[-1], "a")):
        paths.append(inner)
    os.unlink(os.path.join(paths[-1], "deep.png"))
    for path in reversed(paths):
        os.rmdir(path)


def test_json_in_json_in_json(tmp_path, capsys):
    deep = "[" * 100_000
    sl.save(sl.build("vit-nano4"), tmp_path / "model.safetensors", probes=False)
    (tmp_path / "config.json").write_text(deep)
    (tmp_path / "list.jsonl").write_text(deep + "\n")
    assert "nested too deeply" in complaint(capsys, "convert", tmp_path, tmp_path / "out.npz", "--to", "npz")
    assert "nested too deeply" in complaint(capsys, "data", "info", tmp_path / "list.jsonl")


ESCAPE = "evil\x1b]0;owned\x07\x1b[2J[red]"


@posix
def test_names_reach_the_terminal_without_control_codes_and_markup(capsys, folder, monkeypatch):
    os.rename(folder / "cat", folder / ESCAPE)
    (folder / ESCAPE / f"{ESCAPE}.png").write_bytes(b"no image")
    main(["data", "check", str(folder)])
    main(["data", "info", str(folder)])
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "\x07" not in said.out + said.err
    assert "[red]" in said.out
    assert "\\x1b" in complaint(capsys, "data", "info", folder / f"{ESCAPE}.csv")
    record = logging.LogRecord("sightline", logging.WARNING, "", 0, "bad %s", (ESCAPE,), None)
    assert VisibleLines().format(record) == r"bad evil\x1b]0;owned\x07\x1b[2J[red]"


def test_progress_shows_names_as_they_are(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = ProgressBar("checking [/red]\x07", total=3)
    assert bar.start()
    bar.print("[bold]\x07")
    bar.stop()
    assert "[/red]\\x07" in sys.stderr.getvalue()
    assert "[bold]\\x07" in sys.stderr.getvalue()


def test_a_model_from_a_file_is_announced(tmp_path, caplog):
    (tmp_path / "nets.py").write_text("import sightline as sl\n\ndef small():\n    return sl.build('vit-nano4')\n")
    sl.observe.open_model(f"{tmp_path}/nets.py:small")
    assert "Running" in caplog.text
    assert "nets.py" in caplog.text
