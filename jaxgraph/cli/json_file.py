"""Results as a JSON file that any reader accepts."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["check_writable", "write_json"]


def check_writable(path: Path | None) -> None:
    """Finds out before the work, not after it, that its result cannot be written.

    Args:
        path: The file to be, or None.

    Raises:
        ValueError: It is a folder, or the folder that it is to lie in does not exist.
    """
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"--json: {path} is a folder; expected the name of a file.")
    if not path.parent.is_dir():
        raise ValueError(f"--json: there is no folder {path.parent}; make it first.")


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON; NumPy numbers and arrays as plain ones, NaN and infinity as null.

    Args:
        path: The file; one that is there is replaced.
        value: Mappings, sequences, arrays, numbers, strings, paths.
    """
    path.write_text(json.dumps(_plain(value), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
