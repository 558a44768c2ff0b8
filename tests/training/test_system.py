"""What depends on the operating system, and what happens where it has no such thing."""

import math
import os
import signal
import subprocess
import sys
import threading

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


FAULTS = """
import resource, sys
from sightline.training.system import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(64 * 2**20)[::4096]
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_freed_memory_is_kept_unless_the_user_has_a_wish():
    def faults(word, **around):
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}, **around}
        return subprocess.run([sys.executable, "-c", FAULTS, word], capture_output=True, text=True, env=env).stdout

    assert int(faults("plain").split()[1]) > 1000
    kept, count = faults("keep").split()
    assert (kept, int(count) < 200) == ("True", True)
    assert faults("keep", MALLOC_TOP_PAD_="0").split()[0] == "False"
