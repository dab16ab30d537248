"""Dropping whole edges at random (DropEdge), for layers that sum or average over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxgraph.layers.dense import check_rate
from jaxgraph.parallel import Shard, keep_edges, propagate
from jaxgraph.parallel.node_table import Degrees
from jaxgraph.parallel.relation import Relation
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


def dropout_edge(
    shard: Graph | Shard, key: jax.Array, *, rate: float, relation: str | None = None
) -> Shard:
    """Drops each edge at random, and returns the graph of the kept edges.

    keep_e = hash(key, receiver id, sender id, repetition) >= rate * 2^32

    A draw depends on the edge alone: neither the partition nor the number of devices changes it.
    Layers that sum or average use the kept edges and their degrees: GCN, GCNII, APPNP, GIN, and
    GraphSAGE and `propagate` with a sum or a mean. Nothing is scaled. R-GCN, attention, maxima and
    minima refuse the result.

        def __call__(self, shard, x, *, key=None, train=False):
            if train:
                shard = jg.layers.dropout_edge(shard, jax.random.fold_in(key, 99), rate=0.2)
            return super().__call__(shard, x, key=key, train=train)

    Args:
      shard: a graph, on one device; or the shard, under `spmd`.
      key: scalar random key, the same on every device.
      rate: probability of dropping an edge, a Python number in [0, 1).
      relation: the set of edges of a `jaxgraph.TypedGraph`; None: the only one.

    Returns:
      The shard with fewer edges. For a graph, its rows are the nodes in their order.

    Raises:
      ValueError: the first argument is neither graph nor shard, the key is no typed scalar key,
        the rate is out of range, or there are several relations and none is named.

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
    given = shard.relation(relation)
    senders, receivers = given.senders, given.receivers
    keep = keep_edges(given, key, rate)
    if given.kept_edges is not None:
        keep = keep & given.kept_edges
    whole = given.with_arrays(kept_edges=None)
    weights = jnp.ones_like(keep) if given.edge_weight is None else given.edge_weight
    count, weight, loops = propagate(
        whole, _counted, senders.node_ids, receivers.node_ids, (keep, weights)
    )
    weighted = receivers.weighted_in_degree
    degrees = Degrees(
        count.astype(receivers.in_degree.dtype),
        loops == 0 if given.arrays.receivers_first else receivers.missing_self_loop,
        None if weighted is None else weight.astype(weighted.dtype),
    )
    changes: dict[str, Any] = {"kept_edges": keep, "at_receivers": degrees}
    if given.arrays.at_senders is not None:
        changes["at_senders"] = _leaving(whole, keep, weights)
    return shard.with_edges(relation, **changes)


def _leaving(relation: Relation, keep: jax.Array, weights: jax.Array) -> Degrees:
    """The degrees of senders of another table: the sums over the kept edges that leave them."""
    senders = relation.senders
    kept = jnp.where(keep, weights, 0).astype(senders.degree.dtype)

    def sums(ones: jax.Array) -> jax.Array:
        return propagate(relation, lambda sender, _, weight: sender * weight, ones, edge=kept)

    total, pull = jax.vjp(sums, jnp.ones_like(senders.degree))
    return Degrees(None, senders.missing_self_loop, *pull(jnp.ones_like(total)))


def _counted(sender: Any, receiver: Any, edge: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """1, the weight, and 1 of a self-loop; 0 of an edge that is dropped."""
    keep, weight = edge
    one = keep.astype(jnp.float32)
    return (
        one,
        jnp.where(keep, weight, 0).astype(jnp.result_type(weight, one)),
        one * (sender == receiver),
    )
