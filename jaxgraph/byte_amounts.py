"""Amounts of memory: "16GB", "1.5 TB", "80GiB", or bytes; and this machine's."""

import math
import os
import re
from typing import Any

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{middle}b": base ** (power + 1)
    for power, letter in enumerate("kmgt")
    for middle, base in (("", 1000), ("i", 1024))
}
_AMOUNT = re.compile(r"\s*([\d.]+(?:e\d+)?)\s*([a-z]*)\s*")


def bytes_of(name: str, value: Any) -> int:
    """Reads an amount of memory.

    >>> bytes_of("--memory-limit", "16GB")
    16000000000
    """
    amount = _number(value)
    if not 1 <= amount < math.inf:
        raise ValueError(
            f"{name}: got {value!r}; expected an amount of memory, as 16GB, 80GiB or a whole "
            "number of bytes, at least 1."
        )
    return int(amount)


def host_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def refuse_beyond_memory(what: str, needed: int) -> None:
    """Raises ValueError for what takes more bytes than this machine has: it would be killed."""
    if needed > host_memory():
        raise ValueError(
            f"{what}: needs {needed:,} bytes, and this machine has {host_memory():,}; expected less"
        )


def _number(value: Any) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _AMOUNT.fullmatch(value.lower()) if isinstance(value, str) else None
    try:
        return float(found[1]) * _UNITS[found[2]] if found else math.nan
    except (ValueError, KeyError):
        return math.nan
