"""Damage to files, drawn from a seed: to bytes, and inside of pickles, archives and texts."""

from __future__ import annotations

import gzip
import io
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random

__all__ = ["mutated"]

Mutation = Callable[[Random, bytes], bytes]

_LARGE = (-1, -2, 2**15, 2**24, 10**9, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, -(2**63))
_WORDS = (
    *("-1", "1.9", "nan", "inf", "-inf", "1e400", "1e9", "", "x", '"1"', "0x1", "1_0", "²", "None"),
    *("999999999", "2147483648", "4294967296", "9223372036854775808", "9" * 400, "\x00", "#", "%"),
)
_LINES = (
    "",
    "#",
    "# 5 7",
    "a,b,c",
    "0",
    "0 1 2 3",
    "0\t1",
    "0,1,1",
    "\x00",
    "\ufeff0,1",
    "%%",
    "é",
)
_SNIPPETS = (
    *(bytes([code]) for code in b"bR\x81(120}])\x85eusa\x94.N"),
    *(b"r\x00\x00\x00\x10", b"j\x00\x00\x00\x10", b"h\x00", b"h\x01", b"h\x02", b"K\x00"),
    *(b"J\xff\xff\xff\xff", b"J\xff\xff\xff\x7f", b"U\x01<", b"X\x01\x00\x00\x00O"),
    *(b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"c__builtin__\nlist\n", b"cos\nsystem\n"),
)


def mutated(rng: Random, content: bytes, kind: str) -> bytes:
    """Damages a file's content once to three times.

    Args:
        rng: the source of the damage.
        content: the file.
        kind: "pickle", "npy", "npz", "mat", "text", or "gz": a compressed text.

    Returns:
        The damaged content.
    """
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutate = (
            rng.choice((*_OF_BYTES, *_OF_KIND[kind] * 2))
            if rng.random() < 0.4
            else rng.choice(_OF_KIND[kind])
        )
        content = mutate(rng, content)
    return content


# ---------------------------------------------------------------- bytes


def _byte(rng: Random, content: bytes) -> bytes:
    if not content:
        return b"\x00"
    changed = bytearray(content)
    place = rng.randrange(len(changed))
    flipped = changed[place] ^ (1 << rng.randrange(8))
    changed[place] = rng.choice((flipped, flipped, 0, 1, 127, 128, 255, rng.randrange(256)))
    return bytes(changed)


def _span(rng: Random, content: bytes) -> tuple[int, int]:
    first = rng.randrange(len(content) + 1)
    longest = int(rng.choice((1, 2, 4, 8, 64, 512)) * rng.random()) + 1
    return first, min(len(content), first + longest)


def _splice(rng: Random, content: bytes) -> bytes:
    """Inserts, deletes, replaces or repeats some bytes, or ends the file there."""
    (first, stop), (start, end) = _span(rng, content), _span(rng, content)
    some = content[start:end]
    middle = rng.choice((b"", some, some * 3, rng.randbytes(rng.choice((1, 2, 4, 8, 100)))))
    return content[:first] + middle + content[rng.choice((first, stop, stop, len(content))) :]


def _large(rng: Random, content: bytes) -> bytes:
    size = rng.choice((2, 4, 8))
    value = rng.choice(_LARGE) % 2 ** (8 * size)
    place = rng.randrange(len(content) + 1)
    if rng.random() < 0.5:
        place -= place % size
    order = rng.choice(("little", "big"))
    return content[:place] + value.to_bytes(size, order) + content[place + size :]


_OF_BYTES = (_byte, _byte, _splice, _splice, _splice, _large)


def _bytes(rng: Random, content: bytes) -> bytes:
    return rng.choice(_OF_BYTES)(rng, content)


# ---------------------------------------------------------------- texts


def _number(rng: Random, content: bytes) -> bytes:
    found = list(re.finditer(rb"[0-9.eE+-]+", content))
    if not found:
        return content
    match = rng.choice(found)
    word = rng.choice((*_WORDS, *map(str, _LARGE))).encode()
    return content[: match.start()] + word + content[match.end() :]


def _line(rng: Random, content: bytes) -> bytes:
    lines = content.split(b"\n")
    place = rng.randrange(len(lines))
    other = rng.choice((rng.choice(_LINES).encode(), rng.choice(lines)))
    changed = {
        "delete": [],
        "double": [lines[place]] * 2,
        "insert": [other, lines[place]],
        "replace": [other],
        "reverse": [b" ".join(reversed(lines[place].split()))],
        "longer": [lines[place] + rng.choice((b",", b" ", b"\t", b",1", b" 1", b"\r"))],
        "joined": [lines[place] * rng.choice((2, 1000))],
    }
    lines[place : place + 1] = changed[rng.choice(list(changed))]
    return b"\n".join(lines)


def _separator(rng: Random, content: bytes) -> bytes:
    marks = (b",", b";", b"\t", b" ", b"\n", b"|")
    return content.replace(rng.choice(marks), rng.choice(marks), rng.choice((1, -1)))


_OF_TEXT: tuple[Mutation, ...] = (_number, _number, _line, _separator, _bytes)


# ---------------------------------------------------------------- what has a structure


