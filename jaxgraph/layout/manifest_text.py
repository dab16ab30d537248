"""Frozen dataclasses as JSON and back; every entry is read strictly by the type of its field."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import zlib
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

__all__ = ["FORMAT", "read_text", "write_text"]

FORMAT = "jaxgraph parts 1"
"""Name and version of the format; a program reads its own version alone."""
_MOST = 2**63 - 1


def write_text(content: Any) -> str:
    """Writes a dataclass as JSON, with its CRC-32.

    Args:
      content: a dataclass of texts, numbers from 0, bools, integer arrays [entries], tuples,
        mappings with text for keys, dataclasses and None.

    Returns:
      The text.
    """
    text = _canonical(_plain(content))
    return f'{{"format":"{FORMAT}","crc32":{zlib.crc32(text.encode())},\n"content":{text}}}\n'


def read_text(kind: type, text: bytes) -> Any:
    """Reads a dataclass from JSON that `write_text` has written.

    Args:
      kind: the dataclass.
      text: the JSON.

    Returns:
      The dataclass.

    Raises:
      ValueError: the text is no JSON, its format or CRC-32 is another one, or an entry is missing,
        unknown or not of the type of its field.
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
    return _decoded(kind, read["content"], "content")


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
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _decoded(kind: Any, value: Any, where: str) -> Any:
    """Reads a value of a type; `where` names it in errors."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (given,) = (each for each in arguments if each is not types.NoneType)
        return None if value is None else _decoded(given, value, where)
    if dataclasses.is_dataclass(kind):
        return _decoded_fields(kind, value, where)
    if origin is tuple:
        return _decoded_tuple(arguments, value, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _error(where, value, "entries by name")
        return {key: _decoded(arguments[1], x, f"{where}[{key!r}]") for key, x in value.items()}
    if kind is np.ndarray:
        if not isinstance(value, list) or not all(map(_is_count, value)):
            raise _error(where, value, "a list of integers from 0")
        return np.asarray(value, np.int64)
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


def _decoded_fields(kind: Any, value: Any, where: str) -> Any:
    hints = _hints(kind)
    if not isinstance(value, dict):
        raise _error(where, value, f"entries {', '.join(hints)}")
    for fault, names in {
        "lacks": hints.keys() - value.keys(),
        "holds the unknown": value.keys() - hints.keys(),
    }.items():
        if names:
            raise ValueError(f"{where} {fault} {', '.join(sorted(names))}")
    fields = {name: _decoded(hint, value[name], f"{where}.{name}") for name, hint in hints.items()}
    return kind(**fields)


def _decoded_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _error(where, value, "a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise _error(where, value, f"a list of {len(kinds)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(_decoded(kind, each, f"{where}[{i}]") for i, (kind, each) in pairs)


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
