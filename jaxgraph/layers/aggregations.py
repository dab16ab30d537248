"""Aggregations without parameters, which act on each column of features independently.

They have three steps: nodes send rows, receivers fold messages, and receivers finish.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.layers.aggregated import Aggregation, FirstAggregation
from jaxgraph.layers.dense import rounded
from jaxgraph.ops.core.message_functions import sum_message, weighted_message
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.reducers import Reducer, Sum
from jaxgraph.ops.core.reductions import REDUCTIONS
from jaxgraph.parallel.feature_protocol import features_of
from jaxgraph.parallel.neighborhood import Neighborhood, Nodes
from jaxgraph.parallel.propagate import mean_over_edges


class _Aggregation:
    """Aggregations that reduce the senders' rows by a sum, a maximum or a minimum."""

    def send(self, nodes: Nodes, x: jax.Array, /) -> jax.Array:
        """The rows that nodes send, [rows, features]."""
        raise NotImplementedError

    def fold(self, dtype: Any, *, is_weighted: bool) -> tuple[MessageFn, Reducer]:
        """The message and the reducer, for rows of type `dtype`."""
        raise NotImplementedError

    def finish(self, nodes: Nodes, own: jax.Array, total: jax.Array) -> jax.Array:
        """The aggregation, from the receivers' own sent rows and the reduced messages."""
        raise NotImplementedError

    def receive(self, neighborhood: Neighborhood, sent: jax.Array, own: jax.Array, /) -> jax.Array:
        """Aggregates the senders' values and the receivers' own ones to [receivers, features]."""
        weights = neighborhood.edge_weight
        message, reducer = self.fold(sent.dtype, is_weighted=weights is not None)
        inputs = Inputs((), sent, (), () if weights is None else weights)
        total = neighborhood.propagate(message, reducer, inputs)
        return self.finish(neighborhood.receivers, own, total)

    @property
    def edge_data(self) -> tuple[str, ...]:
        """Names of the edge data that it uses."""
        return ("edge_weight",)


@dataclasses.dataclass(frozen=True)
class SymmetricSum(_Aggregation):
    """y_i = sum_{j -> i} w_ij x_j / sqrt(d_j d_i),  d_i = sum_{j -> i} w_ij

    Computed as s (A (s x)) with s = d^-1/2: messages carry a weight only where the graph has
    `edge_weight`; otherwise w_ij = 1. A node with d_i <= 0 receives 0.

    Attributes:
      add_self_loops: whether a node without a self-loop counts as having one, of weight 1.
    """

    add_self_loops: bool = True

    @property
    def is_linear(self) -> bool:
        """True where the aggregation commutes with a linear map of the features."""
        return True

    def send(self, nodes: Nodes, x: jax.Array, /) -> jax.Array:
        """Scales x to s x, [rows, features]."""
        return rounded(self._factors(nodes, x) * x, x)

    def fold(self, dtype: Any, *, is_weighted: bool) -> tuple[MessageFn, Reducer]:
        """The sum of the senders' rows, weighted where the edges have weights."""
        return (weighted_message, Sum(dtype)) if is_weighted else (sum_message, Sum())

    def finish(self, nodes: Nodes, own: jax.Array, total: jax.Array) -> jax.Array:
        """s (A (s x)), [receivers, features]."""
        if self.add_self_loops:
            missing = nodes.missing_self_loop & nodes.node_mask
            total = total + jnp.where(missing[:, None], own, jnp.zeros((), own.dtype))
        return rounded(self._factors(nodes, own) * total, own)

    def _factors(self, nodes: Nodes, like: jax.Array) -> jax.Array:
        """s [rows, 1], in the type of `like` but at least 32 bits."""
        degree = nodes.degree.astype(jnp.promote_types(like.dtype, jnp.float32))
        if self.add_self_loops:
            degree = degree + (nodes.missing_self_loop & nodes.node_mask)
        some = degree > 0
        return jnp.where(some, jax.lax.rsqrt(jnp.where(some, degree, 1)), 0)[:, None]


@dataclasses.dataclass(frozen=True)
class SymmetricPower(SymmetricSum):
    """A^steps x with the A of `SymmetricSum`, of which its messages are one step.

    Attributes:
      steps: number of steps.
    """

    steps: int = 2


@dataclasses.dataclass(frozen=True)
class NeighborReduction(_Aggregation):
    """y_i = reduce_{j -> i}(w_ij x_j), and 0 without neighbours

    w_ij = 1 where the graph has no `edge_weight`. A mean divides by the number of edges, not by the
    sum of their weights.

    Attributes:
      reduce: "sum", "mean", "max" or "min".
    """

    reduce: str

    @property
    def is_linear(self) -> bool:
        """True where the aggregation commutes with a linear map of the features."""
        return self.reduce in ("sum", "mean")

    def send(self, nodes: Nodes, x: jax.Array, /) -> jax.Array:
        """x as it is."""
        return x

    def fold(self, dtype: Any, *, is_weighted: bool) -> tuple[MessageFn, Reducer]:
        """The sum, the maximum or the minimum, weighted where the edges have weights."""
        message = weighted_message if is_weighted else sum_message
        if self.reduce == "mean":
            return message, Sum(wide=(jnp.dtype(dtype),))
        if self.is_linear:
            return message, Sum(dtype) if is_weighted else Sum()
        return message, REDUCTIONS[self.reduce].reducer()

    def finish(self, nodes: Nodes, own: jax.Array, total: jax.Array) -> jax.Array:
        """The reduction, [receivers, features]."""
        return rounded(
            mean_over_edges(nodes, total, False) if self.reduce == "mean" else total, own
        )


def first_aggregation(aggregation: Aggregation, kernel: jax.Array) -> FirstAggregation:
    """The first aggregation of a model whose first layer maps the aggregate of the features."""
    return FirstAggregation(aggregation, kernel.shape[1 if narrows(aggregation, kernel) else 0])


def narrows(aggregation: Aggregation, kernel: jax.Array) -> bool:
    return aggregation.is_linear and kernel.shape[1] <= kernel.shape[0]


def stored(neighborhood: Any, x: Any, aggregation: Aggregation, joined: bool | None = None) -> Any:
    """Features that store an aggregation; None if they do not, or edges or weights are others."""
    features = features_of(x)
    all_edges = getattr(neighborhood, "kept_edges", None) is None
    same = all_edges and not getattr(neighborhood, "has_own_weights", False)
    return features if same and features.stores(aggregation, joined) else None
