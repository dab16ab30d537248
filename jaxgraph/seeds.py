"""The range of seeds, the same in every function."""

from __future__ import annotations

from typing import Any

import numpy as np

_GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)

NUM_SEEDS = 2**32
"""Keys of `jax.random` hold 32 bits of an integer: larger ones would repeat the keys of others."""


def checked_seed(name: str, value: Any) -> int:
    """Returns a seed as an int."""
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


def mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64: a bijection of 64-bit integers; every input bit reaches every output bit."""
    mixed = values + _GOLDEN_RATIO
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST_MULTIPLIER
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND_MULTIPLIER
    return mixed ^ (mixed >> np.uint64(31))
