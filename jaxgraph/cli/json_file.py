"""Results as a JSON file that any reader accepts."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxgraph.written_file import write_atomically

__all__ = ["write_json"]


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON; NumPy numbers and arrays become plain ones, NaN and infinity null.

    Args:
        path: The file; an existing one is replaced.
        value: Mappings, sequences, arrays, numbers, strings, paths.

    Raises:
        OSError: It could not be written; an existing file is unchanged.
    """
    write_atomically(path, json.dumps(_plain(value), indent=2, allow_nan=False) + "\n")


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
