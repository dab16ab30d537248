"""The file of a log of training: a line of JSON for each epoch, and values that JSON can hold."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LONGEST_LINE = 1 << 16


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads the log of a run that is going on, has ended or was killed.

    Args:
      path: the file, as `jaxgraph.train.EpochLog` or `jaxgraph train --log` writes it.

    Returns:
      The lines by ascending epoch. An epoch that a continued run repeats replaces the earlier one
      and all after it.

    Raises:
      ValueError: a line is not that of an epoch.
      OSError: the file cannot be read.
    """
    found: list[dict[str, Any]] = []
    *lines, _ = Path(path).read_bytes().split(b"\n")  # What follows the last end is being written.
    for number, line in enumerate(lines, 1):
        entry = _entry(line)
        if entry is None:
            text = line[:40].decode(errors="replace")
            raise ValueError(
                f"{path}, line {number}: {text!r} is not the line of an epoch; expected a log, as "
                "jaxgraph train --log writes it"
            )
        while found and found[-1]["epoch"] >= entry["epoch"]:
            found.pop()
        found.append(entry)
    return found


def check_log(name: str, path: Path) -> None:
    """Checks that lines can be appended to a file; it is not changed."""
    if path.is_dir():
        raise ValueError(f"{name}: {path} is a folder; expected the name of a file")
    if not path.parent.is_dir():
        raise ValueError(f"{name}: there is no folder {path.parent}; make it first")
    if not path.is_file():
        return
    try:
        with path.open("r+b") as file:
            first = file.readline()
    except OSError as error:
        raise ValueError(f"{name}: {path} cannot be written ({error.strerror})") from error
    if first.endswith(b"\n") and _entry(first) is None:
        raise ValueError(
            f"{name}: {path} exists and is no log of training; name another file, or remove it"
        )


def _entry(line: bytes) -> dict[str, Any] | None:
    """Returns the entry of a line, or None where it is not that of an epoch."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_entry = isinstance(entry, dict) and type(entry.get("epoch")) is int
    return entry if is_entry else None


def append_line(path: Path, line: str) -> None:
    """Appends a line at once, in the place of an unfinished one that a killed process has left."""
    if path.is_file():
        _drop_unfinished_line(path)
    with path.open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def _drop_unfinished_line(path: Path) -> None:
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        start = max(end - _LONGEST_LINE, 0)
        file.seek(start)
        tail = file.read()
        if not tail.endswith(b"\n"):
            file.truncate(start + tail.rfind(b"\n") + 1)


def plain(value: Any) -> Any:
    """Makes a value one of JSON: numbers and arrays become plain, NaN and infinity null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value
