from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.extremum import neighbor_extremum, winner_gradient
from tests.pallas_kernels.graphs import graph, in_interpreter

NEIGHBORS, SPREAD = 6, 0x9E3779B1


def table(rows: int, width: int, seed: int) -> Any:
    """Few different numbers, so that several win, and a last row of padding."""
    values = np.random.default_rng(seed).integers(-2, 3, (rows + 1, width)).astype(np.float32)
    values[-1] = np.nan
    return values


def identities(ids, over, repetition):
    return {
        (row, slot): (ids[neighbor] + repetition[edge] * SPREAD) % (1 << 32)
        for edge, (row, neighbor, slot) in enumerate(over.ends())
    }


def padded(values) -> Any:
    return np.concatenate([values, [1 << 30]]).astype(np.int32)


@pytest.mark.parametrize(("width", "maximum", "longest"), [(5, True, 4), (8, False, 1000)])
def test_finds_winners(width, maximum, longest):
    over = graph([2, 0, 1, 9, 1], NEIGHBORS, longest=longest)
    x = table(NEIGHBORS, width, 1)
    ids = padded(np.arange(100, 100 + NEIGHBORS))
    repetition = padded(np.arange(over.num_edges) % 3)
    sign = 1 if maximum else -1
    before: Any = (
        np.full((6, width), -sign * np.inf, np.float32),
        np.zeros((6, width), np.float32),
        np.zeros((6, width), np.uint32),
    )
    before[0][3], before[1][3], before[2][3] = sign, 2, 77
    best, count, identity = neighbor_extremum(
        x,
        over.rows,
        over.neighbors,
        ids,
        before,
        maximum=maximum,
        repetition=repetition,
        launch=in_interpreter(),
    )
    known = identities(ids.astype(np.int64), over, repetition.astype(np.int64))
    for row in range(5):
        earlier = [(sign, 2, 77)] if row == 3 else []
        for column in range(width):
            messages = earlier + [
                (x[neighbor, column], 1, known[row, slot])
                for owner, neighbor, slot in over.ends()
                if owner == row
            ]
            if not messages:
                assert count[row, column] == 0
                continue
            winner = sign * max(sign * value for value, _, _ in messages)
            winners = [each for each in messages if each[0] == winner]
            assert best[row, column] == winner
            assert count[row, column] == sum(times for _, times, _ in winners)
            assert identity[row, column] == winners[0][2]


@pytest.mark.parametrize("longest", [1000, 4])
def test_gradient_goes_to_winners(longest):
    width, receivers = 6, 4
    over = graph([2, 0, 1, 9, 1], receivers, longest=longest)
    x = table(5, width, 2)
    rng = np.random.default_rng(3)
    ids = padded(np.arange(50, 55))
    repetition = padded(rng.integers(0, 2, over.num_edges))
    equal = table(receivers, width, 4)
    equal[0] = np.nan
    gradient: Any = rng.standard_normal((receivers + 1, width)).astype(np.float32)
    gradient[-1] = np.nan
    identity: Any = (50 + rng.integers(0, 5, (receivers + 1, width))).astype(np.uint32)
    before: Any = np.ones((6, width), np.float32)
    y = winner_gradient(
        x,
        over.rows,
        over.neighbors,
        ids,
        (equal, gradient, identity),
        before,
        repetition=repetition,
        slots=over.slots,
        launch=in_interpreter(),
    )
    expected = before.astype(np.float64)
    for sender, receiver, slot in over.ends():
        own = (int(ids[sender]) + int(repetition[slot]) * SPREAD) % (1 << 32)
        wins = (identity[receiver] == own) | (x[sender] == equal[receiver])
        expected[sender] += np.where(wins, gradient[receiver], 0)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    assert jnp.isfinite(y).all()
