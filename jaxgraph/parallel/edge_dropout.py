"""Dropping edges at random, the same ones on any number of devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.graph import Graph
from jaxgraph.ops.core.edges import EdgeGroups
from jaxgraph.ops.core.randomness import edge_keep_mask, of_set
from jaxgraph.parallel.columns import ColumnChunk
from jaxgraph.parallel.neighborhood import check_neighborhood
from jaxgraph.parallel.relation import Relation
from jaxgraph.parallel.shard import Shard
from jaxgraph.parallel.whole_graph import on_whole_graph


def keep_edges(neighborhood: Graph | Shard | Relation, key: jax.Array, rate: float) -> jax.Array:
    """Draws which edges stay when each is dropped with a probability.

    keep_e = hash(key, receiver id, sender id, repetition) >= rate * 2^32

    A draw belongs to the edge: neither the partition nor the number of devices changes it. Pass the
    mask to `propagate` as edge data, and scale the messages that are kept if the model asks for it:

        keep = jg.parallel.keep_edges(shard, key, 0.5)
        message = lambda sender, receiver, keep: sender * keep[:, None] / 0.5
        jg.parallel.propagate(shard, message, x, edge=keep)

    Args:
      neighborhood: a graph; the shard, under `spmd`; one of its relations; or a `Bipartite`.
      key: random key, `jax.random.key(...)`, the same on every device.
      rate: probability of dropping an edge, a Python number in [0, 1).

    Returns:
      bool [slots], one for each edge that ends on this device, in the order of `shard.edges`.

    Raises:
      ValueError: the first argument is no shard, the key is no typed scalar key, or the rate no
        number in [0, 1).

    References:
      Rong et al., "DropEdge: towards deep graph convolutional networks on node classification",
      2020.
    """
    if isinstance(neighborhood, Graph):
        whole = on_whole_graph(neighborhood)
        return whole.by_edge(_kept(whole.shard.incoming, key, rate))
    check_neighborhood(neighborhood)
    if not isinstance(neighborhood, Shard | Relation) or isinstance(neighborhood, ColumnChunk):
        raise ValueError(
            f"keep_edges was given a {type(neighborhood).__name__}; expected the shard of a "
            "device under jaxgraph.parallel.spmd, one of its relations, or a Bipartite"
        )
    relation = neighborhood.relation() if isinstance(neighborhood, Shard) else neighborhood
    return _kept(relation.incoming, of_set(key, relation.arrays.set_number), rate)


def _kept(edges: EdgeGroups, key: Any, rate: float) -> jax.Array:
    by_receiver, receivers = edges.by_receiver, edges.receivers
    assert receivers is not None  # the edges of a shard carry data
    senders = by_receiver.neighbors
    slots = jnp.arange(senders.shape[0], dtype=jnp.int32)
    if edges.sender_ptr is not None:
        starts = by_receiver.compressed_starts[by_receiver.compressed_ptr[:-1]]
        group = jnp.searchsorted(starts, slots, side="right") - 1
        senders = senders + jnp.take(edges.sender_ptr, group, mode="clip")
    # Slots of padding number no row, and some arrays lack them.
    repeated = edges.repetition
    repetition = 0 if repeated is None else jnp.take(repeated, slots, mode="clip")
    receivers = jnp.take(receivers, slots, mode="clip")
    receiver_ids = jnp.take(edges.receiver_ids, receivers, mode="clip")
    sender_ids = jnp.take(edges.sender_ids, senders, mode="clip")
    return edge_keep_mask(key, receiver_ids, sender_ids, repetition, 1, rate)[:, 0]
