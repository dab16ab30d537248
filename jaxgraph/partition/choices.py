"""Checks a name against the names that exist, and suggests the one that was probably meant.

For the names of partitioners, balances and objectives.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def checked_choice(argument: str, name: str, names: Sequence[str]) -> str:
    """Returns a name that is one of the names."""
    if name in names:
        return name
    near = difflib.get_close_matches(str(name).lower(), names, n=1)
    advice = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{argument}: got {name!r}; expected one of {', '.join(names)}.{advice}")
