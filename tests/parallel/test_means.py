"""Means are divided in the type in which they are summed, and rounded once."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from jaxgraph import layers
from jaxgraph.parallel import make_mesh, propagate, shard, spmd
from jaxgraph.partition import partition

NODES = 1001
PARTS = pytest.mark.parametrize("parts", [1, 3])


def star(values: np.ndarray) -> jg.Graph:
    """Every other node sends to node 0."""
    others = np.arange(1, NODES)
    return jg.Graph(others, np.zeros_like(others), NODES, nodes=values)


def hub_of(graph: jg.Graph, parts: int, dtype: Any, convolve: Any, implementation: Any) -> Any:
    parted = partition(graph, parts, "hash")
    placed = shard(graph, parted, make_mesh(parts), implementation=implementation)
    rows = spmd(lambda s: convolve(s, s.nodes.astype(dtype)), outputs="rows")(placed)
    assert rows.dtype == dtype
    return np.asarray(rows[0].astype(jnp.float32))


def by_message(shard: Any, x: jax.Array) -> jax.Array:
    return propagate(shard, lambda sender, receiver, edge: sender, x, reduce="mean")


def by_layer(shard: Any, x: jax.Array) -> jax.Array:
    one = jnp.eye(x.shape[1])
    return layers.sage_conv({"self_kernel": 0 * one, "neighbor_kernel": one}, shard, x)


@PARTS
@pytest.mark.parametrize("implementation", ["xla", None])
@pytest.mark.parametrize("convolve", [by_message, by_layer])
def test_the_sum_of_a_mean_does_not_overflow(convolve, implementation, parts):
    graph = star(np.full((NODES, 2), 100.0, np.float32))
    found = hub_of(graph, parts, jnp.float16, convolve, implementation)
    np.testing.assert_array_equal(found, 100.0)


@PARTS
@pytest.mark.parametrize("convolve", [by_message, by_layer])
def test_means_are_rounded_once(convolve, parts):
    """Sums of 8 bits' numbers are exact in 32 bits, so one rounding is the only error."""
    values = np.random.default_rng(0).integers(-128, 128, (NODES, 200)) / 128
    found = hub_of(star(values.astype(np.float32)), parts, jnp.bfloat16, convolve, None)
    exact = jnp.asarray(values[1:].mean(0), jnp.bfloat16).astype(jnp.float32)
    np.testing.assert_array_equal(found, exact)


def test_gradients_of_means_keep_the_type_of_the_rows():
    graph = star(np.ones((NODES, 2), np.float32))
    loss = functools.partial(propagate, graph, lambda s, r, e: s, reduce="mean")
    gradient = jax.grad(lambda x: jnp.sum(loss(x)).astype(jnp.float32))(
        jnp.ones((NODES, 2), jnp.float16)
    )
    assert gradient.dtype == jnp.float16
    np.testing.assert_allclose(gradient[1:], 1 / (NODES - 1), rtol=2**-10)
    np.testing.assert_array_equal(gradient[0], 0)
