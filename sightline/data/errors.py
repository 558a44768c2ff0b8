"""Errors of the data room. Each is a ValueError: the user can fix it, the command line prints one sentence."""

from collections.abc import Mapping

from sightline.untrusted import printable as printable  # most of the room imports it from here

LISTED = 10  # images that a message names


class BadImage(ValueError):  # noqa: N818  (a name for users)
    """An image that cannot be read or is not accepted: broken, too large, of an unknown format.

    >>> sl.open_images(["no-such.png"], sl.ImageSpec(size=(8, 8)))
    Traceback (most recent call last):
        ...
    sightline.data.errors.BadImage: There is no image no-such.png.
    """


class TooManyBad(ValueError):  # noqa: N818
    """Too many images of a dataset cannot be read to continue. `bad` maps the name of each to the reason.

    >>> sl.data.TooManyBad({"a.jpg": "truncated"}, 50).bad
    {'a.jpg': 'truncated'}
    """

    def __init__(self, bad: Mapping[str, str], total: int):
        self.bad, self.total = dict(bad), total
        listed = "; ".join(f"{name} ({reason.rstrip('.')})" for name, reason in sorted(self.bad.items())[:LISTED])
        more = " ..." if len(self.bad) > LISTED else ""
        super().__init__(
            f"{len(self.bad)} of {total} images cannot be read, more than 1 %: {listed}{more}. Remove or replace them; "
            "sightline data check DATA lists all."
        )

    def __reduce__(self) -> tuple[type, tuple[dict[str, str], int]]:
        return TooManyBad, (self.bad, self.total)  # so that a worker process can send it


class FetchError(ValueError):
    """A file could not be fetched; the message says which, from where and why."""


class UnreachableError(FetchError):
    """The server could not be reached; trying later, or from another network, may help."""
