from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.extremum import neighbor_extremum
from tests.pallas_kernels.graphs import graph, in_interpreter

NEIGHBORS = 6
CACHED = 2000
"""Bytes that hold 32 columns of the tables here, and no 40."""


def table(rows: int, width: int, seed: int) -> Any:
    """Few different numbers, so that several win, NaN among them, and a last row of padding."""
    values = np.random.default_rng(seed).integers(-2, 3, (rows + 1, width)).astype(np.float32)
    values[seed % rows, 0] = values[-1] = np.nan
    return values


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("width", "maximum", "longest", "dtype"),
    [(40, True, 4, "float32"), (8, False, 1000, "float32"), (8, True, 4, "bfloat16")],
)
def test_finds_winners(width, maximum, longest, dtype):
    over = graph([2, 0, 1, 9, 1], NEIGHBORS, longest=longest)
    x, sign = table(NEIGHBORS, width, 1), 1 if maximum else -1
    before: Any = (np.full((6, width), -sign * np.inf, np.float32), np.zeros((6, width), "float32"))
    before[0][3], before[1][3] = sign, 2
    best, count = neighbor_extremum(
        jnp.asarray(x, dtype),
        over.rows,
        over.neighbors,
        before,
        maximum=maximum,
        launch=in_interpreter(cached=CACHED),
    )
    for row in range(5):
        messages = [x[neighbor] for owner, neighbor, _ in over.ends() if owner == row]
        messages += [np.full(width, sign, np.float32)] * (2 if row == 3 else 0)
        if not messages:
            assert not count[row].any()
            continue
        # NumPy's maximum of NaN and a number is NaN.
        winner = sign * (sign * np.stack(messages)).max(0)
        np.testing.assert_array_equal(best[row], winner)
        wins = (messages == winner) | (np.isnan(messages) & np.isnan(winner))
        np.testing.assert_array_equal(count[row], wins.sum(0))
