"""Rows of edges visited block by block."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.edges import (
    EdgeChunk,
    visit_rows,
)
from tests.ops.blocks import place_block
from tests.strategies import SMALL_GRAPHS


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
