"""What operating systems do differently with files: locks between processes, reads at an offset."""

import errno
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLL = 0.05  # seconds between two attempts to get a lock
BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_THREADS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_SEEK = threading.Lock()

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    def _unlock(handle: int) -> None:
        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(handle: int) -> None:  # lockf, not flock: child processes that load images do not inherit it
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(handle: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_UN)


@contextmanager
def lock(path: str | Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock file `path`, which is created where it is missing: one process, and one thread of it, at a time.

    Without `wait`, BlockingIOError is raised if it is already held. The system releases the lock when the process
    ends, however it ends. On a file system without locks, the caller proceeds without one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    thread = _THREADS[os.path.realpath(path)]  # a process's own locks do not exclude each other
    if not thread.acquire(blocking=wait):
        raise BlockingIOError(errno.EAGAIN, "another thread holds the lock", str(path))
    try:
        with path.open("a") as file:  # "w" would empty whatever a link of this name points to
            held = _acquire(file.fileno(), path, wait)
            try:
                yield
            finally:
                if held:
                    _unlock(file.fileno())
    finally:
        thread.release()


def _acquire(handle: int, path: Path, wait: bool) -> bool:
    """Whether the lock is held; False if the file system has no locks."""
    while True:
        try:
            _lock(handle)
            return True
        except OSError as error:
            if error.errno not in BUSY:
                return False
            if not wait:
                raise BlockingIOError(errno.EAGAIN, "another process holds the lock", str(path)) from error
        time.sleep(POLL)


def open_for_reads(path: str | Path) -> int:
    """A file descriptor for `read_at`."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))


def read_at(handle: int, size: int, offset: int) -> bytes:
    """`size` bytes from `offset`, fewer at the end of the file. Threads may share the descriptor."""
    if hasattr(os, "pread"):
        return os.pread(handle, size, offset)
    with _SEEK:  # Windows
        os.lseek(handle, offset, os.SEEK_SET)
        return os.read(handle, size)