def _instruction(rng: Random, content: bytes) -> bytes:
    """Deletes, doubles, moves, inserts or replaces an instruction of a pickle."""
    try:
        starts = [place for _, _, place in pickletools.genops(content)]
    except Exception:
        return _bytes(rng, content)
    starts.append(len(content))
    if len(starts) < 3:
        return _bytes(rng, content)
    # Most instructions of a graph are its numbers; the others are near its ends.
    ends = [*range(min(60, len(starts) - 1)), *range(max(len(starts) - 61, 0), len(starts) - 1)]
    index = rng.choice((rng.choice(ends), rng.randrange(len(starts) - 1)))
    first, stop = starts[index], starts[index + 1]
    one, other = content[first:stop], rng.randrange(len(starts) - 1)
    code = bytes(
        [rng.choice(b"()0123.FIJKLMNPQRSTUVXacbdegiljhopqrstu}]\x80\x81\x82\x85\x86\x87\x93")]
    )
    changed = rng.choice(
        (
            b"",
            one * 2,
            rng.choice(_SNIPPETS),
            one + rng.choice(_SNIPPETS),
            code + one[1:],
            content[starts[other] : starts[other + 1]],
            _large(rng, one),
        )
    )
    return content[:first] + changed + content[stop:]


def _header(rng: Random, content: bytes) -> bytes:
    """Changes the header of an array in the npy format."""
    stop = content.find(b"\n")
    if not content.startswith(b"\x93NUMPY") or stop < 10:
        return _bytes(rng, content)
    text = content[10:stop].decode("latin1")
    types = ("|O", "<f8", ">i4", "|b1", "<U3", "|S0", "|V4", "<c16", "<M8[s]", "<f2", "<i8", "|u1")
    text = rng.choice(
        (
            _number(rng, text.encode()).decode("latin1"),
            re.sub(r"'descr': '[^']*'", f"'descr': {rng.choice(types)!r}", text),
            text.replace("False", "True"),
            re.sub(
                r"\(.*\)", rng.choice(("()", "(0,)", "(-1,)", f"({2**62}, 4)", "(1, 1, 1)")), text
            ),
            _bytes(rng, text.encode()).decode("latin1"),
        )
    )
    encoded = text.encode("latin1", "replace") + b"\n"
    return content[:8] + struct.pack("<H", len(encoded) & 0xFFFF) + encoded + content[stop + 1 :]


def _array(rng: Random, content: bytes) -> bytes:
    stop = content.find(b"\n") + 1
    if b"'|O'" in content[:stop]:
        return content[:stop] + _instruction(rng, content[stop:])
    return content[:stop] + _bytes(rng, content[stop:])


def _member(rng: Random, content: bytes) -> bytes:
    """Damages a member of an archive, with correct checksums, or leaves one out."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
    except Exception:
        return _bytes(rng, content)
    if not members:
        return _bytes(rng, content)
    name, other = rng.choice(list(members)), rng.choice(list(members))
    action = rng.random()
    if action < 0.1:
        members[other] = members.pop(name)
    elif action < 0.15:
        members[name] = members[other]
    else:
        members[name] = rng.choice(_OF_KIND["npy"])(rng, members[name])
    target = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(target, "w", method) as archive:
        for each, value in members.items():
            archive.writestr(each, value)
    return target.getvalue()


def _directory(rng: Random, content: bytes) -> bytes:
    """Damages the headers of an archive: sizes, offsets, methods."""
    places = [match.start() for match in re.finditer(rb"PK[\x01\x03\x05]", content)]
    if not places:
        return _bytes(rng, content)
    place = rng.choice(places)
    return content[:place] + _bytes(rng, content[place : place + 46]) + content[place + 46 :]


def _variable(rng: Random, content: bytes) -> bytes:
    """Damages a variable of a MATLAB file, inside its compression if it has any."""
    place, spans = 128, []
    while place + 8 <= len(content):
        code, size = struct.unpack("<II", content[place : place + 8])
        spans.append((code, place, min(place + 8 + size, len(content))))
        place += 8 + size
    if not spans:
        return _bytes(rng, content)
    code, first, stop = rng.choice(spans)
    body = content[first + 8 : stop]
    change = rng.choice((_near_the_start, _bytes, _large))
    try:
        body = (
            zlib.compress(change(rng, zlib.decompress(body))) if code == 15 else change(rng, body)
        )
    except zlib.error:
        body = change(rng, body)
    return content[:first] + struct.pack("<II", code, len(body)) + body + content[stop:]


def _near_the_start(rng: Random, content: bytes) -> bytes:
    return rng.choice((_large, _byte))(rng, content[:96]) + content[96:]


def _unpacked(rng: Random, content: bytes) -> bytes:
    """Damages a compressed text before its compression."""
    try:
        text = gzip.decompress(content)
    except Exception:
        return _bytes(rng, content)
    return gzip.compress(rng.choice(_OF_TEXT)(rng, text), 1)


_OF_KIND: dict[str, tuple[Mutation, ...]] = {
    "text": _OF_TEXT,
    "gz": (_unpacked, _unpacked, _unpacked, _bytes),
    "pickle": (_instruction, _instruction, _bytes),
    "npy": (_header, _array, _array, _bytes),
    "npz": (_member, _member, _member, _directory),
    "mat": (_variable, _variable, _variable, _bytes),
}
