"""Rows of a graph on one device, reduced together: the messages that fit, and the memory."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.layout.derived.lanes import MOST_LANES, RUNS_JOINED
from jaxgraph.ops import gat_attention
from jaxgraph.ops.aggregation import aggregate
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.core.message_functions import sum_message
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.reducers import Extremum, Sum
from jaxgraph.ops.xla.whole_graph import fits_whole
from tests.lanes import choosing_lanes
from tests.ops.blocks import place_block
from tests.oracles import edge_ops
from tests.strategies import complete, random_edges

HUB = MOST_LANES * RUNS_JOINED * 10 + 3


def graph_with_hubs() -> Graph:
    """Two hubs whose runs are joined three times, one at either end, and some light rows."""
    senders, receivers = random_edges(40, 120, seed=3)
    ends = np.arange(HUB) % 40
    into, out_of = np.full(HUB, 3), np.full(HUB, 5)
    return complete(
        np.concatenate([senders, ends, out_of]), np.concatenate([receivers, into, ends]), 40, "hubs"
    )


def multiplied(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
    return sender @ params


@pytest.fixture(params=[(5, 6), (5, 6, 6, 6), (16, 16, 16)], ids=str)
def lanes_of_levels(request) -> Iterator[tuple[int, ...]]:
    """Makes lanes at any cost."""
    with choosing_lanes(*request.param):
        yield request.param


@pytest.mark.slow
def test_sums_over_hubs_and_their_gradient(lanes_of_levels):
    graph = graph_with_hubs()
    placed = place_block(graph)
    block = with_implementation(placed.block, "xla")
    for lanes in (block.edges.by_receiver.lanes, block.edges.by_sender.lanes):
        assert lanes is not None and len(lanes.joins) >= 3
        assert len(lanes.further) == len(lanes_of_levels) - 1
    rng = np.random.default_rng(0)
    x, gradient = rng.standard_normal((2, 40, 3))
    inputs = Inputs((), placed.rows(x.astype(np.float32)), (), ())
    assert fits_whole(block.edges, sum_message, Sum(), inputs)
    y = block.propagate(sum_message, Sum(), inputs)
    adjoint = placed.rows(gradient.astype(np.float32))
    wanted = Wanted(params=False, sender=True, receiver=False, edge=False)
    pulled = block.pull_sum(sum_message, Sum(), inputs, adjoint, wanted).sender[0]
    dense = np.zeros((40, 40))
    np.add.at(dense, (graph.receivers, graph.senders), 1)
    np.testing.assert_allclose(placed.nodes(y), dense @ x, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(placed.nodes(pulled), dense.T @ gradient, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_attention_over_hubs_and_its_gradient(lanes_of_levels):
    with jax.enable_x64(True):
        placed = place_block(graph_with_hubs())
        rng = np.random.default_rng(0)
        shapes = [(2, 3), (2,), (2,), (2, 3)]
        *inputs, gradient = (2 * rng.standard_normal((40, *shape)) for shape in shapes)
        assert placed.block.edges.by_receiver.lanes is not None
        attend = partial(gat_attention, placed.block, implementation="xla")
        y, pull = jax.vjp(attend, *map(placed.rows, inputs))
        pulled = pull(placed.rows(gradient))
    expected, backward = edge_ops.gat_attention(placed.oracle(False), *inputs)
    np.testing.assert_allclose(placed.nodes(y), expected, rtol=1e-10)
    for actual, exact in zip(pulled, backward(gradient), strict=True):
        np.testing.assert_allclose(placed.nodes(actual), exact, rtol=1e-8, atol=1e-10)


def test_what_xla_would_store_for_every_edge_is_reduced_by_chunks():
    placed = place_block(graph_with_hubs())
    edges = with_implementation(placed.block, "xla").edges
    inputs = Inputs((), placed.rows(np.ones((40, 3), np.float32)), (), ())
    assert fits_whole(edges, sum_message, Sum(), inputs)
    assert not fits_whole(edges, multiplied, Sum(), inputs)
    by_blocks = dataclasses.replace(edges.by_receiver, lanes=None)
    by_blocks = dataclasses.replace(edges, by_receiver=by_blocks)
    assert not fits_whole(by_blocks, sum_message, Sum(), inputs)
    assert not fits_whole(edges, sum_message, Extremum(), inputs)


@pytest.mark.expensive
@pytest.mark.parametrize("implementation", ["xla", None])
@pytest.mark.parametrize("backward", [False, True])
def test_few_rows_of_many_wide_edges_take_little_memory(implementation, backward):
    """100,000 edges of 65,536 features between 200 nodes: 4.2 times the input, once 34."""
    nodes, features = 200, 1 << 16
    placed = place_block(complete(*random_edges(nodes, 100_000, seed=0), nodes, "dense"))
    x = jax.ShapeDtypeStruct((placed.block.receiver_rows, features), jnp.float32)

    def reduce(x: jax.Array) -> jax.Array:
        return aggregate(placed.block, x, implementation=implementation)

    run = jax.grad(lambda x: (reduce(x) ** 2).sum()) if backward else reduce
    memory = jax.jit(run).lower(x).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 4.5 * x.size * 4


@pytest.mark.expensive
@pytest.mark.parametrize("backward", [False, True])
def test_no_array_of_edges_and_features(backward):
    nodes, count, heads, features = 512, 8192, 2, 64
    placed = place_block(complete(*random_edges(nodes, count, seed=1), nodes, "dense"))
    values = jnp.ones((placed.block.receiver_rows, heads, features))
    logits = values[..., 0]
    assert placed.block.edges.by_receiver.lanes is not None

    def attend(*arrays: jax.Array) -> jax.Array:
        return gat_attention(placed.block, *arrays, implementation="xla")

    def both(*arrays: jax.Array) -> Any:
        # Outputs are used twice: by the caller and by the backward.
        y, pull = jax.vjp(attend, *arrays)
        return y, pull(y)

    compiled = jax.jit(both if backward else attend).lower(values, logits, logits).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < count * heads * features * 4
