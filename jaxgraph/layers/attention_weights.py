"""Attention coefficients, one for every edge and head."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxgraph.layers.edge_data import check_edge_features
from jaxgraph.ops.core.edge_outputs import edge_outputs
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.edge_normalization import edge_softmax
from jaxgraph.parallel.conv_stages import ConvStages, Pair, stage_inputs
from jaxgraph.parallel.feature_protocol import Features
from jaxgraph.parallel.neighborhood import Neighborhood
from jaxgraph.parallel.whole_graph import edges_of_slots, on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph

Pytree = Any


def attention_weights(
    stages: ConvStages,
    params: Mapping[str, jax.Array],
    neighborhood: Graph | Neighborhood,
    x: Features | Pair,
) -> jax.Array:
    """Computes the coefficients by which an attention layer weights its messages.

    alpha_ij = exp(l_ij) / sum_{k -> i} exp(l_ik), with the self-loops that the layer adds

    Differentiable in parameters and features. Dropout is not applied. The layer itself never stores
    coefficients.

    Args:
      stages: the layer's, such as `gat_stages(params)`.
      params: the layer's.
      neighborhood: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
      x: as for the layer.

    Returns:
      float [slots, heads], 0 in slots without an edge (`jaxgraph.parallel.gather_edges` puts them
      into the graph's order); for a graph [num_edges, heads], in that order.

    Raises:
      ValueError: the layer has no attention, or does not fit the graph's edge data.
    """
    given = neighborhood
    neighborhood, x = on_device(given, x)
    message, reducer = stages.message, stages.reducer
    if not isinstance(reducer, Softmax):
        raise ValueError(
            "attention_weights was given the stages of a layer without attention; expected those "
            "of one whose messages a softmax weights, such as jaxgraph.layers.gat_stages(params)"
        )
    check_edge_features(neighborhood, "attention_weights", params.get("edge_kernel"))
    inputs, _ = stage_inputs(stages, params, neighborhood, x)
    logits = edge_outputs(neighborhood, _Logits(message), inputs, neighborhood.edge_chunk)
    weights = edge_softmax(neighborhood, logits)
    if stages.self_loops:
        softmax = Softmax(heads=reducer.heads)
        of_edges = neighborhood.propagate(_EdgeShare(message), softmax, inputs, self_loops=True)
        shares = Inputs((), (), of_edges[..., 0], weights)
        weights = edge_outputs(neighborhood, _share_of, shares, neighborhood.edge_chunk)
    return edges_of_slots(given, weights)


@dataclasses.dataclass(frozen=True)
class _Logits:
    """The logits of an attention message."""

    message: MessageFn

    def __call__(self, params: Pytree, sender: Pytree, receiver: Pytree, edge: Pytree) -> jax.Array:
        return self.message(params, sender, receiver, edge)[0]


@dataclasses.dataclass(frozen=True)
class _EdgeShare:
    """Messages 1 of edges and 0 of added self-loops: their weighted sum is the edges' share."""

    message: MessageFn

    def __call__(
        self, params: Pytree, sender: Pytree, receiver: Pytree, edge: Pytree
    ) -> tuple[jax.Array, jax.Array]:
        logits = self.message(params, sender, receiver, edge)[0]
        return logits, jnp.ones_like(logits)[..., None]

    def to_itself(
        self, params: Pytree, sender: Pytree, receiver: Pytree
    ) -> tuple[jax.Array, jax.Array]:
        if hasattr(self.message, "to_itself"):
            logits = self.message.to_itself(params, sender, receiver)[0]
        else:
            logits = self.message(params, sender, receiver, ())[0]
        return logits, jnp.zeros_like(logits)[..., None]


def _share_of(params: Pytree, sender: Pytree, share: jax.Array, weight: jax.Array) -> jax.Array:
    return weight * share
