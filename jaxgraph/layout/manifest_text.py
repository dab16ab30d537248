"""Frozen dataclasses as JSON and back; every entry is read by the type of its field.

Arrays stand in the text by their number of entries alone; their entries, one array after the other
in the order of the fields, are kept apart: as text, millions of them would take seconds to read.
"""

from __future__ import annotations

import dataclasses
import json
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

__all__ = ["FORMAT", "decoded", "entries_of", "parsed", "write_text"]

FORMAT = "jaxgraph parts 2"
"""Name and version of the format; a program reads its own version alone."""


def write_text(content: Any) -> str:
    """Writes a dataclass as JSON, with its CRC-32.

    Args:
      content: a dataclass of texts, numbers from 0, bools, integer arrays [entries], tuples,
        mappings with text for keys, dataclasses and None.

    Returns:
      The text, without the entries of arrays.
    """
    text = _canonical(_plain(content))
    return f'{{"format":"{FORMAT}","crc32":{zlib.crc32(text.encode())},\n"content":{text}}}\n'


def entries_of(content: Any) -> np.ndarray:
    """Joins the entries of all arrays of a dataclass, for `decoded`.

    Args:
      content: as for `write_text`; entries are integers from 0.

    Returns:
      int32 or int64 [entries of all arrays].
    """
    joined = np.concatenate([np.zeros(0, np.int64), *_arrays(content)])
    return joined.astype(np.int32 if joined.max(initial=0) < 2**31 else np.int64)


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _arrays(getattr(value, field.name))
    elif isinstance(value, Mapping | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _arrays(each)
    elif isinstance(value, np.ndarray):
        yield value


def parsed(text: bytes) -> Any:
    """Reads the JSON that `write_text` has written, to be decoded.

    Args:
      text: the JSON.

    Returns:
      Its content.

    Raises:
      ValueError: the text is no manifest, or its format or CRC-32 is another one.
    """
    try:
        read = json.loads(text)
        found, checksum, content = read["format"], read["crc32"], read["content"]
        own = zlib.crc32(_canonical(content).encode())
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError("it is no manifest of parts") from None
    if found != FORMAT:
        raise ValueError(f"its format is {found!r}; this version of jaxgraph reads {FORMAT!r}")
    if own != checksum:
        raise ValueError(f"its CRC-32 is {own}; expected {checksum!r}, as written in it")
    return content


def decoded(kind: type, content: Any, entries: np.ndarray) -> Any:
    """Makes a dataclass from its parsed JSON and the entries of its arrays.

    Args:
      kind: the dataclass; fields that the JSON lacks take their defaults.
      content: the parsed JSON, whose CRC-32 is right.
      entries: int [entries], the result of `entries_of`.

    Returns:
      The dataclass.
    """
    first = 0

    def take(count: int) -> np.ndarray:
        nonlocal first
        first += count
        return entries[first - count : first].astype(np.int64)

    return _decoded(kind, content, take)


def _canonical(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return len(value)
    if isinstance(value, np.generic):
        return value.tolist()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _decoded(kind: Any, value: Any, take: Callable[[int], np.ndarray]) -> Any:
    """Reads a value of a type; `take` returns the entries of the next array."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (given,) = (each for each in arguments if each is not types.NoneType)
        return None if value is None else _decoded(given, value, take)
    if dataclasses.is_dataclass(kind):
        hints, names = get_type_hints(kind), [x.name for x in dataclasses.fields(kind)]
        made: Any = kind
        return made(**{x: _decoded(hints[x], value[x], take) for x in names if x in value})
    if origin is tuple:
        kinds = (arguments[0],) * len(value) if arguments[-1] is Ellipsis else arguments
        if set(kinds) == {int}:
            return tuple(value)  # at once: there may be one for each pair of parts
        return tuple(_decoded(each, x, take) for each, x in zip(kinds, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {key: _decoded(arguments[1], each, take) for key, each in value.items()}
    return take(value) if kind is np.ndarray else value
