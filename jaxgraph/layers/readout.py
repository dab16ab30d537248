"""Rows that a task reads, reduced from rows of nodes."""

from __future__ import annotations

import jax

from jaxgraph.layers.aggregations import NeighborReduction
from jaxgraph.layers.edge_data import check_edge_data
from jaxgraph.ops.core.reductions import check_reduction
from jaxgraph.parallel.relation import Relation


def readout(relation: Relation, x: jax.Array, *, reduce: str = "sum") -> jax.Array:
    """y_i = reduce_{j -> i} x_j

    Args:
      relation: edges without weights, from nodes to the rows that read them, such as their graphs.
      x: float [senders, features].
      reduce: "sum", "mean", "max" or "min".

    Returns:
      float [receivers, features]; 0 where no edge ends.

    Raises:
      ValueError: the reduction is unknown, or the edges have data, which would be ignored.
    """
    check_reduction(reduce)
    check_edge_data(relation, "readout")
    return NeighborReduction(reduce).receive(relation, x, x)
