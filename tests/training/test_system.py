"""What depends on the operating system, and what happens where it has no such thing."""

import math
import signal
import sys
import threading

import pytest

from sightline.training import system


@pytest.fixture
def elsewhere(monkeypatch):
    """A system without POSIX's modules."""
    for name in ("fcntl", "resource"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "platform", "win32")


def test_fallbacks(elsewhere, tmp_path):
    with (tmp_path / "lock").open("a") as file:
        assert system.try_lock(file)
    assert math.isnan(system.peak_memory())
    assert system.address_space_limit() is None


def test_a_disk_without_locks(monkeypatch, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    for number, free in ((11, False), (13, False), (95, True)):  # EAGAIN, EACCES, EOPNOTSUPP

        def fail(*_, number=number):
            raise OSError(number, "no")

        monkeypatch.setattr(fcntl, "lockf", fail)
        with (tmp_path / "lock").open("a") as file:
            assert system.try_lock(file) is free


def test_memory_of_this_process():
    assert 1 < system.peak_memory() < 2**20


def test_the_first_signal_is_caught_and_the_second_is_not():
    with system.catch_stop_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_catch_nothing():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def run():
        with system.catch_stop_signals() as stop:
            seen.append((stop.is_set(), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
