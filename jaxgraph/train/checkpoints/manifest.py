"""The manifest of a checkpoint: what it holds, and the checksum of every file of it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxgraph.train.history import EpochRecord, SlowestPart

__all__ = [
    "MANIFEST",
    "Contents",
    "DamagedError",
    "as_json",
    "check_files",
    "checksums",
    "from_json",
    "read",
    "text_of",
]

MANIFEST = "manifest.json"
FORMAT = "jaxgraph checkpoint 2"
"""Name and version of the format; a program reads its own version alone."""
_BYTES_AT_A_TIME = 1 << 20


class DamagedError(Exception):
    """A checkpoint is not what was written."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """All that the manifest of a checkpoint says.

    Attributes:
      epoch: number of the last epoch.
      val_loss: the validation loss after it; NaN without validation nodes.
      keeps_best: whether the state holds the best parameters beside the last.
      leaves: type and shape of every array of the state, by path.
      layout: a fingerprint of all that decides the order of sums, for people to compare.
      records: of all epochs, those before a resumed run included.
      samples: measured times of layers, from which a cost model is learned.
      files: bytes and CRC-32 of every file, by its path in the checkpoint.
      identity: what must be the same where the run is resumed, digests by name.
    """

    epoch: int
    val_loss: float
    keeps_best: bool
    leaves: Mapping[str, str]
    layout: Mapping[str, Any]
    records: tuple[EpochRecord, ...]
    samples: list[dict[str, Any]]
    files: Mapping[str, list[int]]
    identity: Mapping[str, str]


def as_json(contents: Contents) -> dict[str, Any]:
    """The manifest of texts, finite numbers, lists and dictionaries."""
    fields = {f.name: getattr(contents, f.name) for f in dataclasses.fields(contents)}
    return _bare(fields | {"records": [dataclasses.asdict(record) for record in contents.records]})


def from_json(fields: Mapping[str, Any]) -> Contents:
    """Undoes `as_json`.

    Raises:
      DamagedError: an entry is missing or wrong.
    """
    try:
        records = tuple(_record(each) for each in fields["records"])
        read = {"records": records, "val_loss": float(fields["val_loss"])}
        contents = Contents(**{**fields, **read})
        if [record.epoch for record in records] != [*range(1, contents.epoch + 1)]:
            raise ValueError(f"records of {len(records)} epochs, not of {contents.epoch}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{MANIFEST} has a wrong entry ({error})") from error
    return contents


def text_of(contents: Contents) -> str:
    """Writes a manifest as JSON, with its own CRC-32."""
    content = as_json(contents)
    return _as_text({"format": FORMAT, "crc32": _crc32(FORMAT, content), "content": content})


def _as_text(whole: dict[str, Any]) -> str:
    return json.dumps(whole, allow_nan=False) + "\n"


def read(checkpoint: Path) -> Contents:
    """Reads the manifest of a checkpoint.

    Raises:
      DamagedError: it is missing, or not as it was written.
      ValueError: another version of jaxgraph has written it.
    """
    try:
        data = (checkpoint / MANIFEST).read_bytes()
    except OSError as error:
        raise DamagedError(f"{MANIFEST}: {(error.strerror or str(error)).lower()}") from error
    try:
        found = json.loads(data)
        version, crc32, content = found["format"], found["crc32"], found["content"]
        is_whole = found.keys() == {"format", "crc32", "content"} and crc32 == _crc32(
            version, content
        )
        # A digit of a number may change and leave the number as it was.
        is_whole = is_whole and data == _as_text(found).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{MANIFEST} cannot be read") from error
    if not is_whole:
        raise DamagedError(f"{MANIFEST} has another checksum than when it was written")
    if version != FORMAT:
        raise ValueError(
            f"{checkpoint} has the format {version!r}, and this version of jaxgraph reads "
            f"{FORMAT!r}; resume with the version that wrote it, or take another folder"
        )
    return from_json(content)


def _crc32(version: str, content: Any) -> int:
    # JSON gives back equal numbers, and entries in their order.
    return zlib.crc32(json.dumps([version, content], allow_nan=False).encode())


def _record(fields: dict[str, Any]) -> EpochRecord:
    metrics = {
        split: {name: float(value) for name, value in of_split.items()}
        for split, of_split in fields["metrics"].items()
    }
    slowest = fields["slowest_part"]
    read = {
        "metrics": metrics,
        "val_loss": float(fields["val_loss"]),
        "slowest_part": None if slowest is None else SlowestPart(**slowest),
    }
    return EpochRecord(**fields | read)


def checksums(checkpoint: Path) -> dict[str, list[int]]:
    """Reads every file of a checkpoint but its manifest.

    Returns:
      Bytes and CRC-32, by path.

    Raises:
      DamagedError: something is neither a file nor a folder, or cannot be read.
    """
    try:
        return {name: _checksum(checkpoint / name) for name in _files(checkpoint)}
    except OSError as error:
        raise DamagedError(str(error)) from error


def check_files(checkpoint: Path, expected: Mapping[str, list[int]]) -> None:
    """Compares every file of a checkpoint with its manifest.

    Raises:
      DamagedError: a file is missing, unexpected, or has other contents.
    """
    found = checksums(checkpoint)
    for name in (*expected, *found):
        if name not in found:
            raise DamagedError(f"{name} is missing")
        if name not in expected:
            raise DamagedError(f"{name} is unexpected")
        if found[name] != list(expected[name]):
            raise DamagedError(f"{name} has another checksum than when it was written")


def _files(checkpoint: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(checkpoint):
        for name in (*folders, *names):
            path = Path(folder) / name
            mode = path.lstat().st_mode
            relative = path.relative_to(checkpoint).as_posix()
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise DamagedError(f"{relative} is no file")
            if stat.S_ISREG(mode) and relative != MANIFEST:
                yield relative


def _checksum(path: Path) -> list[int]:
    size, crc32 = 0, 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(_BYTES_AT_A_TIME):
            size, crc32 = size + len(data), zlib.crc32(data, crc32)
    return [size, crc32]


def _bare(value: Any) -> Any:
    """The value with the text of numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(name): _bare(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_bare(entry) for entry in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
