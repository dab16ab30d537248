"""Kernels of sums, products and extrema against float64 NumPy: widths, hubs, types, loops."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.core.reducers import Extremum
from jaxgraph.ops.cpu.calls import edge_products, neighbor_extremum, neighbor_sum, winner_gradient
from jaxgraph.ops.cpu.custom_call import call_on_arrays
from jaxgraph.ops.cpu.library import missing as missing_library
from tests.ops.cpu.groups import HUB, group_edges, hub_edges, without_loop
from tests.oracles.edges import Edges
from tests.tolerance import assert_close

pytestmark = pytest.mark.skipif(bool(missing_library()), reason=missing_library())

EDGES = hub_edges()
every_width = pytest.mark.parametrize("width", [1, 7, 16, 41, 64, 128, 130])
every_type = pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float64])


def draw(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> tuple[jax.Array, np.ndarray]:
    """Random numbers, and the same in float64."""
    rounded = jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)
    return rounded, np.asarray(rounded).astype(np.float64)


def by_edge(slots: np.ndarray, edges: Edges) -> np.ndarray:
    """Values by slot, by edge, for edges in one group."""
    return slots[np.argsort(np.argsort(edges.receivers, kind="stable"))]


@every_width
@every_type
def test_neighbor_sum(width, dtype):
    with jax.enable_x64(dtype == np.float64):
        groups, missing = group_edges(EDGES), without_loop(EDGES)
        x, exact = draw((EDGES.num_nodes, width), dtype)
        sums = jax.jit(neighbor_sum, static_argnums=(1, 3))
        expected = EDGES.sum_by_receiver(exact[EDGES.senders]) + missing[:, None] * exact
        with_loops = EdgeGroup(groups, 0, jnp.asarray(missing))
        y = sums(with_loops, "receiver", x, EDGES.num_nodes)
        # Sums accumulate in 32 bits for every x.
        kept = np.float64 if dtype == np.float64 else np.float32
        assert y.dtype == kept
        assert_close(y, expected, dtype=kept, reduction_length=5000)
        again = sums(EdgeGroup(groups, 0), "receiver", x, EDGES.num_nodes, before=y)
        assert_close(
            again,
            expected + EDGES.sum_by_receiver(exact[EDGES.senders]),
            dtype=kept,
            reduction_length=5000,
        )


@every_type
@pytest.mark.parametrize(("heads", "features"), [(1, 16), (3, 7), (4, 32), (5, 1)])
@pytest.mark.parametrize("side", ["receiver", "sender"])
def test_weighted_neighbor_sum(heads, features, dtype, side):
    with jax.enable_x64(dtype == np.float64):
        groups = group_edges(EDGES)
        x, exact = draw((EDGES.num_nodes, heads, features), dtype)
        weights, exact_weights = draw((groups.by_receiver.neighbors.shape[0], heads), dtype, 1)
        w = by_edge(exact_weights[: len(EDGES.senders)], EDGES)[..., None]
        if side == "receiver":
            expected = EDGES.sum_by_receiver(w * exact[EDGES.senders])
        else:
            expected = EDGES.sum_by_sender(w * exact[EDGES.receivers])
        y = neighbor_sum(EdgeGroup(groups, 0), side, x, EDGES.num_nodes, weights=weights)
        kept = np.float64 if dtype == np.float64 else np.float32
        assert_close(y, expected, dtype=kept, reduction_length=5000)


@pytest.mark.parametrize("place", [0, 1, 2, 15, 16, 17, 31, 64, 65, 200])
def test_rows_in_any_order(place):
    # Nodes with edges in their order, except the last of them, which is at `place`.
    last = int(EDGES.receivers.max())
    place_of_receiver = np.arange(EDGES.num_nodes)
    place_of_receiver[place:last] += 1
    place_of_receiver[last] = place
    groups = group_edges(EDGES, place_of_receiver=place_of_receiver)
    rows = np.asarray(groups.by_receiver.compressed_rows)
    assert np.flatnonzero(rows[1:] < rows[:-1]).tolist() == [place]
    x, exact = draw((EDGES.num_nodes, 64), np.float32)
    y = neighbor_sum(EdgeGroup(groups, 0), "receiver", x, EDGES.num_nodes)
    assert_close(y, EDGES.sum_by_receiver(exact[EDGES.senders]), reduction_length=5000)


@every_type
@pytest.mark.parametrize(("heads", "features"), [(1, 1), (1, 41), (3, 7), (4, 32)])
def test_edge_products(heads, features, dtype):
    with jax.enable_x64(dtype == np.float64):
        groups = group_edges(EDGES)
        x, exact_x = draw((EDGES.num_nodes, heads, features), dtype)
        z, exact_z = draw((EDGES.num_nodes, heads, features), dtype, 1)
        y = edge_products(EdgeGroup(groups, 0), x, z, heads=heads)
        expected = (exact_x[EDGES.receivers] * exact_z[EDGES.senders]).sum(-1)
        found = np.asarray(y).astype(np.float64)
        assert not found[len(EDGES.senders) :].any()
        actual = by_edge(found[: len(EDGES.senders)], EDGES)
        terms = 1 if dtype == jnp.bfloat16 else features
        assert_close(actual, expected, dtype=dtype, reduction_length=terms)


@every_width
@pytest.mark.parametrize("maximum", [True, False])
def test_extremum_and_its_winners(width, maximum):
    groups, missing = group_edges(EDGES), without_loop(EDGES)
    # Few different values, so that several senders win, and NaN.
    rng = np.random.default_rng(3)
    x = rng.integers(-20, 20, (EDGES.num_nodes, width)).astype(np.float64)
    x[rng.random(x.shape) < 0.002] = np.nan
    gradient = rng.standard_normal(x.shape)
    full = EDGES.with_missing_self_loops()
    sign = 1 if maximum else -1
    best = np.full(x.shape, -np.inf)
    np.maximum.at(best, full.receivers, sign * x[full.senders])
    messages, winners = sign * x[full.senders], best[full.receivers]
    wins = (messages == winners) | (np.isnan(messages) & np.isnan(winners))
    assert np.isnan(best[HUB]).any()
    count = full.sum_by_receiver(wins.astype(np.float64))

    over = EdgeGroup(groups, 0, jnp.asarray(missing))
    state = neighbor_extremum(over, jnp.float32(x), EDGES.num_nodes, maximum=maximum)
    np.testing.assert_array_equal(state[0], sign * best)
    np.testing.assert_array_equal(state[1], count)
    reducer = Extremum(1.0 if maximum else -1.0)
    y, kept = reducer.finish(state, jnp.float32(x))
    dx = winner_gradient(over, jnp.float32(x), reducer.adjoint(y, kept, jnp.float32(gradient)))
    share = (gradient / np.maximum(count, 1))[full.receivers]
    assert_close(dx, full.sum_by_sender(np.where(wins, share, 0)), reduction_length=3000)


def test_extremum_group_after_group_is_that_of_all():
    groups = group_edges(EDGES, np.arange(len(EDGES.senders)) % 2)
    x, _ = draw((EDGES.num_nodes, 5), np.float32)
    state = None
    for group in range(2):
        over = EdgeGroup(groups, group)
        state = neighbor_extremum(over, x, EDGES.num_nodes, maximum=True, before=state)
    assert state is not None
    expected = np.full(x.shape, -np.inf)
    np.maximum.at(expected, EDGES.receivers, np.asarray(x)[EDGES.senders])
    np.testing.assert_array_equal(state[0], expected)
    # The last sum of a hub: as many winners as edges from the senders that win.
    top = np.asarray(x)[EDGES.senders[EDGES.receivers == HUB]] == expected[HUB]
    np.testing.assert_array_equal(np.asarray(state[1])[HUB], top.sum(0))


def test_an_array_that_xla_has_moved_is_copied():
    x = jnp.arange(5.0)
    kept, _ = call_on_arrays("jaxgraph_large_pages", (x,), [(x.shape, x.dtype), ((9,), jnp.uint8)])
    np.testing.assert_array_equal(kept, x)
