"""Amounts of memory as options: "16GB", "1.5 TB", "80GiB", or bytes."""

import math
import re

__all__ = ["bytes_of"]

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{middle}b": base ** (power + 1)
    for power, letter in enumerate("kmgt")
    for middle, base in (("", 1000), ("i", 1024))
}
_AMOUNT = re.compile(r"\s*([\d.]+(?:e\d+)?)\s*([a-z]*)\s*")


def bytes_of(option: str, text: str) -> int:
    """Reads an amount of memory.

    Args:
        option: Its option, as "--memory-limit".
        text: A number, and a unit: B, kB, MB, GB, TB, of 1000, or KiB, MiB, GiB, TiB, of 1024.

    Returns:
        Bytes.

    Raises:
        ValueError: It is no such amount, or less than one byte.

    >>> bytes_of("--memory-limit", "16GB")
    16000000000
    """
    found = _AMOUNT.fullmatch(text.lower())
    try:
        number = float(found[1]) if found else math.nan
    except ValueError:
        number = math.nan
    if found is None or found[2] not in _UNITS or not 1 <= number * _UNITS[found[2]] < math.inf:
        raise ValueError(f"{option}: got {text!r}; expected an amount of memory, as 16GB or 80GiB.")
    return int(number * _UNITS[found[2]])
