"""Replacing the data of a relation's edges together with what follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.layout.schema import EDGE_DATA
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.message_functions import edge_message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Sum
from jaxgraph.parallel.relation import Relation


def with_edge_data(relation: Relation, changes: Mapping[str, Any]) -> Relation:
    """The relation with other data of its edges; see `jaxgraph.parallel.Shard.replace`."""
    unknown = sorted(changes.keys() - set(EDGE_DATA))
    if unknown:
        raise ValueError(
            f"shard.replace replaces {', '.join(EDGE_DATA)}, and got {unknown[0]!r}. Rows of nodes "
            "are arguments, layer(shard, x), and other data of edges propagate(..., edge=data)"
        )
    given = {name: data for name, data in changes.items() if data is not None}
    for name, data in given.items():
        shape = jnp.shape(data)
        if shape[:1] != (relation.edge_slots,) or (name != "edges" and len(shape) != 1):
            raise ValueError(
                f"shard.replace: {name} has shape {list(shape)}; expected an entry for each of "
                f"the {relation.edge_slots} slots of edges, as shard.{name} or an array of "
                "shard.edge_data has"
            )
    changed: dict[str, Any] = {**changes, **match_variation(given, relation.receivers.node_mask)}
    if "edge_weight" in changes:
        weight, degrees = changed["edge_weight"], relation.arrays.at_receivers
        weighted = None if weight is None else _degrees(relation, weight)
        changed["at_receivers"] = dataclasses.replace(degrees, weighted_in_degree=weighted)
        changed["has_own_weights"] = True
    return relation.with_arrays(**changed)


def _degrees(relation: Relation, weight: jax.Array) -> jax.Array:
    """Sums the weights of the edges that enter each node, in the type of degrees."""
    known = relation.receivers.weighted_in_degree
    dtype = jnp.promote_types(weight.dtype, jnp.float32) if known is None else known.dtype
    return relation.propagate(edge_message, Sum(), Inputs((), (), (), weight.astype(dtype)))
