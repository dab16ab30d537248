"""Softmax over the edges that enter a node."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.arguments import check_neighborhood, check_slots
from jaxgraph.ops.core.derivatives import custom_vjp, forward_of
from jaxgraph.ops.core.edge_outputs import edge_outputs
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.propagation import Neighborhood
from jaxgraph.ops.core.reducers import Normalizer, Sum
from jaxgraph.ops.dispatch import placed_for


def edge_softmax(
    neighborhood: Neighborhood, logits: jax.Array, *, implementation: str | None = None
) -> jax.Array:
    """Normalises numbers per edge over the edges that enter each receiver.

    alpha_e = exp(l_e) / sum_{f -> i} exp(l_f)  for e -> i

    Computed with a running maximum. Differentiable:
    dl_e = alpha_e (g_e - sum_{f -> i} alpha_f g_f). Where the coefficients only weight a sum, use
    `gat_attention` or `gatv2_attention`, which never store them.

    Args:
      neighborhood: the edges: a shard under `jaxgraph.parallel.spmd`.
      logits: [slots, heads], floating; -inf removes an edge.
      implementation: as for `jaxgraph.ops.aggregate`; only "xla" computes this.

    Returns:
      [slots, heads]; 0 in slots without an edge and where all edges of a receiver are at -inf.

    Raises:
      ValueError: logits have the wrong shape or type, or a name is unknown.
      NotImplementedError: the named implementation cannot compute this.

    References:
      Velickovic et al., "Graph attention networks", 2018, equation 2; Milakov and Gimelshein,
      "Online normalizer calculation for softmax", 2018.
    """
    check_neighborhood(neighborhood)
    heads = jnp.shape(logits)[1:2] or (1,)
    check_slots(neighborhood, "logits", logits, (heads,))
    reduction = _without_values, Normalizer(heads=heads[0]), Inputs((), (), (), logits)
    neighborhood = placed_for(implementation, "edge_softmax", neighborhood, *reduction)
    return _normalize(neighborhood, match_variation(logits, (neighborhood, logits)))


def _without_values(params: tuple, sender: tuple, receiver: tuple, logits: jax.Array) -> tuple:
    return logits, logits[..., None][..., :0]


def _coefficient(params: tuple, sender: tuple, receiver: Any, logits: jax.Array) -> jax.Array:
    peak, total = receiver
    return (jnp.exp(to_accumulation(logits) - peak) / total).astype(logits.dtype)


def _weighted_gradient(params: tuple, sender: tuple, receiver: tuple, edge: Any) -> jax.Array:
    alpha, gradient = edge
    return to_accumulation(alpha) * to_accumulation(gradient)


def _logit_gradient(params: tuple, sender: tuple, inner: jax.Array, edge: Any) -> jax.Array:
    alpha, gradient = edge
    centered = to_accumulation(gradient) - inner
    return (to_accumulation(alpha) * centered).astype(alpha.dtype)


def _coefficients(neighborhood: Neighborhood, logits: jax.Array) -> jax.Array:
    reducer, inputs = Normalizer(heads=logits.shape[1]), Inputs((), (), (), logits)
    normalizer = neighborhood.propagate(_without_values, reducer, inputs)
    return edge_outputs(neighborhood, _coefficient, Inputs((), (), normalizer, logits))


@custom_vjp
def _normalize(neighborhood: Neighborhood, logits: jax.Array) -> jax.Array:
    return _coefficients(neighborhood, logits)


def _forward(neighborhood, logits):
    alpha = forward_of(lambda logits: _coefficients(neighborhood, logits), logits)
    return alpha, (neighborhood, alpha)


def _backward(residuals, gradient):
    neighborhood, alpha = residuals

    def of_logits(alpha: jax.Array, gradient: jax.Array) -> jax.Array:
        edge = (alpha, gradient)
        inputs = Inputs((), (), (), edge)
        inner = neighborhood.propagate(_weighted_gradient, Sum(), inputs)
        return edge_outputs(neighborhood, _logit_gradient, Inputs((), (), inner, edge))

    return None, forward_of(of_logits, alpha, gradient)


_normalize.defvjp(_forward, _backward)
