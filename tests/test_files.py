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


def test_a_lock_that_is_a_link_leaves_its_target_as_it_was(tmp_path):
    (tmp_path / "note").write_text("keep")
    os.symlink(tmp_path / "note", tmp_path / "x.lock")
    with files.lock(tmp_path / "x.lock"):
        pass
    assert (tmp_path / "note").read_text() == "keep"


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
