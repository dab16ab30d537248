"""The layout of edges: each once per orientation, in a walk along consecutive compact rows."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.sharding import PartitionSpec as P

from jaxgraph import Graph
from jaxgraph.ops.edges import EdgeChunk, for_each_chunk, match_variation, to_slot_order
from jaxgraph.parallel import make_mesh
from tests.ops.blocks import Placed, place_block, shared_shapes
from tests.strategies import SMALL_GRAPHS, graphs


@jax.jit
def walk(block: Any) -> Any:
    """By orientation and slot: visits, ends of the edge, whether its lane is where it belongs."""

    def one_side(side: str) -> Any:
        orientation = block.edges.by_receiver if side == "receiver" else block.edges.by_sender

        def body(chunk: EdgeChunk, first: jax.Array, carry: Any) -> Any:
            lanes = jnp.arange(block.edges.chunk)
            rows = chunk.receivers if side == "receiver" else chunk.senders
            expected_row = first + (0 if chunk.heavy else lanes)
            in_place = orientation.position[rows] == expected_row
            if side == "receiver":
                in_place &= block.edges.walk_position[chunk.edge_ids] == chunk.first_place + lanes
            values = (jnp.ones_like(lanes), chunk.senders, chunk.receivers, in_place)
            return tuple(
                total.at[chunk.edge_ids].add(jnp.where(chunk.mask, value, 0))
                for total, value in zip(carry, values, strict=True)
            )

        zeros = jnp.zeros(block.edge_slots, jnp.int32)
        return for_each_chunk(block.edges, side, 0, body, (zeros,) * 4)

    return one_side("receiver"), one_side("sender")


def check_layout(placed: Placed) -> None:
    graph = placed.graph
    for visits, senders, receivers, in_place in walk(placed.block):
        np.testing.assert_array_equal(placed.edges(visits), 1)
        np.testing.assert_array_equal(placed.edges(in_place), 1)
        np.testing.assert_array_equal(
            np.asarray(senders)[placed.slot_of_edge], placed.row_of_node[graph.senders]
        )
        np.testing.assert_array_equal(
            np.asarray(receivers)[placed.slot_of_edge], placed.row_of_node[graph.receivers]
        )


@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
def test_every_edge_is_visited_once_in_place(graph: Graph) -> None:
    check_layout(place_block(graph, pad_to=shared_shapes()))


@pytest.mark.parametrize("name", ["one-node", "no-edges", "star-in", "star-out"])
def test_arrays_may_be_empty(name: str) -> None:
    check_layout(place_block(next(graph for graph in SMALL_GRAPHS if graph.name == name)))


@given(graph=graphs())
def test_every_edge_of_random_graphs_is_visited_once_in_place(graph: Graph) -> None:
    check_layout(place_block(graph, pad_to=shared_shapes()))


@pytest.mark.parametrize("name", ["one-node", "no-edges", "star-in", "directed-random"])
def test_values_by_place_are_brought_to_their_slots(name: str) -> None:
    placed = place_block(next(graph for graph in SMALL_GRAPHS if graph.name == name))
    edges, count = placed.block.edges, placed.graph.num_edges
    slots = np.asarray(edges.by_receiver.walk)[:count]
    walked = np.full((placed.block.edge_slots, 2), np.nan, np.float32)
    walked[:count] = np.stack([slots, np.arange(count)], 1)
    (found,) = to_slot_order(edges, [jnp.asarray(walked)])
    assert found[:count, 0].tolist() == list(range(count))
    assert slots[np.asarray(found[:count, 1], np.int64)].tolist() == list(range(count))
    np.testing.assert_array_equal(found[count:], 0)


def test_edges_without_data_need_no_positions() -> None:
    edges = dataclasses.replace(place_block(SMALL_GRAPHS[3]).block.edges, walk_position=None)
    assert to_slot_order(edges, []) == []


def test_kernels_are_part_of_the_program() -> None:
    edges = place_block(SMALL_GRAPHS[3]).block.edges
    edges = dataclasses.replace(edges, implementation="xla")
    other = dataclasses.replace(edges, implementation="cpu")
    assert jax.tree.structure(other) != jax.tree.structure(edges)
    assert len(jax.tree.leaves(other)) == len(jax.tree.leaves(edges))


def test_hubs_are_reduced_by_heavy_chunks() -> None:
    """Else a star would cost one chunk per edge."""
    star = place_block(next(graph for graph in SMALL_GRAPHS if graph.name == "star-in"))
    by_receiver = star.block.edges.by_receiver
    assert int(by_receiver.heavy_ptr[1]) == -(-66 // star.block.edges.chunk)
    assert int(by_receiver.light_ptr[1]) == 0


def test_lanes_without_an_edge_repeat_the_first() -> None:
    placed = place_block(SMALL_GRAPHS[3])
    seen = []

    def body(chunk: EdgeChunk, first: jax.Array, carry: jax.Array) -> jax.Array:
        lanes = (chunk.senders, chunk.receivers, chunk.edge_ids)
        jax.debug.callback(lambda *arrays: seen.append(arrays), chunk.mask, *lanes)
        return carry

    for_each_chunk(placed.block.edges, "receiver", 0, body, jnp.zeros(()))
    jax.effects_barrier()
    ((mask, *lanes),) = seen
    assert mask.sum() == 1 and mask[0]
    for values in lanes:
        assert (values == values[0]).all()


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


def test_match_variation_leaves_values_alone_on_one_device() -> None:
    value = jnp.arange(3)
    assert match_variation(value, jnp.zeros(2)) is value
