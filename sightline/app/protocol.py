"""What travels between page and server: JSON to the server, and back frames of a JSON header and raw bytes."""

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.spec import from_json, to_json

LONGEST = 200_000  # characters of one message
Message = dict[str, Any]


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray] | None = None) -> bytes:
    """One frame: the length of the header (4 bytes, little endian), the header, then the arrays one after the other."""
    made = {name: np.ascontiguousarray(a) for name, a in (arrays or {}).items()}
    listed = [{"name": n, "shape": list(a.shape), "type": a.dtype.name} for n, a in made.items()]
    text = to_json({**header, "arrays": listed}).encode()
    text += b" " * (-len(text) % 4)  # float32 arrays start at a multiple of four
    body = b"".join(a.tobytes() + b"\0" * (-a.nbytes % 4) for a in made.values())
    return struct.pack("<I", len(text)) + text + body


def unpack(frame: bytes) -> tuple[dict[str, Any], dict[str, NDArray]]:
    """The header and the arrays of a frame."""
    (length,) = struct.unpack_from("<I", frame)
    header, at = json.loads(frame[4 : 4 + length]), 4 + length
    arrays = {}
    for about in header.pop("arrays"):
        kind = np.dtype(about["type"])
        size = int(np.prod(about["shape"], dtype=np.int64)) * kind.itemsize
        arrays[about["name"]] = np.frombuffer(frame, kind, count=size // kind.itemsize, offset=at).reshape(
            about["shape"]
        )
        at += size + -size % 4
    return header, arrays


def quantize(maps: NDArray) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Maps (..., cells) as bytes, and what 255 stands for in each: the page's numbers are peaks, not bytes."""
    known = np.nan_to_num(maps)
    peaks = known.max(-1, initial=0).astype(np.float32)
    share = np.clip(known / np.maximum(peaks, 1e-12)[..., None], 0, 1)
    return np.round(share * 255).astype(np.uint8), peaks


def parse(text: str) -> Message:
    """A message from the page."""
    if len(text) > LONGEST:
        raise ValueError(f"A message has at most {LONGEST:,} characters.")
    try:
        message = from_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("A message is JSON.") from error
    if not isinstance(message, dict) or not isinstance(message.get("do"), str):
        raise ValueError('A message is an object with "do".')
    return message


def whole(message: Message, key: str, count: int) -> int:
    """A number from 0 to count - 1."""
    value = message.get(key, 0)
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"{key} is a number from 0 to {count - 1}; got {str(value)[:40]!r}.")
    return value


def spot_of(message: Message) -> tuple[float, float] | None:
    """The position (x, y) within 0..1, or None: the class token."""
    if message.get("x") is None:
        return None
    x, y = (_share(message.get(key)) for key in ("x", "y"))
    return x, y


def _share(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise ValueError("x and y are numbers from 0 to 1.")
    return float(value)


def words(message: Message, key: str) -> list[str]:
    """A short list of short words."""
    value = message.get(key, [])
    if not isinstance(value, list) or len(value) > 2000 or not all(isinstance(v, str) and len(v) < 60 for v in value):
        raise ValueError(f"{key} is a list of words.")
    return value
