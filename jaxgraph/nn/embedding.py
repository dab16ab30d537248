"""Learned features for graphs without features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph.nn import parameters
from jaxgraph.nn.module import Module
from jaxgraph.parallel import Shard
from jaxgraph.parallel.whole_graph import nodes_on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph

_normal = nnx.initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)


class NodeEmbedding(Module):
    """One learned row for every node of the graph, or of one of its sets.

    Rows are drawn in the graph's order, so that the partition does not change them;
    `jaxgraph.parallel.place_rows` then moves each to the shard of its node, and no device holds all
    rows.

    Args:
      num_nodes: nodes of the whole graph, or of the set.
      features: length of a row.
      table: the set of nodes of a `jaxgraph.TypedGraph`; None: the only one, or the target.
      dtype: type of the rows that the model reads, such as jnp.bfloat16; None: that of the
        parameters.
      param_dtype: type of the learned rows.
      rngs: source of the initial rows, normal with variance 1 / features.
    """

    def __init__(
        self,
        num_nodes: int,
        features: int,
        *,
        table: str | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        parameters.check_sizes(num_nodes=num_nodes, features=features)
        self.dtype = parameters.checked_dtype(dtype, param_dtype)
        parameters.refuse_too_large((num_nodes, features), param_dtype)
        rows = _normal(parameters.next_key(rngs), (num_nodes, features), param_dtype)
        self.rows = nnx.Param(rows, rows="nodes", table=table)

    def __call__(self, shard: Graph | Shard) -> jax.Array:
        """Returns the rows of the shard's nodes, of its set, float [rows, features].

        Raises:
          ValueError: the rows are not split over the shards of this graph.
        """
        shard, _ = nodes_on_device(shard)
        rows, table = self.rows.get_value(), self.rows.get_metadata().get("table")
        nodes = shard.table(table) if isinstance(shard, Shard) else shard
        if rows.shape[0] != nodes.num_rows:
            raise ValueError(
                f"the embedding has {rows.shape[0]} rows and the shard {nodes.num_rows}; split "
                "the state with jaxgraph.parallel.place_rows(state, sharded) first"
            )
        return parameters.in_dtype(rows, self.dtype)
