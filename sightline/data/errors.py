"""What can be wrong with data. Each is a ValueError: the user can mend it, the command line says it in a sentence."""

import os
from collections.abc import Mapping
from pathlib import Path


class BadImage(ValueError):  # noqa: N818  (it is thrown at people, not at programmers)
    """An image that cannot be read, or that is refused: broken, too large, of an unknown format.

    >>> sl.open_images(["no-such.png"], sl.ImageSpec(size=(8, 8)))
    Traceback (most recent call last):
        ...
    sightline.data.errors.BadImage: no-such.png cannot be read ([Errno 2] No such file or directory: 'no-such.png').
    """


class TooManyBad(ValueError):  # noqa: N818
    """So many images of a dataset are bad that going on would be pretending. `bad` maps each name to its reason.

    >>> sl.data.TooManyBad({"a.jpg": "truncated"}, 50).bad
    {'a.jpg': 'truncated'}
    """

    def __init__(self, bad: Mapping[str, str], total: int):
        self.bad, self.total = dict(bad), total
        listed = "; ".join(f"{name} ({reason})" for name, reason in sorted(self.bad.items()))
        super().__init__(f"{len(self.bad)} of {total} images are bad, more than 1 %: {listed}.")

    def __reduce__(self) -> tuple[type, tuple[dict[str, str], int]]:
        return TooManyBad, (self.bad, self.total)  # so that it travels from a worker process whole


def printable(path: str | bytes | Path) -> str:
    """A path as one printable line: file names may hold newlines, escape codes and bytes that are not UTF-8."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class FetchError(ValueError):
    """Something could not be had; the message says what, from where and why."""


class UnreachableError(FetchError):
    """The place could not be reached now; it may be later, or from elsewhere."""
