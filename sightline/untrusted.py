"""Files and text of unknown origin: only regular files are opened, JSON has any depth, and text is safe to print."""

import errno
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

TEXT_LIMIT = 1 << 28  # bytes
SHOWN = 10  # names in a list
LONG = 1000  # characters of a path that are printed; those in a manifest may have any number


def printable(path: str | bytes | Path) -> str:
    """A path as one printable line: file names may contain newlines, control codes and bytes that are not UTF-8."""
    text = escape_controls(os.fsencode(path).decode("utf-8", "backslashreplace"))
    return text if len(text) <= LONG else f"{text[: LONG // 2]} ... {text[-LONG // 2 :]}"


def escape_controls(text: str) -> str:
    r"""A text in which every character is visible: a terminal obeys control codes, and some of them hide others.

    >>> escape_controls("cat\x1b[2J.jpg")
    'cat\\x1b[2J.jpg'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def listed(names: Iterable[object]) -> str:
    """The first few names of many, to be printed."""
    several = [f"{escape_controls(str(name)):.80}" for name, _ in zip(names, range(SHOWN + 1))]
    return ", ".join(several[:SHOWN]) + (" ..." if len(several) > SHOWN else "")


def open_regular(path: str | Path) -> IO[bytes]:
    """A regular file, opened for reading. Pipes and devices, which may block or never end, are refused (OSError)."""
    file = open(path, "rb", opener=_open_nonblocking)  # noqa: SIM115  (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return file


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_text(path: str | Path) -> str:
    """The text of a regular file, as `read_bytes`."""
    return read_bytes(path).decode("utf-8")


def read_bytes(path: str | Path) -> bytes:
    """A small regular file. FileNotFoundError if there is none; ValueError for anything else that is wrong."""
    try:
        with open_regular(path) as file:
            if (size := os.fstat(file.fileno()).st_size) > TEXT_LIMIT:
                raise ValueError(f"it has {size:,} bytes; at most {TEXT_LIMIT:,} are read")
            return file.read()
    except OSError as error:
        if not os.path.lexists(path):
            raise
        raise ValueError(f"it cannot be read: {error.strerror or error}") from error


def read_json(path: str | Path) -> Any:
    """The JSON in a regular file. FileNotFoundError or ValueError, as `read_text`."""
    return parse_json(read_text(path))


def parse_json(text: str | bytes) -> Any:
    """JSON, where nesting that Python cannot follow is an error like any other."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
