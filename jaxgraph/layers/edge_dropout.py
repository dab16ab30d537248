"""Dropping whole edges at random (DropEdge), for layers that sum or average over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxgraph.layers.dense import check_rate
from jaxgraph.parallel import Shard, keep_edges, propagate
from jaxgraph.parallel.node_table import Degrees
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


def dropout_edge(shard: Graph | Shard, key: jax.Array, *, rate: float) -> Shard:
    """Drops each edge at random, and returns the graph of the kept edges.

    keep_e = hash(key, receiver id, sender id, repetition) >= rate * 2^32

    A draw depends on the edge alone: neither the partition nor the number of devices changes it.
    Layers that sum or average use the kept edges and their degrees: GCN, GCNII, APPNP, GIN, and
    GraphSAGE and `propagate` with a sum or a mean. Nothing is scaled. Attention, maxima and minima
    refuse the result.

        def __call__(self, shard, x, *, key=None, train=False):
            if train:
                shard = jg.layers.dropout_edge(shard, jax.random.fold_in(key, 99), rate=0.2)
            return super().__call__(shard, x, key=key, train=train)

    Args:
      shard: a graph, on one device; or the shard, under `spmd`.
      key: scalar random key, the same on every device.
      rate: probability of dropping an edge, a Python number in [0, 1).

    Returns:
      The shard with fewer edges. For a graph, its rows are the nodes in their order.

    Raises:
      ValueError: the first argument is neither graph nor shard, the key is no typed scalar key, or
        the rate is out of range.

    References:
      Rong et al., "DropEdge: towards deep graph convolutional networks on node classification",
      2020.
    """
    shard, _ = on_device(shard)
    check_rate(rate)
    if not isinstance(shard, Shard):
        raise ValueError(
            f"dropout_edge was given a {type(shard).__name__}; expected a graph or the shard of a "
            "device. Elsewhere draw keep = jaxgraph.parallel.keep_edges(neighborhood, key, rate), "
            "and use it in a message function with jaxgraph.parallel.propagate"
        )
    keep = keep_edges(shard, key, rate)
    if shard.kept_edges is not None:
        keep = keep & shard.kept_edges
    whole = shard.with_edges(kept_edges=None)
    weights = jnp.ones_like(keep) if shard.edge_weight is None else shard.edge_weight
    count, weight, loops = propagate(
        whole, _counted, shard.node_ids, shard.node_ids, (keep, weights)
    )
    weighted = shard.weighted_in_degree
    degrees = Degrees(
        count.astype(shard.in_degree.dtype),
        loops == 0,
        None if weighted is None else weight.astype(weighted.dtype),
    )
    return shard.with_edges(kept_edges=keep, at_receivers=degrees)


def _counted(sender: Any, receiver: Any, edge: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """1, the weight, and 1 of a self-loop; 0 of an edge that is dropped."""
    keep, weight = edge
    one = keep.astype(jnp.float32)
    return (
        one,
        jnp.where(keep, weight, 0).astype(jnp.result_type(weight, one)),
        one * (sender == receiver),
    )
