"""Locks between processes and threads, and reads at an offset, whatever the system offers."""

import errno
import os
import subprocess
import sys
import threading
import time

import pytest

from sightline import files

CHILD = """
import sys, time
from sightline.files import lock
with lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock."""
    command = [sys.executable, "-c", CHILD, str(tmp_path / "x.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_lock_of_another_process_is_refused_or_awaited(other, tmp_path):
    with pytest.raises(BlockingIOError, match="another process"), files.lock(tmp_path / "x.lock", wait=False):
        pass
    timer = threading.Timer(0.2, other.stdin.close)
    timer.start()
    with files.lock(tmp_path / "x.lock"):
        assert other.wait() == 0
    timer.join()


def test_a_lock_ends_with_its_process(other, tmp_path):
    other.kill()
    other.wait()
    with files.lock(tmp_path / "x.lock", wait=False):
        pass


def test_threads_exclude_each_other(tmp_path):
    inside, most = [], []

    def work():
        with files.lock(tmp_path / "folder" / "x.lock"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert most == [1] * 5
    again = files.lock(tmp_path / "x.lock", wait=False)
    with files.lock(tmp_path / "x.lock"), pytest.raises(BlockingIOError, match="another thread"), again:
        pass


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without links and pipes")
def test_a_lock_that_is_a_link_or_a_pipe_is_refused(tmp_path):
    (tmp_path / "note").write_text("keep")
    os.symlink(tmp_path / "note", tmp_path / "x.lock")
    os.symlink(tmp_path / "nothing", tmp_path / "y.lock")
    os.mkfifo(tmp_path / "z.lock")
    for name in ("x", "y", "z"):
        with pytest.raises(ValueError, match=f"{name}.lock is .*: remove it"), files.lock(tmp_path / f"{name}.lock"):
            pass
    assert (tmp_path / "note").read_text() == "keep"
    assert not (tmp_path / "nothing").exists()


def test_a_lock_file_lasts_as_long_as_the_lock(other, tmp_path):
    other.stdin.close()
    with files.lock(tmp_path / "x.lock"):
        assert (tmp_path / "x.lock").exists()
    assert not (tmp_path / "x.lock").exists()


def test_a_folder_has_one_writer_and_no_leftovers(tmp_path):
    folder, file = tmp_path / "runs" / "x", tmp_path / "runs" / "x" / "a.json"
    with pytest.raises(KeyError), files.exclusive(folder):
        raise KeyError
    assert not folder.exists()
    with files.exclusive(folder):
        with files.atomic(file) as partial:
            partial.write_text("whole")
        with pytest.raises(ValueError, match=r"Another process is writing to .*x: wait"), files.exclusive(folder):
            pass
    (folder / "state").mkdir()
    mine = [folder / ".gitignore", folder / ".a.json", folder / ".notes.settings", folder / "b.partial"]
    old = [folder / ".a.json.x1y2z3w4", folder / ".a.json.abcdefgh.partial", folder / "state/.s.safetensors.abcd_fgh"]
    for path in (*mine, *old):
        path.write_text("")
    with files.exclusive(folder):
        pass
    assert sorted(p for p in folder.rglob("*") if p.is_file()) == sorted([file, *mine])


def test_a_folder_that_is_moved_while_it_is_written_is_not_made_again(tmp_path):
    with files.exclusive(tmp_path / "x"):
        with files.atomic(tmp_path / "x/a") as partial:
            partial.write_text("1")
        (tmp_path / "x").rename(tmp_path / "y")
        with pytest.raises(ValueError, match=r"/x was moved or removed"), files.atomic(tmp_path / "x/b"):
            pass
    assert not (tmp_path / "x").exists()
    assert (tmp_path / "y/a").read_text() == "1"


def test_a_disk_without_locks_is_no_error(tmp_path, monkeypatch):
    def none(handle):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(files, "_lock", none)
    with files.lock(tmp_path / "x.lock"):
        pass


@pytest.mark.parametrize("portable", [False, True])
def test_reads_at_an_offset(tmp_path, monkeypatch, portable):
    if portable:
        monkeypatch.delattr(os, "pread", raising=False)
    (tmp_path / "x").write_bytes(bytes(range(100)))
    handle = files.open_for_reads(tmp_path / "x")
    try:
        assert files.read_at(handle, 3, 97) == bytes([97, 98, 99])
        assert files.read_at(handle, 3, 5) == bytes([5, 6, 7])
        assert files.read_at(handle, 9, 95) == bytes(range(95, 100))
    finally:
        os.close(handle)
