"""The self-checks: a right implementation passes, and each kind of wrong one fails."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph import ops
from jaxgraph.ops.self_check import CHECKS, NUM_EDGES, NUM_NODES, example


def test_the_example_has_light_and_heavy_rows_and_isolated_nodes() -> None:
    graph = example()
    assert len(graph.senders) == NUM_EDGES == 100
    degrees = np.bincount(graph.receivers, minlength=NUM_NODES)
    assert degrees.max() >= 25 and degrees.min() == 0
    for orientation in (graph.block.edges.by_receiver, graph.block.edges.by_sender):
        assert orientation.heavy_rows[0] < orientation.compressed_ptr[1]
        assert orientation.neighbors.shape[0] > NUM_EDGES
    assert graph.block.edges.by_receiver.heavy_rows[0] > 0
    repetition = graph.block.edges.repetition
    assert repetition is not None
    pairs = np.stack([graph.senders, graph.receivers, repetition[:NUM_EDGES]])
    assert len(np.unique(pairs[:2], axis=1).T) < len(np.unique(pairs, axis=1).T) == NUM_EDGES


def test_both_orientations_hold_the_same_edges() -> None:
    graph = example()
    by_sender = graph.block.edges.by_sender
    slots = np.asarray(by_sender.edge_ids)[:NUM_EDGES]
    assert sorted(slots) == list(range(NUM_EDGES))
    np.testing.assert_array_equal(by_sender.neighbors[:NUM_EDGES], graph.receivers[slots])


def test_rows_of_the_example_are_those_of_its_edges() -> None:
    graph = example()
    edges = graph.block.edges
    senders = graph.senders[np.asarray(edges.by_sender.edge_ids)[:NUM_EDGES]]
    for orientation, rows in ((edges.by_receiver, graph.receivers), (edges.by_sender, senders)):
        starts = np.asarray(orientation.compressed_starts)
        assert starts[-1] == NUM_EDGES and len(starts) == 1 + orientation.compressed_ptr[1]
        assert len(set(orientation.compressed_rows.tolist())) == len(starts) - 1
        np.testing.assert_array_equal(np.repeat(orientation.compressed_rows, np.diff(starts)), rows)
        count = len(starts) - 1
        heavy = int(orientation.heavy_rows[0])
        visited = np.stack([orientation.rows, orientation.starts, orientation.degrees], 1)
        visited = visited[: orientation.run_ptr[1]]
        assert set(visited[:count, 0].tolist()) == set(rows.tolist())
        assert np.all(np.diff(visited[:heavy, 2]) <= 0)
        assert np.all(np.diff(visited[heavy:count, 2]) <= 0)
        for row, first, runs in visited[:heavy]:
            assert np.all(visited[first : first + runs, 0] == row)
        found = [
            (row, slot)
            for row, start, degree in visited[heavy:]
            for slot in range(start, start + degree)
        ]
        assert sorted(found) == sorted(zip(rows.tolist(), range(NUM_EDGES), strict=True))
    assert edges.receivers is not None
    np.testing.assert_array_equal(edges.receivers[:NUM_EDGES], graph.receivers)


@jax.custom_vjp
def _double_gradient(x: jax.Array) -> jax.Array:
    return x


_double_gradient.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))


def wrong_value(result: jax.Array) -> jax.Array:
    return result.at[1].add(1e-3)


def not_a_number(result: jax.Array) -> jax.Array:
    return result.at[1].set(jnp.nan)


@pytest.mark.expensive
@pytest.mark.parametrize("op", CHECKS)
@pytest.mark.parametrize("spoil", [wrong_value, not_a_number, _double_gradient])
def test_a_wrong_implementation_fails(op: str, spoil: Any) -> None:
    right = getattr(ops, op)
    report = CHECKS[op](lambda *arguments, **options: spoil(right(*arguments, **options)))
    assert report.startswith("failed")


def test_a_result_of_another_shape_fails() -> None:
    report = CHECKS["aggregate"](lambda *arguments: ops.aggregate(*arguments)[:, :1])
    assert report.startswith("failed: shape")
