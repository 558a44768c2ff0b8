"""Seeded ways in which a file is damaged or forged: bytes at random, values in JSON, members of a zip, chunks of a PNG.

Checksums are made right again where a format has them (zip, PNG): otherwise nothing behind them would be reached.
"""

import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

Mutator = Callable[[bytes, random.Random], bytes]
NUMBERS = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
DEEP = "[" * 100_000
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 10**9, 2**63, 10**400, 0.5, -0.0, 1e308, "NaN", "-Infinity", "", "a", "\x1b[2J",
    "../../etc/passwd", "\ud800", "x" * 100_000, [], {}, [None], [[]], {"": None}, [1e9], [-1], ["a"] * 3,
)  # fmt: skip


def flip(data: bytes, chance: random.Random) -> bytes:
    """One to eight bytes replaced, more often near the beginning and the end, where headers are."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        if out:
            out[_place(out, chance)] = chance.randrange(256)
    return bytes(out)


def cut(data: bytes, chance: random.Random) -> bytes:
    """The file ends early, or a piece is missing, or stands twice."""
    place, length = _place(data, chance), chance.randint(1, 64)
    match chance.randrange(3):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + data[place + length :]
    return data[: place + length] + data[place:]


def overwrite(data: bytes, chance: random.Random) -> bytes:
    """An extreme number of two to eight bytes, in either order."""
    size = chance.choice((2, 4, 8))
    raw = (chance.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, chance.choice(("big", "little")))
    place = _place(data, chance)
    return data[:place] + raw + data[place + size :]


def digits(data: bytes, chance: random.Random) -> bytes:
    """Digits to other digits, or to many of them: shapes, offsets, sizes, labels."""
    out = bytearray(data)
    places = [i for i, byte in enumerate(out[:65_536]) if 48 <= byte <= 57]
    for _ in range(chance.randint(1, 3)):
        if places:
            place = chance.choice(places)
            if chance.random() < 0.2:
                out[place:place] = b"9" * chance.choice((3, 12, 30, 5000))
                places = places[:1]
            else:
                out[place] = chance.choice(b"0123456789-.e")
    return bytes(out)


def _place(data: bytes | bytearray, chance: random.Random) -> int:
    head = max(1, min(len(data), 2048))
    return max(
        0,
        chance.choice(
            (chance.randrange(head), chance.randrange(max(1, len(data))), len(data) - chance.randrange(head) - 1)
        ),
    )


RAW: tuple[Mutator, ...] = (flip, cut, overwrite, digits)


def raw(data: bytes, chance: random.Random) -> bytes:
    return chance.choice(RAW)(data, chance)


def text_json(data: bytes, chance: random.Random) -> bytes:
    """Values and keys of JSON replaced, removed, doubled; or the text damaged, or far too deep."""
    if chance.random() < 0.25:
        return raw(data, chance)
    if chance.random() < 0.03:
        return DEEP.encode()
    try:
        held = json.loads(data)
    except ValueError:
        return raw(data, chance)
    for _ in range(chance.randint(1, 3)):
        held = _swap(held, chance)
    return json.dumps(held).encode("utf-8", "surrogatepass")


def _swap(value: Any, chance: random.Random) -> Any:
    """One value, at any depth, becomes another."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        if chance.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _swap(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], _swap(value[place], chance), *value[place + 1 :]]
    return chance.choice(VALUES)


def lines_json(data: bytes, chance: random.Random) -> bytes:
    """One line of a JSONL file."""
    lines = data.splitlines()
    place = chance.randrange(len(lines))
    lines[place] = text_json(lines[place], chance)
    return b"\n".join(lines) + b"\n"


def table(data: bytes, chance: random.Random) -> bytes:
    """Cells of a CSV file."""
    if chance.random() < 0.3:
        return raw(data, chance)
    rows = [line.split(",") for line in data.decode().splitlines()]
    row = chance.choice(rows)
    cells = (
        "",
        "1000000000",
        "9" * 5000,
        '"',
        "../../x.png",
        "/dev/zero",
        "\x1b[31m",
        "x" * 200_000,
        "\0",
        "a\nb",
        "-1",
    )
    row[chance.randrange(len(row))] = chance.choice(cells)
    return "\n".join(",".join(r) for r in rows).encode()


def zipped(inner: Mutator) -> Mutator:
    """A member of a zip file, its checksum right again; sometimes the archive itself."""

    def mutate(data: bytes, chance: random.Random) -> bytes:
        if chance.random() < 0.4:
            return raw(data, chance)
        source = zipfile.ZipFile(io.BytesIO(data))
        members = {info: source.read(info) for info in source.infolist()}
        chosen = chance.choice(list(members))
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as target:
            target.comment = source.comment
            for info, body in members.items():
                target.writestr(info.filename, inner(body, chance) if info is chosen else body)
        return out.getvalue()

    return mutate


def headed_json(data: bytes, chance: random.Random) -> bytes:
    """The header of a safetensors file, its length right again; sometimes any byte."""
    if chance.random() < 0.4:
        return raw(data, chance)
    (length,) = struct.unpack("<Q", data[:8])
    head = text_json(data[8 : 8 + length], chance)
    return struct.pack("<Q", len(head)) + head + data[8 + length :]


def png(data: bytes, chance: random.Random) -> bytes:
    """A chunk of a PNG, its checksum right again; sometimes any byte."""
    if chance.random() < 0.4:
        return raw(data, chance)
    chunks, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    chosen = chance.randrange(len(chunks))
    kind, body = chunks[chosen]
    chunks[chosen] = (kind, raw(body, chance) if body else b"\xff" * chance.randrange(20))
    if chance.random() < 0.2:
        chunks.insert(chance.randrange(len(chunks)), chance.choice(chunks))
    return data[:8] + b"".join(
        struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in chunks
    )
