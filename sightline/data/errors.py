"""Errors of the data room. Each is a ValueError: the user can fix it, the command line prints one sentence."""

import os
from collections.abc import Mapping
from pathlib import Path


class BadImage(ValueError):  # noqa: N818  (a name for users)
    """An image that cannot be read or is not accepted: broken, too large, of an unknown format.

    >>> sl.open_images(["no-such.png"], sl.ImageSpec(size=(8, 8)))
    Traceback (most recent call last):
        ...
    sightline.data.errors.BadImage: no-such.png cannot be read ([Errno 2] No such file or directory: 'no-such.png').
    """


class TooManyBad(ValueError):  # noqa: N818
    """Too many images of a dataset cannot be read to continue. `bad` maps the name of each to the reason.

    >>> sl.data.TooManyBad({"a.jpg": "truncated"}, 50).bad
    {'a.jpg': 'truncated'}
    """

    def __init__(self, bad: Mapping[str, str], total: int):
        self.bad, self.total = dict(bad), total
        listed = "; ".join(f"{name} ({reason})" for name, reason in sorted(self.bad.items()))
        super().__init__(f"{len(self.bad)} of {total} images cannot be read, more than 1 %: {listed}.")

    def __reduce__(self) -> tuple[type, tuple[dict[str, str], int]]:
        return TooManyBad, (self.bad, self.total)  # so that a worker process can send it


def printable(path: str | bytes | Path) -> str:
    """A path as one printable line: file names may contain newlines, control codes and bytes that are not UTF-8."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class FetchError(ValueError):
    """A file could not be fetched; the message says which, from where and why."""


class UnreachableError(FetchError):
    """The server could not be reached; trying later, or from another network, may help."""
