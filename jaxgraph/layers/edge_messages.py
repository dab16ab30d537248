"""Messages that read edge features, and map them a chunk of edges at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.precision import accumulation_dtype, to_accumulation

Pytree = Any


class _Attending:
    """Attention messages; an added self-loop takes the mean of the node's edge features.

    With `self_loops` receivers are pairs, see `jaxgraph.parallel.conv_stages.ConvStages`.
    """

    def __call__(
        self, params: Pytree, sender: Pytree, receiver: Pytree, edge: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        own = receiver[0] if isinstance(receiver, tuple) else receiver
        return self.message(params, sender, own, to_accumulation(edge))

    def to_itself(
        self, params: Pytree, sender: Pytree, receiver: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        own, mean = receiver
        return self.message(params, sender, own, to_accumulation(mean))

    def message(
        self, params: Pytree, sender: Pytree, receiver: jax.Array, edge: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class EdgeGatMessage(_Attending):
    """m_ij = (leaky_relu(l_j + r_i + e_ij M), v_j)

    Params M [edge_features, heads], sender (v [edges, heads, features], l [edges, heads]), receiver
    r [edges, heads], edge e [edges, edge_features].

    References:
      Velickovic et al., "Graph attention networks", 2018, equation 3.
    """

    negative_slope: float

    def message(
        self,
        params: jax.Array,
        sender: tuple[jax.Array, jax.Array],
        receiver: jax.Array,
        edge: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        values, logits = sender
        total = to_accumulation(logits) + to_accumulation(receiver)
        total = total + edge @ to_accumulation(params)
        return jax.nn.leaky_relu(total, self.negative_slope), values


@dataclasses.dataclass(frozen=True)
class EdgeGatV2Message(_Attending):
    """m_ij = (<a, leaky_relu(s_j + r_i + e_ij W)>, s_j)

    Params a [heads, features] and W [edge_features, heads, features], sender and receiver [edges,
    heads, features], edge e [edges, edge_features].

    References:
      Brody, Alon and Yahav, "How attentive are graph attention networks?", 2022, equation 7.
    """

    negative_slope: float

    def message(
        self,
        params: tuple[jax.Array, jax.Array],
        sender: jax.Array,
        receiver: jax.Array,
        edge: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        attention, kernel = map(to_accumulation, params)
        hidden = to_accumulation(sender) + to_accumulation(receiver)
        hidden = hidden + jnp.tensordot(edge, kernel, 1)
        hidden = jax.nn.leaky_relu(hidden, self.negative_slope)
        return jnp.sum(attention[None] * hidden, -1), sender


def gine_message(
    params: tuple[jax.Array, jax.Array | None],
    sender: jax.Array,
    receiver: Pytree,
    edge: jax.Array,
) -> jax.Array:
    """m_ij = relu(x_j + e_ij W + b), in the accumulation type of x."""
    kernel, bias = params
    total = to_accumulation(sender) + to_accumulation(edge) @ to_accumulation(kernel)
    total = total if bias is None else total + to_accumulation(bias)
    return jax.nn.relu(total).astype(accumulation_dtype(sender.dtype))
