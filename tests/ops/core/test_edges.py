"""The layout of edges: each once per orientation, visited block by block or slot by slot."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.sharding import PartitionSpec as P

from jaxgraph import Graph
from jaxgraph.ops.core.edges import (
    EdgeChunk,
    by_row,
    match_variation,
    visit_rows,
    visit_slots,
)
from jaxgraph.parallel import make_mesh
from tests.ops.blocks import Placed, place_block, shared_shapes
from tests.strategies import SMALL_GRAPHS, graphs


def totals(block: Any, chunk: EdgeChunk, carry: Any) -> Any:
    """By slot: visits, and the sums of the ends of the edge."""
    values = (jnp.ones_like(chunk.senders), chunk.senders, chunk.receivers)
    return tuple(
        total.at[chunk.edge_ids].add(jnp.where(chunk.mask, value, 0))
        for total, value in zip(carry, values, strict=True)
    )


@partial(jax.jit, static_argnums=1)
def visited_by_row(block: Any, side: str) -> Any:
    """Returns `totals` of a visit row by row, and each row's edge count and sum of slots."""
    edges = block.edges

    def visit(chunk: EdgeChunk, state: Any, carry: Any) -> Any:
        lanes = (chunk.mask.astype(jnp.int32), jnp.where(chunk.mask, chunk.edge_ids, 0))
        lanes = jax.tree.map(lambda leaf: leaf.sum(1), by_row(lanes, edges.rows_at_once))
        return merge(state, lanes), totals(block, chunk, carry)

    def merge(*states: Any) -> Any:
        return jax.tree.map(lambda *each: sum(each), *states)

    capacity = edges.receiver_capacity if side == "receiver" else edges.sender_capacity
    empty, table = ((jnp.zeros(size, jnp.int32),) * 2 for size in (edges.rows_at_once, capacity))
    slots = (jnp.zeros(block.edge_slots, jnp.int32),) * 3
    table, slots = visit_rows(edges, side, 0, visit, merge, empty, table, slots)
    position = edges.orientation(side).position
    rows = (jnp.where(position >= 0, leaf[jnp.maximum(position, 0)], 0) for leaf in table)
    return slots, tuple(rows)


@jax.jit
def visited_by_slot(block: Any) -> Any:
    """Returns `totals` of a visit slot by slot, and whether every slot was in its lane."""

    def visit(chunk: EdgeChunk, first: jax.Array, carry: Any) -> Any:
        lanes = first + jnp.arange(block.edges.chunk)
        in_lane = carry[1] & jnp.all((chunk.edge_ids == lanes) | ~chunk.mask)
        return totals(block, chunk, carry[0]), in_lane

    slots = (jnp.zeros(block.edge_slots, jnp.int32),) * 3
    return visit_slots(block.edges, 0, visit, (slots, jnp.bool_(True)))


def check_layout(placed: Placed) -> None:
    graph, block = placed.graph, placed.block
    rows_of = {
        "sender": placed.row_of_node[graph.senders],
        "receiver": placed.row_of_node[graph.receivers],
    }
    by_slot, in_lane = visited_by_slot(block)
    assert in_lane
    found = [by_slot]
    for side, rows in rows_of.items():
        slots, (counts, sums) = visited_by_row(block, side)
        found.append(slots)
        np.testing.assert_array_equal(counts, np.bincount(rows, minlength=len(counts)))
        expected = np.bincount(rows, placed.slot_of_edge, minlength=len(sums))
        np.testing.assert_array_equal(sums, expected)
    for visits, senders, receivers in found:
        np.testing.assert_array_equal(placed.edges(visits), 1)
        np.testing.assert_array_equal(np.asarray(senders)[placed.slot_of_edge], rows_of["sender"])
        np.testing.assert_array_equal(
            np.asarray(receivers)[placed.slot_of_edge], rows_of["receiver"]
        )


@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
def test_every_edge_is_visited_once_in_place(graph: Graph) -> None:
    check_layout(place_block(graph, pad_to=shared_shapes()))


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["one-node", "no-edges", "star-in", "star-out"])
def test_arrays_may_be_empty(name: str) -> None:
    check_layout(place_block(next(graph for graph in SMALL_GRAPHS if graph.name == name)))


@given(graph=graphs())
def test_every_edge_of_random_graphs_is_visited_once_in_place(graph: Graph) -> None:
    check_layout(place_block(graph, pad_to=shared_shapes()))


def test_hubs_are_cut_into_runs() -> None:
    """Else a star would cost one chunk for every few edges."""
    star = place_block(next(graph for graph in SMALL_GRAPHS if graph.name == "star-in"))
    edges = star.block.edges
    assert edges.by_receiver.heavy_rows.tolist() == [1]
    visits = []

    def visit(chunk: EdgeChunk, state: jax.Array, carry: jax.Array) -> Any:
        jax.debug.callback(visits.append, chunk.mask.sum())
        return state, carry

    empty, table = (jnp.zeros(size) for size in (edges.rows_at_once, edges.receiver_capacity))
    visit_rows(edges, "receiver", 0, visit, lambda *each: each[0], empty, table, jnp.zeros(()))
    jax.effects_barrier()
    assert len(visits) < 66 / edges.piece and sum(visits) == 66


@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_lanes_without_an_edge_repeat_an_edge_of_the_group(side: str) -> None:
    placed = place_block(SMALL_GRAPHS[3])
    edges, seen = placed.block.edges, []

    def visit(chunk: EdgeChunk, state: jax.Array, carry: jax.Array) -> Any:
        lanes = (chunk.mask, chunk.edge_ids, chunk.senders, chunk.receivers)
        jax.debug.callback(lambda *arrays: seen.append(arrays), *lanes)
        return state, carry

    empty, table = (jnp.zeros(size) for size in (edges.rows_at_once, edges.receiver_capacity))
    visit_rows(edges, side, 0, visit, lambda *each: each[0], empty, table, jnp.zeros(()))
    jax.effects_barrier()
    mask, edge_ids, senders, receivers = (np.concatenate(each) for each in zip(*seen, strict=True))
    assert mask.sum() == placed.graph.num_edges < len(mask)
    assert set(edge_ids.tolist()) == set(placed.slot_of_edge.tolist())
    assert set(senders.tolist()) == set(placed.row_of_node[placed.graph.senders].tolist())
    assert set(receivers.tolist()) == set(placed.row_of_node[placed.graph.receivers].tolist())


def test_match_variation_makes_replicated_values_vary() -> None:
    mesh = make_mesh(2)

    def on_each(own: jax.Array) -> jax.Array:
        assert not jax.typeof(jnp.ones(3)).manual_axis_type.varying
        matched = match_variation({"a": jnp.ones(3), "b": own}, own)
        assert all(
            jax.typeof(leaf).manual_axis_type.varying == {"graph"} for leaf in matched.values()
        )
        return matched["a"]

    mapped = jax.shard_map(on_each, mesh=mesh, in_specs=P("graph"), out_specs=P("graph"))
    np.testing.assert_array_equal(jax.jit(mapped)(jnp.zeros(6)), np.ones(6))
