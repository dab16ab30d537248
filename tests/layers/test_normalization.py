"""Normalisation against the float64 reference, on parts of unequal size, one of them empty."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.analysis import traffic
from jaxgraph.layers import batch_norm, layer_norm, normalize
from jaxgraph.layers.normalization import batch_statistics
from jaxgraph.parallel import ShardedGraph, gather_rows, make_mesh, shard, spmd
from jaxgraph.partition import Partition
from tests.oracles import functions
from tests.oracles.tape import differentiate
from tests.strategies import NUM_FEATURES, skewed_assignment
from tests.tolerance import assert_close
from tests.training import crooked_features, crooked_graph, crooked_sharded, poisoned

RNG = np.random.default_rng(1)
SCALE, BIAS = RNG.standard_normal((2, NUM_FEATURES)).astype(np.float32)
PARAMS = {"scale": SCALE.astype(np.float64), "bias": BIAS.astype(np.float64)}


@cache
def skewed(num_parts: int) -> ShardedGraph:
    graph = crooked_graph()
    assignment = skewed_assignment(graph.num_nodes, num_parts)
    return shard(graph, Partition(assignment, num_parts, "skewed"), make_mesh(num_parts))


def batch(shard: Any, x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    return normalize(shard, x, *batch_statistics(shard, x), scale, bias)


def batch_at_once(shard: Any, x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    return batch_norm(shard, x, scale, bias)[0]


LAYERS = {
    "batch": (batch, functions.batch_norm),
    "batch at once": (batch_at_once, functions.batch_norm),
    "layer": (layer_norm, functions.layer_norm),
}


def values_and_gradients(layer: Any, sharded: ShardedGraph, shift: float) -> Any:
    """y, dx, dscale and dbias of <y, cos(node)>."""

    def step(scale: jax.Array, bias: jax.Array, shard: Any) -> Any:
        def loss(x: jax.Array, scale: jax.Array, bias: jax.Array) -> Any:
            y = layer(shard, x, scale, bias)
            return shard.sum(jnp.sum(shard.mask_rows(y * jnp.cos(shard.node_ids)[:, None]))), y

        x = 3 * shard.nodes + shift
        (_, y), grads = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, scale, bias)
        return (y, grads[0]), grads[1:]

    rows, replicated = spmd(step, outputs=("rows", "replicated"))(SCALE, BIAS, sharded)
    return [*(gather_rows(value, sharded) for value in rows), *replicated]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("num_parts", [1, 4])
def test_values_and_gradients(name: str, num_parts: int) -> None:
    layer, oracle = LAYERS[name]
    actual = values_and_gradients(layer, skewed(num_parts), 1.0)
    x = 3 * crooked_features() + 1.0
    y, backward = differentiate(oracle, PARAMS, x)
    grads, grad_x = backward(np.broadcast_to(np.cos(np.arange(len(x)))[:, None], x.shape))
    expected = [y, grad_x, grads["scale"], grads["bias"]]
    for mine, theirs in zip(actual, expected, strict=True):
        assert_close(mine, theirs, reduction_length=len(x))


def test_the_mean_of_one_node_is_the_node() -> None:
    graph = Graph.from_edges([0], [0], nodes=np.array([[3.0, -2.0]]))
    mean, var = spmd(lambda s: batch_statistics(s, s.nodes))(shard(graph, None, make_mesh(1)))
    np.testing.assert_array_equal((mean, var), ([3, -2], [0, 0]))


def test_the_variance_of_features_far_from_zero_survives() -> None:
    """E[x^2] - E[x]^2 would lose all digits of a variance of 1 around a mean of 4000."""

    def step(shard: Any) -> Any:
        return batch_statistics(shard, shard.nodes + 4000)

    _, var = spmd(step)(skewed(4))
    shifted = crooked_features() + 4000
    np.testing.assert_allclose(var, shifted.var(0), rtol=1e-3)


def test_statistics_of_sixteen_bits_are_kept_in_thirty_two() -> None:
    def step(shard: Any) -> Any:
        x = shard.nodes.astype(jnp.bfloat16)
        statistics = batch_statistics(shard, x)
        return statistics, normalize(shard, x, *statistics, jnp.ones(5), jnp.zeros(5))

    (mean, var), y = spmd(step, outputs=("replicated", "rows"))(skewed(2))
    assert (mean.dtype, var.dtype, y.dtype) == (jnp.float32, jnp.float32, jnp.bfloat16)
    rounded = np.asarray(jnp.asarray(crooked_features(), jnp.bfloat16), np.float64)
    assert_close(mean, rounded.mean(0), reduction_length=len(rounded))
    assert_close(var, rounded.var(0), reduction_length=len(rounded))


@pytest.mark.parametrize("name", LAYERS)
def test_padding_reaches_nothing(name: str) -> None:
    layer, _ = LAYERS[name]
    clean = values_and_gradients(layer, skewed(4), 0.0)
    dirty = values_and_gradients(layer, poisoned(skewed(4)), 0.0)
    for mine, theirs in zip(dirty, clean, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_the_statistics_send() -> None:
    """The sums and the count, then the squares: forward 2 F + 1 numbers around the ring."""

    def step(shard: Any) -> Any:
        return batch_statistics(shard, shard.nodes)

    sent = traffic(spmd(step).lower(skewed(4)).compile())
    assert sent == {"all-reduce": (2 * NUM_FEATURES + 1) * 4 * 2 * 3 / 4}


@pytest.mark.parametrize("name", LAYERS)
def test_columns_are_refused(name: str) -> None:
    layer, _ = LAYERS[name]

    def step(shard: Any) -> jax.Array:
        return layer(shard, shard.nodes, SCALE, BIAS)

    with pytest.raises(TypeError, match=r"normalisation needs .* shard\.to_nodes\(x\)"):
        spmd(step, outputs="rows")(crooked_sharded(2, "hash", "p3-sar"))
