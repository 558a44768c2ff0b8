"""What depends on the operating system, and what happens where it has no such thing."""

import math
import signal
import sys
import threading
from functools import partial

import pytest

from sightline.training import system


@pytest.fixture
def elsewhere(monkeypatch):
    """A system without POSIX's modules."""
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(sys, "platform", "win32")


def test_fallbacks(elsewhere):
    assert math.isnan(system.peak_memory())
    assert system.address_space_limit() is None


def test_memory_of_this_process():
    assert 1 < system.peak_memory() < 2**20


def test_the_first_signal_is_caught_and_the_second_is_not(request):
    # a shell that starts the tests in the background lets them ignore this signal
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
