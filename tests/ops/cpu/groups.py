"""Hand-made edges in compressed rows, with a hub that several pieces of work share."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.edges import EdgeGroups, Orientation
from tests.oracles.edges import Edges

PADDING = 16
NUM_NODES = 300
HUB, SPREADER, ISOLATED = 3, 5, 20


def hub_edges(num_edges: int = 9000, seed: int = 0) -> Edges:
    """Random edges, half of which enter one node and a quarter of which leave one.

    Args:
        num_edges: Number of edges.
        seed: Seed of their ends.

    Returns:
        Edges of 300 nodes, the last 20 of which have none; many are repeated, some are loops.
    """
    rng = np.random.default_rng(seed)
    senders, receivers = rng.integers(0, NUM_NODES - ISOLATED, (2, num_edges))
    receivers[: num_edges // 2] = HUB
    senders[num_edges // 2 : 3 * num_edges // 4] = SPREADER
    return Edges.of(senders, receivers, NUM_NODES)


def group_edges(
    edges: Edges,
    group_of_edge: np.ndarray | None = None,
    place_of_receiver: np.ndarray | None = None,
) -> EdgeGroups:
    """Lays edges out; nodes are numbered backwards, so that ids are not rows.

    Args:
        edges: The edges.
        group_of_edge: int [num_edges]; None: all are in group 0.
        place_of_receiver: int [num_nodes], position of a receiver's edges among those of a group;
            None: receivers ascend.
    """
    if group_of_edge is None:
        group_of_edge = np.zeros(len(edges.senders), np.int64)
    if place_of_receiver is None:
        place_of_receiver = np.arange(edges.num_nodes)
    by_receiver = np.lexsort((place_of_receiver[edges.receivers], group_of_edge))
    by_sender = np.lexsort((edges.senders, group_of_edge))
    slot_of_edge = np.argsort(by_receiver)
    ids = jnp.asarray(10 * np.arange(edges.num_nodes)[::-1], jnp.int32)
    return EdgeGroups(
        by_receiver=_orientation(
            edges.receivers[by_receiver],
            edges.senders[by_receiver],
            group_of_edge[by_receiver],
        ),
        by_sender=_orientation(
            edges.senders[by_sender],
            edges.receivers[by_sender],
            group_of_edge[by_sender],
            slot_of_edge[by_sender],
        ),
        sender_ids=ids,
        sender_ptr=None,
        receiver_ids=jnp.concatenate([jnp.full(7, -1, jnp.int32), ids]),
        receiver_ptr=jnp.full(int(group_of_edge.max(initial=0)) + 1, 7, jnp.int32),
        repetition=jnp.asarray(np.pad(edges.repetitions()[by_receiver], (0, PADDING)), jnp.int32),
        receivers=None,
        chunk=PADDING,
        piece=PADDING,
        receiver_capacity=0,
        sender_capacity=0,
        implementation="cpu",
    )


def _orientation(
    rows: np.ndarray,
    neighbors: np.ndarray,
    groups: np.ndarray,
    edge_ids: np.ndarray | None = None,
) -> Orientation:
    none = jnp.zeros(0, jnp.int32)
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]) | (groups[1:] != groups[:-1])
    starts = np.flatnonzero(new)
    pointers = np.searchsorted(groups[starts], np.arange(groups.max(initial=0) + 2))

    def padded(values: np.ndarray) -> jnp.ndarray:
        return jnp.asarray(np.pad(values, (0, PADDING)), jnp.int32)

    return Orientation(
        neighbors=padded(neighbors),
        edge_ids=None if edge_ids is None else padded(edge_ids),
        heavy_rows=none,
        rows=none,
        starts=none,
        degrees=none,
        run_ptr=none,
        position=none,
        compressed_ptr=jnp.asarray(pointers, jnp.int32),
        compressed_rows=jnp.asarray(rows[starts], jnp.int32),
        compressed_starts=jnp.asarray(np.append(starts, len(rows)), jnp.int32),
    )
