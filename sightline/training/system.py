"""What depends on the operating system: signals, memory limits. Each has a fallback for the others."""

import math
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def catch_stop_signals() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set the event instead of ending the process; a second one has its usual effect.

    Outside the main thread, where Python cannot catch signals, the event is never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, _: Any) -> None:
        stop.set()
        signal.signal(number, before[number])  # type: ignore[index]

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def peak_memory() -> float:
    """MiB that this process has used at most so far; NaN where the system does not say."""
    if sys.platform.startswith("linux"):
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 2**10
    try:
        import resource
    except ImportError:
        return math.nan
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS counts in bytes


def address_space_limit() -> int | None:
    """Bytes that `ulimit -v` allows this process; None without a limit, or where there is no such thing."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, AttributeError, OSError, ValueError):
        return None
    return None if soft == resource.RLIM_INFINITY else soft
