"""The range of seeds, the same wherever one is taken."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["NUM_SEEDS", "checked_seed"]

NUM_SEEDS = 2**32
"""Keys of `jax.random` hold no more of an integer, and would take others for one of these."""


def checked_seed(name: str, value: Any) -> int:
    """Returns a seed as an int.

    Args:
        name: the argument it was given for.
        value: a Python or NumPy integer from 0 to 2**32 - 1.

    Returns:
        The same number.

    Raises:
        ValueError: it is not an integer, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        given = repr(value).splitlines()[0]
        raise ValueError(
            f"{name}: got {given} of type {type(value).__name__}; expected an integer from 0 to "
            "2**32 - 1, and no random key: that is made of it."
        )
    if not 0 <= value < NUM_SEEDS:
        raise ValueError(
            f"{name}: got {value}; expected an integer from 0 to 2**32 - 1. Take {name} % 2**32."
        )
    return int(value)
