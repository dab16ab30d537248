"""The build record of the compiled kernels: checksums, compared before a library is loaded.

`setup.py` runs this file alone: it imports nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

SOURCE = Path(__file__).with_name("source")
"""The folder of the C++ sources; a wheel has none."""


def record_path(library: Path) -> Path:
    """Names the file that holds the record of a library."""
    return library.with_suffix(".json")


def write_record(library: Path, source: Path = SOURCE) -> None:
    """Writes the checksums of a library that was just built, and of its sources."""
    record = {"library": _checksum(library), "sources": _source_checksum(source)}
    record_path(library).write_text(json.dumps(record) + "\n", encoding="utf-8")


def mismatch(library: Path, source: Path = SOURCE) -> str:
    """Compares a library with its record, without loading it."""
    try:
        record = json.loads(record_path(library).read_text(encoding="utf-8"))
        built, sources = record["library"], record["sources"]
    except (OSError, ValueError, TypeError, KeyError):
        return f"has no readable record of its build ({record_path(library).name})"
    if built != _checksum(library):
        return "is damaged: its checksum is not the one that its build recorded"
    if source.is_dir() and sources != _source_checksum(source):
        return "was built from other sources than those beside it"
    return ""


def _source_checksum(source: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(source.iterdir()):
        if path.suffix in (".h", ".cc"):
            total.update(f"{path.name} {_checksum(path)}\n".encode())
    return total.hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
