from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.neighbor_sum import neighbor_sum
from tests.pallas_kernels.graphs import Graph, graph, in_interpreter

DEGREES = [2, 0, 1, 9, 1]


def expected(over: Graph, x, before, weights=None, by_slot=True):
    y, x = before.astype(np.float64), np.asarray(x, np.float64)
    for edge, (row, neighbor, slot) in enumerate(over.ends()):
        message = x[neighbor]
        if weights is not None:
            weight = np.asarray(weights, np.float64)[slot if by_slot else edge]
            message = (message.reshape(len(weight), -1) * weight[:, None]).reshape(-1)
        y[row] += message
    return y


def arrays(width, dtype="float32", rows=5, neighbors=6) -> Any:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((neighbors + 1, width)).astype(jnp.dtype(dtype))
    x[-1] = np.nan
    before = rng.standard_normal((rows + 1, width)).astype(np.float32)
    before[-1] = np.nan
    return x, before


@pytest.mark.parametrize(
    ("width", "dtype", "longest"),
    [
        (1, "float32", 1000),
        (7, "bfloat16", 4),
        (16, "float32", 4),
        (41, "float16", 1000),
        (128, "bfloat16", 1000),
        pytest.param(602, "float32", 1000, marks=pytest.mark.full),
    ],
)
def test_sums_neighbors(width, dtype, longest):
    over = graph(DEGREES, 6, longest=longest)
    x, before = arrays(width, dtype)
    y = jax.jit(lambda *a: neighbor_sum(*a, launch=in_interpreter()))(
        x, over.rows, over.neighbors, before
    )
    assert np.isnan(y[-1]).all()
    np.testing.assert_allclose(y[:-1], expected(over, x, before)[:-1], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("heads", "width", "by_slot"), [(1, 8, True), (3, 4, False)])
def test_weighs_messages_per_head(heads, width, by_slot):
    over = graph(DEGREES, 6, longest=5)
    x, before = arrays(heads * width)
    weights: Any = np.random.default_rng(2).standard_normal((over.num_edges + 2, heads))
    weights[over.num_edges :] = np.nan
    y = neighbor_sum(
        x,
        over.rows,
        over.neighbors,
        before,
        weights=weights.astype(np.float32),
        slots=over.slots if by_slot else None,
        launch=in_interpreter(),
    )
    reference = expected(over, x, before, weights, by_slot)
    np.testing.assert_allclose(y[:-1], reference[:-1], rtol=2e-6, atol=2e-6)


def test_no_rows_leave_what_was_there():
    over = graph([0, 0], 3)
    x, before = arrays(4, rows=2, neighbors=3)
    y = neighbor_sum(x, over.rows, over.neighbors, before, launch=in_interpreter())
    np.testing.assert_array_equal(y, before)


def test_what_is_known_to_be_zero_is_not_read():
    over = graph(DEGREES, 6, longest=4)
    x, before = arrays(5)
    before[:] = np.nan
    before[1] = 3
    y = neighbor_sum(x, over.rows, over.neighbors, before, fresh=True, launch=in_interpreter())
    start = np.zeros_like(before)
    start[1] = 3
    np.testing.assert_allclose(y[:-1], expected(over, x, start)[:-1], rtol=2e-6, atol=2e-6)
