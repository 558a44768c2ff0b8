"""Writing files so that nothing is lost: complete or not there at all, one process at a time; and reads at an offset.

Why not the filelock package: it takes locks that child processes inherit, so a process that loads images would keep the
lock of a run that was killed.
"""

import errno
import os
import re
import stat
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

POLL = 0.05  # seconds between two attempts to get a lock
BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
PARTIAL = ".partial"  # how a file's name ends until it is complete
# what a killed process leaves behind; version 0.2.0 gave such files no ending of their own
LEFTOVER = re.compile(rf"\..+{re.escape(PARTIAL)}|\..+\.(safetensors|jsonl?|npz|html|md)\.[a-z0-9_]{{8}}")
_THREADS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_HELD: dict[Path, int] = {}  # the lock files of this process, and their descriptors
_SEEK = threading.Lock()

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(handle: int) -> None:  # lockf, not flock: child processes that load images do not inherit it
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def exclusive(given: str | Path) -> Iterator[None]:
    """Write to a folder as the only process: a second one is refused in a sentence.

    What a killed process has left half written is removed first. While this is open, `atomic` and `append` refuse to
    write into the folder if somebody has moved it. A folder in which nothing was written is removed again.
    """
    folder = Path(given).absolute()
    with ExitStack() as stack:
        stack.callback(_remove_if_empty, folder)
        stack.enter_context(_only_writer(folder / ".lock", given))
        remove_leftovers(folder)
        yield


@contextmanager
def exclusive_file(path: str | Path) -> Iterator[None]:
    """Write one file as the only process, over a longer time; a second one is refused."""
    path = Path(path)
    with _only_writer(path.with_name(f".{path.name}.lock"), path):
        yield


@contextmanager
def _only_writer(path: Path, what: str | Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(path, wait=False))
        except BlockingIOError:
            raise ValueError(
                f"Another process is writing to {what}: wait until it has ended, or write elsewhere."
            ) from None
        yield


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Remove files that were never completed, in a folder and its subfolders."""
    for place in (folder, *(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())):
        for path in place.iterdir():
            if LEFTOVER.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                path.unlink(missing_ok=True)


@contextmanager
def lock(path: str | Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock file `path`: one process, and one thread of it, at a time. The file exists only that long.

    Without `wait`, BlockingIOError is raised if it is already held. The system releases the lock when the process
    ends, however it ends. On a file system without locks, the caller proceeds without one.
    """
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    thread = _THREADS[os.path.realpath(path)]  # a process's own locks do not exclude each other
    if not thread.acquire(blocking=wait):
        raise BlockingIOError(errno.EAGAIN, "another thread holds the lock", str(path))
    try:
        handle = _hold(path, wait)
        _HELD[path] = handle
        try:
            yield
        finally:
            del _HELD[path]
            if _is_same_file(path, handle):
                with suppress(OSError):  # Windows keeps an open file
                    path.unlink()
            os.close(handle)  # which releases it
    finally:
        thread.release()


def _hold(path: Path, wait: bool) -> int:
    """The descriptor of the locked file. Whoever held it before may have removed it in the meantime: then once more."""
    while True:
        handle = _open_lock(path)
        try:
            locked = _acquire(handle, path, wait)
        except BaseException:
            os.close(handle)
            raise
        if not locked or _is_same_file(path, handle):
            return handle
        os.close(handle)


def _open_lock(path: Path) -> int:
    """A link could lead to somebody's file, and a pipe would wait for ever."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if path.is_symlink():
        raise ValueError(f"{path} is a link, but a lock must be a plain file: remove it.")
    handle = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path} is not a plain file, but a lock must be one: remove it.")
    return handle


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


def _is_same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False


def check_in_place(path: Path) -> None:
    """Refuse to write below a locked folder that was moved since, or through a link in it: nobody would find it."""
    path = path.absolute()
    for held, handle in _HELD.items():
        if held.parent not in path.parents:
            continue
        if not _is_same_file(held, handle):
            raise ValueError(
                f"{held.parent} was moved or removed while this process was writing to it ({held.name} is gone): "
                "move it back, or run the same command with the folder where it is now."
            )
        _refuse_links(path, held.parent)


def _refuse_links(path: Path, above: Path) -> None:
    """A link in a folder that somebody sent could lead anywhere."""
    for folder in path.relative_to(above).parents:
        if (above / folder).is_symlink() and folder != Path():
            raise ValueError(
                f"{above / folder} is a link to another folder, and nothing is written through links: remove it, "
                "or write to a new folder."
            )


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """A file beside `path` to write into; it takes the place of `path` in one step, or vanishes on any error."""
    path = Path(path)
    check_in_place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        publish(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def publish(partial: Path, path: Path) -> None:
    """Give a complete file its name, such that a power failure leaves the old file or the new one."""
    check_in_place(path)
    sync(partial)
    os.chmod(partial, 0o666 & ~_umask())
    os.replace(partial, path)
    sync_folder(path.parent)


def append(path: Path, text: str) -> None:
    """Add a line to a log."""
    check_in_place(path)
    with open_log(path) as file:
        file.write(text)


def open_log(path: Path) -> IO[str]:
    """A text file to add to. A link in a folder that somebody sent could lead anywhere, and a pipe would wait."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} is not a plain file, but a log must be one: remove it.")
    return open(path, "a", encoding="utf-8", opener=_open_plain)


def _open_plain(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that it is in nobody's way and nothing is lost."""
    check_in_place(path)
    aside = path.with_name(f"{path.name}.damaged")
    os.replace(path, aside)
    return aside


def sync(path: Path) -> None:
    """Wait until the file's content is on the disk."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until a folder's names are on the disk, where the system offers that."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # no such thing on this file system
            raise
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
