"""Frozen dataclasses as JSON and back; every entry is read strictly by the type of its field.

Arrays stand in the text by their number of entries alone; their entries, one array after the other
in the order of the fields, are kept apart: as text, millions of them would take seconds to read.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

__all__ = ["FORMAT", "decoded", "entries_of", "parsed", "write_text"]

FORMAT = "jaxgraph parts 2"
"""Name and version of the format; a program reads its own version alone."""
_MOST = 2**63 - 1


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
      ValueError: the text is no JSON, or its format or CRC-32 is another one.
    """
    try:
        read = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error or 'too deep'})") from None
    found = read.get("format") if isinstance(read, dict) else None
    if found != FORMAT:
        raise ValueError(f"its format is {found!r}; this version of jaxgraph reads {FORMAT!r}")
    if read.keys() != {"format", "crc32", "content"}:
        raise ValueError(f"it holds {', '.join(read)}; expected format, crc32 and content")
    try:
        checksum = zlib.crc32(_canonical(read["content"]).encode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its content cannot be read ({error})") from None
    if type(read["crc32"]) is not int or read["crc32"] != checksum:
        raise ValueError(f"its CRC-32 is {checksum}; expected {read['crc32']!r}, as written in it")
    return read["content"]


def decoded(kind: type, content: Any, entries: np.ndarray, where: str = "content") -> Any:
    """Makes a dataclass from its parsed JSON and the entries of its arrays.

    Args:
      kind: the dataclass.
      content: the parsed JSON.
      entries: int [entries], the result of `entries_of`.
      where: the name of the content in errors.

    Returns:
      The dataclass.

    Raises:
      ValueError: an entry is missing, unknown or not of the type of its field, or arrays have
        another number of entries.
    """
    if entries.min(initial=0) < 0:
        raise ValueError(f"{where} has arrays with {entries.min()}; expected integers from 0")
    left = _Entries(entries)
    made = _decoded(kind, content, where, left)
    if left.taken != len(entries):
        raise ValueError(f"{where} has arrays of {left.taken} entries; expected {len(entries)}")
    return made


class _Entries:
    """The entries of arrays, taken one array after the other."""

    def __init__(self, entries: np.ndarray) -> None:
        self._entries, self.taken = entries, 0

    def take(self, count: int, where: str) -> np.ndarray:
        """Returns the next entries, int64 [count]."""
        found = self._entries[self.taken : self.taken + count]
        if len(found) < count:
            raise _error(where, count, f"at most the {len(found)} entries that are left")
        self.taken += count
        return found.astype(np.int64)


def _canonical(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an entry is repeated")
    return found


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


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


def _decoded(kind: Any, value: Any, where: str, left: _Entries) -> Any:
    """Reads a value of a type; `where` names it in errors."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (given,) = (each for each in arguments if each is not types.NoneType)
        return None if value is None else _decoded(given, value, where, left)
    if dataclasses.is_dataclass(kind):
        return _decoded_fields(kind, value, where, left)
    if origin is tuple:
        return _decoded_tuple(arguments, value, where, left)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _error(where, value, "entries by name")
        return {
            key: _decoded(arguments[1], x, f"{where}[{key!r}]", left) for key, x in value.items()
        }
    if kind is np.ndarray:
        if not _is_count(value):
            raise _error(where, value, "a number of entries, an integer from 0")
        return left.take(value, where)
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _error(where, value, "a number")
        if not math.isfinite(value):
            raise _error(where, value, "a finite number")
        return float(value)
    if kind is int and not _is_count(value):
        raise _error(where, value, "an integer from 0")
    if type(value) is not kind:
        raise _error(where, value, {str: "text", bool: "true or false"}[kind])
    return value


def _decoded_fields(kind: Any, value: Any, where: str, left: _Entries) -> Any:
    hints = _hints(kind)
    if not isinstance(value, dict):
        raise _error(where, value, f"entries {', '.join(hints)}")
    # An earlier version did not write all fields.
    optional = {f.name: f.default for f in dataclasses.fields(kind) if "optional" in f.metadata}
    value = {**optional, **value}
    for fault, names in {
        "lacks": hints.keys() - value.keys(),
        "holds the unknown": value.keys() - hints.keys(),
    }.items():
        if names:
            raise ValueError(f"{where} {fault} {', '.join(sorted(names))}")
    fields = {
        name: _decoded(hint, value[name], f"{where}.{name}", left) for name, hint in hints.items()
    }
    return kind(**fields)


def _decoded_tuple(
    kinds: tuple[Any, ...], value: Any, where: str, left: _Entries
) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _error(where, value, "a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        if kinds[0] is int and all(map(_is_count, value)):
            return tuple(value)  # at once: there may be one for each pair of parts
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise _error(where, value, f"a list of {len(kinds)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(_decoded(kind, each, f"{where}[{i}]", left) for i, (kind, each) in pairs)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _error(where: str, value: Any, expected: str) -> ValueError:
    given = repr(value)
    given = given if len(given) <= 60 else f"{given[:60]}..."
    return ValueError(f"{where} is {given}; expected {expected}")
