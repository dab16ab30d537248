"""Replacing the data of a shard's edges together with what follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxgraph.layout.schema import EDGE_DATA
from jaxgraph.ops.core.edges import match_variation

if TYPE_CHECKING:
    from jaxgraph.parallel.shard import Shard


def refuse_stale(value: Shard) -> None:
    """Raises ValueError where `dataclasses.replace` changed edge data and left what follows."""
    own = {name: getattr(value, name, None) for name in (*EDGE_DATA, "kept_edges")}
    if value.follows_from is None:
        object.__setattr__(value, "follows_from", own)
        return
    for name, data in own.items():
        if data is not value.follows_from[name] and (data is not None or name == "edge_weight"):
            raise ValueError(
                f"dataclasses.replace(..., {name}=...) leaves what follows from {name}, such as "
                f"the degrees of the nodes, as it was; call "
                "shard.replace, with arrays by slot, or jaxgraph.layers.dropout_edge"
            )


def with_edge_data(shard: Shard, changes: Mapping[str, Any]) -> Shard:
    """The shard with other data of its edges; see `Shard.replace`."""
    unknown = sorted(changes.keys() - set(EDGE_DATA))
    if unknown:
        raise ValueError(
            f"shard.replace replaces {', '.join(EDGE_DATA)}, and got {unknown[0]!r}. Rows of nodes "
            "are arguments, layer(shard, x), and other data of edges propagate(..., edge=data)"
        )
    given = {name: data for name, data in changes.items() if data is not None}
    for name, data in given.items():
        shape = jnp.shape(data)
        if shape[:1] != (shard.edge_slots,) or (name != "edges" and len(shape) != 1):
            raise ValueError(
                f"shard.replace: {name} has shape {list(shape)}; expected an entry for each of "
                f"the {shard.edge_slots} slots of edges, as shard.{name} or an array of "
                "shard.edge_data has"
            )
    changed: dict[str, Any] = {**changes, "follows_from": None}
    changed |= match_variation(given, shard.node_mask)
    if "edge_type" in changes:
        changed["manifest"] = dataclasses.replace(shard.manifest, num_edge_types=0)
    if "edge_weight" in changes:
        weight = changed["edge_weight"]
        changed["weighted_in_degree"] = None if weight is None else _degrees(shard, weight)
        changed["has_own_weights"] = True
    if given or "edge_weight" in changes:
        # The columns of mode "p3" have edge data of their own.
        changed["columns"] = None
    return dataclasses.replace(shard, **changed)


def _degrees(shard: Shard, weight: jax.Array) -> jax.Array:
    """Sums the weights of the edges that enter each node, in the type of degrees."""
    # A local import: it imports the class of the shard.
    from jaxgraph.parallel.propagate import propagate

    known = shard.weighted_in_degree
    dtype = jnp.promote_types(weight.dtype, jnp.float32) if known is None else known.dtype
    return propagate(shard, lambda sender, receiver, w: w, edge=weight.astype(dtype))
