"""Kernels of sums, products and extrema against float64 NumPy: widths, hubs, types, loops."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.cpu.calls import edge_products, neighbor_extremum, neighbor_sum, winner_gradient
from jaxgraph.ops.cpu.library import missing as missing_library
from jaxgraph.ops.reducers import Extremum
from tests.ops.cpu.groups import HUB, group_edges, hub_edges, without_loop
from tests.oracles.edges import Edges
from tests.tolerance import assert_close

pytestmark = pytest.mark.skipif(bool(missing_library()), reason=missing_library())

EDGES = hub_edges()
every_width = pytest.mark.parametrize("width", [1, 7, 16, 41, 130])
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
        groups = group_edges(EDGES)
        x, exact = draw((EDGES.num_nodes, width), dtype)
        missing = without_loop(EDGES)
        expected = EDGES.sum_by_receiver(exact[EDGES.senders]) + missing[:, None] * exact
        y = jax.jit(neighbor_sum, static_argnums=3)(
            groups.by_receiver, 0, x, EDGES.num_nodes, missing=jnp.asarray(missing)
        )
        # Sums are kept in 32 bits, whatever x has.
        kept = np.float64 if dtype == np.float64 else np.float32
        assert y.dtype == kept
        assert_close(y, expected, dtype=kept, reduction_length=5000)
        again = jax.jit(neighbor_sum, static_argnums=3)(
            groups.by_receiver, 0, x, EDGES.num_nodes, before=y
        )
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
            orientation = groups.by_receiver
            expected = EDGES.sum_by_receiver(w * exact[EDGES.senders])
        else:
            orientation = groups.by_sender
            expected = EDGES.sum_by_sender(w * exact[EDGES.receivers])
        y = neighbor_sum(orientation, 0, x, EDGES.num_nodes, weights=weights)
        kept = np.float64 if dtype == np.float64 else np.float32
        assert_close(y, expected, dtype=kept, reduction_length=5000)


def test_groups_are_summed_one_by_one():
    group_of_edge = np.arange(len(EDGES.senders)) % 3
    groups = group_edges(EDGES, group_of_edge)
    x, exact = draw((EDGES.num_nodes, 9), np.float32)
    for group in range(3):
        mine = group_of_edge == group
        some = Edges.of(EDGES.senders[mine], EDGES.receivers[mine], EDGES.num_nodes)
        y = neighbor_sum(groups.by_receiver, group, x, EDGES.num_nodes)
        expected = some.sum_by_receiver(exact[some.senders])
        assert_close(y, expected, reduction_length=5000)


@every_type
@pytest.mark.parametrize(("heads", "features"), [(1, 1), (1, 41), (3, 7), (4, 32)])
def test_edge_products(heads, features, dtype):
    with jax.enable_x64(dtype == np.float64):
        groups = group_edges(EDGES)
        x, exact_x = draw((EDGES.num_nodes, heads, features), dtype)
        z, exact_z = draw((EDGES.num_nodes, heads, features), dtype, 1)
        slots = groups.by_receiver.neighbors.shape[0]
        y = edge_products(groups.by_receiver, 0, x, z, slots, heads=heads)
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
    # Few different values, so that several senders win.
    rng = np.random.default_rng(3)
    x = rng.integers(-20, 20, (EDGES.num_nodes, width)).astype(np.float64)
    gradient = rng.standard_normal(x.shape)
    full = EDGES.with_missing_self_loops()
    sign = 1 if maximum else -1
    best = np.full(x.shape, -np.inf)
    np.maximum.at(best, full.receivers, sign * x[full.senders])
    wins = sign * x[full.senders] == best[full.receivers]
    count = full.sum_by_receiver(wins.astype(np.float64))

    state = neighbor_extremum(
        groups.by_receiver,
        0,
        jnp.float32(x),
        groups.sender_ids,
        groups.repetition,
        EDGES.num_nodes,
        maximum=maximum,
        missing=jnp.asarray(missing),
    )
    np.testing.assert_array_equal(state[0], sign * best)
    np.testing.assert_array_equal(state[1], count)
    reducer = Extremum(1.0 if maximum else -1.0)
    y, kept = reducer.finish(state, jnp.float32(x))
    dx = winner_gradient(
        groups.by_sender,
        0,
        jnp.float32(x),
        groups.sender_ids,
        groups.repetition,
        reducer.adjoint(y, kept, jnp.float32(gradient)),
        missing=jnp.asarray(missing),
    )
    share = (gradient / np.maximum(count, 1))[full.receivers]
    assert_close(dx, full.sum_by_sender(np.where(wins, share, 0)), reduction_length=3000)


def test_extremum_group_after_group_is_that_of_all():
    groups = group_edges(EDGES, np.arange(len(EDGES.senders)) % 2)
    x, _ = draw((EDGES.num_nodes, 5), np.float32)
    state = None
    for group in range(2):
        state = neighbor_extremum(
            groups.by_receiver,
            group,
            x,
            groups.sender_ids,
            groups.repetition,
            EDGES.num_nodes,
            maximum=True,
            before=state,
        )
    assert state is not None
    expected = np.full(x.shape, -np.inf)
    np.maximum.at(expected, EDGES.receivers, np.asarray(x)[EDGES.senders])
    np.testing.assert_array_equal(state[0], expected)
    # The last sum of a hub: as many winners as edges from the senders that win.
    top = np.asarray(x)[EDGES.senders[EDGES.receivers == HUB]] == expected[HUB]
    np.testing.assert_array_equal(np.asarray(state[1])[HUB], top.sum(0))


def test_nothing_but_padding():
    nothing = np.zeros(0, np.int64)
    groups = group_edges(Edges.of(nothing, nothing, 6))
    x = jnp.ones((6, 3), jnp.float32)
    assert not np.asarray(neighbor_sum(groups.by_receiver, 0, x, 6)).any()
    missing = jnp.arange(6) < 2
    y = neighbor_sum(groups.by_receiver, 0, x, 6, missing=missing)
    np.testing.assert_array_equal(y, np.where(np.arange(6)[:, None] < 2, 1, 0) * np.ones((6, 3)))
