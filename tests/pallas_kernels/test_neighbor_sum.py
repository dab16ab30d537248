from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.neighbor_sum import Neighbors, neighbor_mean, neighbor_sum
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


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("width", "dtype", "longest"),
    [
        (1, "float32", 1000),
        (7, "bfloat16", 4),
        (16, "float32", 4),
        (41, "float16", 1000),
        (128, "bfloat16", 1000),
        pytest.param(602, "float32", 1000, marks=pytest.mark.slow),
    ],
)
def test_sums_neighbors(width, dtype, longest):
    over = graph(DEGREES, 6, longest=longest)
    x, before = arrays(width, dtype)
    y = jax.jit(lambda *a: neighbor_sum(*a, launch=in_interpreter()))(
        Neighbors(x, over.neighbors), over.rows, before
    )
    assert np.isnan(y[-1]).all()
    np.testing.assert_allclose(y[:-1], expected(over, x, before)[:-1], rtol=2e-6, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("longest", "fresh"), [(4, False), (1000, True)])
def test_sums_some_columns_after_the_others(longest, fresh):
    over = graph(DEGREES, 6, longest=longest)
    x, before = arrays(70)
    weights: Any = np.random.default_rng(2).standard_normal((over.num_edges, 1)).astype("float32")
    edges, launch = Neighbors(x, over.neighbors, weights), in_interpreter(cached=900)
    assert [team.first for team in edges.teams(launch)] == [0, 32, 64]
    y = neighbor_sum(edges, over.rows, before, fresh=fresh, launch=launch)
    start = np.where(np.asarray([*DEGREES, 0])[:, None] > 0, 0, before) if fresh else before
    reference = expected(over, x, start, weights, False)
    np.testing.assert_allclose(y[:-1], reference[:-1], rtol=2e-6, atol=2e-6)


@pytest.mark.expensive
@pytest.mark.parametrize(("heads", "width", "by_slot"), [(1, 8, True), (3, 4, False)])
def test_weighs_messages_per_head(heads, width, by_slot):
    over = graph(DEGREES, 6, longest=5)
    x, before = arrays(heads * width)
    weights: Any = np.random.default_rng(2).standard_normal((over.num_edges + 2, heads))
    weights[over.num_edges :] = np.nan
    slots = over.slots if by_slot else None
    edges = Neighbors(x, over.neighbors, weights.astype(np.float32), slots)
    y = neighbor_sum(edges, over.rows, before, launch=in_interpreter())
    reference = expected(over, x, before, weights, by_slot)
    np.testing.assert_allclose(y[:-1], reference[:-1], rtol=2e-6, atol=2e-6)


def anything(rows: int, columns: int, dtype: str = "float32") -> Any:
    return jax.ShapeDtypeStruct((rows, columns), dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "width", "dtype", "longest", "continued"),
    [(1, 7, "float32", 1000, False), (2, 16, "bfloat16", 4, True), (1, 70, "float16", 4, False)],
)
def test_means(heads, width, dtype, longest, continued):
    over = graph(DEGREES, 6, longest=longest, every=True)
    columns, rows = heads * width, len(DEGREES)
    x, _ = arrays(columns, dtype)
    weights: Any = np.ones((over.num_edges, 1), np.float32)
    if heads > 1:
        weights = np.random.default_rng(2).standard_normal((over.num_edges, heads))
    given: Any = None if heads == 1 else weights.astype(np.float32)
    edges = Neighbors(x, over.neighbors, given)
    rng: Any = np.random.default_rng(5)
    before: Any = (np.zeros((rows, columns)), np.zeros((rows, heads)))
    if continued:
        before = rng.standard_normal((rows, columns)), np.ones((rows, heads))
    start = tuple(part.astype(np.float32) for part in before) if continued else None
    results = (anything(rows, columns, dtype), anything(rows, heads))
    y, inverse = jax.jit(
        lambda *a: neighbor_mean(a[0], a[1], results, a[2], launch=in_interpreter(cached=900))
    )(edges, over.rows, start)
    count = np.maximum(np.asarray(DEGREES) + before[1][:, 0], 1)
    reference = expected(over, x, before[0], weights, False) / count[:, None]
    rounding = 2e-6 if dtype == "float32" else 1e-2
    assert y.dtype == dtype
    np.testing.assert_allclose(np.asarray(y, np.float64), reference, rtol=rounding, atol=rounding)
    np.testing.assert_allclose(inverse, np.stack([1 / count] * heads, 1), rtol=1e-6)
