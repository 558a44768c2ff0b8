"""Make the n-th write, rename or sync of a command fail, or kill the process there."""

import builtins
import errno
import io
import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from unittest import mock

KINDS = ("write", "replace", "fsync")
WRITING = set("wax+")


class Faults:
    """While this is open, calls are counted, and the one that `at` names, such as ("write", 3), fails or kills.

    A write that fails has written half of its bytes.
    """

    def __init__(self, at: tuple[str, int] | None = None, *, kill: bool = False):
        self.at, self.kill, self.calls = at, kill, Counter()

    def __enter__(self):
        self.patches = [
            mock.patch.object(os, "fsync", self._call("fsync", os.fsync)),
            mock.patch.object(os, "replace", self._call("replace", os.replace)),
            mock.patch.object(io, "open", self._open(io.open)),
            mock.patch.object(builtins, "open", self._open(builtins.open)),
        ]
        for patch in self.patches:
            patch.start()
        return self

    def __exit__(self, *error):
        for patch in self.patches:
            patch.stop()

    def due(self, kind: str) -> bool:
        self.calls[kind] += 1
        return self.at == (kind, self.calls[kind])

    def strike(self) -> None:
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, "No space left on device (injected)")

    def _call(self, kind, real):
        def call(*args, **settings):
            if self.due(kind):
                self.strike()
            return real(*args, **settings)

        return call

    def _open(self, real):
        def call(file, mode="r", *args, **settings):
            opened = real(file, mode, *args, **settings)
            return Fragile(opened, self) if WRITING & set(mode) and isinstance(file, str | os.PathLike) else opened

        return call


class Fragile:
    """A file whose writes are counted."""

    def __init__(self, file, faults: Faults):
        self.file, self.faults = file, faults

    def write(self, data):
        if self.faults.due("write"):
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            self.faults.strike()
        return self.file.write(data)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __iter__(self):
        return iter(self.file)

    def __getattr__(self, name):
        return getattr(self.file, name)


TIMES = re.compile(r"run\.json|(.+\.)?spent\.json|output\.txt")  # when and how something was done


def content(folder: Path) -> dict[str, bytes]:
    """What must be the same however often a command was interrupted: all but times and speeds."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and not TIMES.fullmatch(p.name)]
    return {str(p.relative_to(folder)): _lasting(p) for p in files}


def _lasting(path: Path) -> bytes:
    if path.name != "log.jsonl":
        return path.read_bytes()
    rows = map(json.loads, path.read_text().splitlines())
    return json.dumps(
        [{k: v for k, v in row.items() if k.startswith(("step", "train/", "val/"))} for row in rows]
    ).encode()
