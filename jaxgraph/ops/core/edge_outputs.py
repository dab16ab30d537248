"""One value per edge, under every schedule.

The output f_e of an edge is the gradient of the sum of f_e d_e over all edges with respect to d_e.
So the pull of that sum to the edges computes it under every schedule, and the pull to the other
inputs computes its derivative.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.derivatives import custom_vjp
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import (
    Inputs,
    MessageFn,
    Wanted,
    floating_leaves,
    message_shapes,
)
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.propagation import (
    Neighborhood,
    Static,
    cotangents,
    primal_values,
    wanted_gradients,
)
from jaxgraph.ops.core.reducers import Sum

Pytree = Any


@dataclasses.dataclass(frozen=True)
class EdgeOutputs:
    """m_e = <f(params, s_j, r_i, x_e), d_e>, a number; takes `(x, d)` as edge data.

    It is never reduced. It is pulled with a gradient of 1: kernels may rely on that.

    Attributes:
      function: f.
    """

    function: MessageFn

    def __call__(self, params: Pytree, sender: Pytree, receiver: Pytree, edge: Pytree) -> jax.Array:
        data, weights = edge
        outputs = self.function(params, sender, receiver, data)

        def product(output: jax.Array, weight: jax.Array) -> jax.Array:
            axes = tuple(range(1, output.ndim))
            return jnp.sum(to_accumulation(output) * to_accumulation(weight), axes)

        return functools.reduce(jnp.add, jax.tree.leaves(jax.tree.map(product, outputs, weights)))


def edge_outputs(
    neighborhood: Neighborhood, function: MessageFn, inputs: Inputs, chunk: int = 1
) -> Pytree:
    """y_e = f(params, s_j, r_i, x_e) for every edge e: j -> i."""
    inputs = match_variation(inputs, (neighborhood, inputs))
    return _edge_outputs(function, chunk, neighborhood, inputs)


def sum_of_outputs(
    neighborhood: Neighborhood, function: MessageFn, inputs: Inputs, chunk: int = 1
) -> tuple[EdgeOutputs, Sum, Inputs]:
    """The sum whose pull back to the edges is `edge_outputs`."""
    shapes = message_shapes(function, inputs, chunk)
    slots = neighborhood.edge_slots
    unread = jax.tree.map(lambda leaf: jnp.zeros((slots, *leaf.shape[1:]), leaf.dtype), shapes)
    return EdgeOutputs(function), Sum(), dataclasses.replace(inputs, edge=(inputs.edge, unread))


@functools.partial(custom_vjp, nondiff_argnums=(0, 1))
def _edge_outputs(
    function: MessageFn, chunk: int, neighborhood: Neighborhood, inputs: Inputs
) -> Pytree:
    message, reducer, inputs = sum_of_outputs(neighborhood, function, inputs, chunk)
    wanted = Wanted(params=False, sender=False, receiver=False, edge=True)
    pulled = neighborhood.pull_sum(message, reducer, inputs, _ones(neighborhood, inputs), wanted)
    leaves, structure = jax.tree.flatten(inputs.edge[1])
    return structure.unflatten(pulled.edge[len(pulled.edge) - len(leaves) :])


def _ones(neighborhood: Neighborhood, inputs: Inputs) -> jax.Array:
    """The gradient, 1, of the sum of `EdgeOutputs`."""
    of_outputs = jax.tree.leaves(inputs.edge[1])
    dtype = jnp.result_type(*(to_accumulation(leaf[:0]).dtype for leaf in of_outputs))
    return match_variation(jnp.ones(neighborhood.receiver_rows, dtype), (neighborhood, inputs))


def _forward(function, chunk, neighborhood, inputs):
    wanted = Static(wanted_gradients(inputs))
    neighborhood, inputs = primal_values((neighborhood, inputs))
    outputs = _edge_outputs.value(function, chunk, neighborhood, inputs)
    return outputs, (neighborhood, inputs, wanted)


def _backward(function, chunk, residuals, gradient):
    neighborhood, inputs, wanted = residuals
    weighed = dataclasses.replace(inputs, edge=(inputs.edge, gradient))
    ones = _ones(neighborhood, weighed)
    pulled = neighborhood.pull_sum(EdgeOutputs(function), Sum(), weighed, ones, wanted.value)
    of_data = pulled.edge[: len(floating_leaves(inputs.edge))]
    return None, cotangents(inputs, dataclasses.replace(pulled, edge=of_data))


_edge_outputs.defvjp(_forward, _backward, symbolic_zeros=True)
