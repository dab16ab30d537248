"""The messages of the library's own layers and ops.

Each takes `(params, sender, receiver, edge)` of a chunk of edges and closes over nothing but
numbers. It is the same object (or an equal one) every time, so that JAX finds compiled programs
again. A kernel recognises its messages by comparing with these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.precision import accumulation_dtype, to_accumulation

Pytree = Any
MessageFn = Callable[[Pytree, Pytree, Pytree, Pytree], Pytree]


def sum_message(params: Pytree, sender: Pytree, receiver: Pytree, edge: Pytree) -> Pytree:
    """m_ij = x_j."""
    return sender


def edge_message(params: Pytree, sender: Pytree, receiver: Pytree, edge: Pytree) -> Pytree:
    """m_ij = e_ij."""
    return edge


def weighted_message(
    params: Pytree, sender: jax.Array, receiver: Pytree, edge: jax.Array
) -> jax.Array:
    """m_ij = w_ij x_j, not rounded to 16 bits, so that differences of weights stay exact."""
    edge = to_accumulation(edge.reshape(edge.shape + (1,) * (sender.ndim - edge.ndim)))
    return (edge * to_accumulation(sender)).astype(accumulation_dtype(sender.dtype))


def sum_of_ends(params: Pytree, sender: jax.Array, receiver: jax.Array, edge: Pytree) -> jax.Array:
    """s_j + r_i, added in 32 bits."""
    total = to_accumulation(sender) + to_accumulation(receiver)
    return total.astype(jnp.result_type(sender, receiver))


@dataclasses.dataclass(frozen=True)
class GatMessage:
    """m_ij = (leaky_relu(l_j + r_i), v_j): logits and values of GAT's attention.

    Attributes:
      negative_slope: slope of the leaky ReLU.

    Takes sender `(values [edges, heads, features], logits [edges, heads])` and receiver
    logits [edges, heads].

    References:
      Velickovic et al., "Graph attention networks", 2018, equation 3.
    """

    negative_slope: float

    def __call__(
        self,
        params: Pytree,
        sender: tuple[jax.Array, jax.Array],
        receiver: jax.Array,
        edge: Pytree,
    ) -> tuple[jax.Array, jax.Array]:
        values, sender_logits = sender
        logits = to_accumulation(sender_logits) + to_accumulation(receiver)
        return jax.nn.leaky_relu(logits, self.negative_slope), values


@dataclasses.dataclass(frozen=True)
class GatV2Message:
    """m_ij = (<a, leaky_relu(s_j + r_i)>, s_j): logits and values of GATv2's attention.

    Attributes:
      negative_slope: slope of the leaky ReLU.

    Takes params a [heads, features], sender and receiver [edges, heads, features].

    References:
      Brody, Alon and Yahav, "How attentive are graph attention networks?", 2022, equation 7.
    """

    negative_slope: float

    def __call__(
        self, params: jax.Array, sender: jax.Array, receiver: jax.Array, edge: Pytree
    ) -> tuple[jax.Array, jax.Array]:
        hidden = to_accumulation(sender) + to_accumulation(receiver)
        hidden = jax.nn.leaky_relu(hidden, self.negative_slope)
        return jnp.sum(to_accumulation(params)[None] * hidden, -1), sender


@dataclasses.dataclass(frozen=True)
class DotMessage:
    """m_ij = (scale <q_i, k_j>, v_j): logits and values of dot-product attention.

    Attributes:
      scale: factor of the products.

    Takes sender `(keys, values)` and receiver queries, each [edges, heads, features].

    References:
      Vaswani et al., "Attention is all you need", 2017, equation 1.
    """

    scale: float

    def __call__(
        self,
        params: Pytree,
        sender: tuple[jax.Array, jax.Array],
        receiver: jax.Array,
        edge: Pytree,
    ) -> tuple[jax.Array, jax.Array]:
        keys, values = sender
        products = to_accumulation(keys) * to_accumulation(receiver)
        return self.scale * jnp.sum(products, -1), values
