"""Linear maps and dropout, on rows of nodes and on columns of features."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.layers import dropout, linear
from jaxgraph.layers.dense import _map_features, add_bias, at_use, require_rows
from jaxgraph.parallel import ShardedGraph, gather_rows, spmd
from jaxgraph.parallel.features import FeatureColumns
from tests.oracles import randomness
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import crooked_features, crooked_sharded, poisoned

OUT = 3
RATE = 0.4
KERNEL: Any = np.random.default_rng(0).standard_normal((NUM_FEATURES, OUT)).astype(np.float32)
BIAS: Any = np.array([1.0, -2.0, 0.5], np.float32)
PARTS = (1, 2, 4)
NO_FEATURES: Any = None
KEY = jax.random.key(5)


def sharded_in(num_parts: int, layout: str = "rows") -> ShardedGraph:
    return crooked_sharded(num_parts, "hash", "sar" if layout == "rows" else "p3-sar")


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("num_parts", PARTS)
def test_linear_and_its_gradients(num_parts: int, layout: str) -> None:
    def step(kernel: jax.Array, bias: jax.Array, shard: Any) -> Any:
        def loss(kernel: jax.Array, bias: jax.Array) -> Any:
            y = linear(shard, shard.nodes, kernel, bias)
            return shard.sum(jnp.sum(shard.mask_rows(y * jnp.sin(shard.node_ids)[:, None]))), y

        (_, y), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(kernel, bias)
        return y, grads

    sharded = sharded_in(num_parts, layout)
    y, (of_kernel, of_bias) = spmd(step, outputs=("rows", "replicated"))(KERNEL, BIAS, sharded)
    nodes = crooked_features()
    adjoint = np.broadcast_to(np.sin(np.arange(len(nodes)))[:, None], (len(nodes), OUT))
    length = len(nodes)
    assert_close(gather_rows(y, sharded), nodes @ KERNEL + BIAS, reduction_length=NUM_FEATURES)
    assert_close(of_kernel, nodes.T @ adjoint, reduction_length=length)
    assert_close(of_bias, adjoint.sum(0), reduction_length=length)


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("num_parts", PARTS)
def test_dropout_draws_by_node_and_column(num_parts: int, layout: str) -> None:
    def step(key: jax.Array, shard: Any) -> jax.Array:
        dropped = dropout(shard, shard.nodes, key, rate=RATE)
        assert isinstance(dropped, FeatureColumns) == (layout == "columns")
        return shard.to_nodes(dropped)

    sharded = sharded_in(num_parts, layout)
    actual = gather_rows(spmd(step, outputs="rows")(KEY, sharded), sharded)
    nodes = crooked_features()
    words = tuple(np.asarray(jax.random.key_data(KEY)).tolist())
    keep = randomness.node_keep_mask(words, np.arange(len(nodes)), NUM_FEATURES, RATE)
    np.testing.assert_allclose(actual, np.where(keep, nodes / (1 - RATE), 0), rtol=1e-6)
    assert 0.5 < keep.mean() < 0.7


def test_dropout_of_rate_zero_needs_no_key() -> None:
    def step(shard: Any) -> Any:
        y = dropout(shard, shard.nodes, None, rate=0.0)
        assert y is shard.nodes
        return y

    spmd(step, outputs="rows")(sharded_in(1))


@pytest.mark.parametrize("is_computed", [False, True])
def test_padding_reaches_no_kernel_gradient(is_computed: bool) -> None:
    def step(kernel: jax.Array, shard: Any) -> jax.Array:
        def loss(kernel: jax.Array) -> jax.Array:
            y = linear(shard, 2 * shard.nodes if is_computed else shard.nodes, kernel)
            return shard.sum(jnp.sum(shard.mask_rows(y)))

        return jax.grad(loss)(kernel)

    sharded = sharded_in(4)
    clean, dirty = (spmd(step)(KERNEL, graph) for graph in (sharded, poisoned(sharded)))
    np.testing.assert_array_equal(dirty, clean)


def test_more_padding_than_nodes_is_looked_at_to_its_first_row() -> None:
    x = jnp.zeros((300, NUM_FEATURES)).at[:10].set(1.0).at[10].set(jnp.nan)
    y = _map_features("xla", x, jnp.arange(300) < 10, jnp.asarray(KERNEL))
    np.testing.assert_array_equal(y[10:], 0)


@pytest.mark.parametrize("anything", [3.0, np.nan])
def test_padding_of_the_features_is_taken_for_zero(anything: float) -> None:
    def step(kernel: jax.Array, shard: Any, value: float) -> Any:
        def loss(kernel: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            given = dataclasses.replace(shard, nodes=x)
            y = linear(given, given.nodes, kernel)
            return shard.sum(jnp.sum(shard.mask_rows(y) ** 2)), y

        x = jnp.where(shard.node_mask[:, None], shard.nodes, value)
        gradients, y = jax.grad(loss, argnums=(0, 1), has_aux=True)(kernel, x)
        return gradients[0], (y, gradients[1])

    sharded = sharded_in(4)
    assert sharded.manifest.has_padding
    run = spmd(partial(step, value=anything), outputs=("replicated", "rows"))
    clean = spmd(partial(step, value=0.0), outputs=("replicated", "rows"))(KERNEL, sharded)
    jax.tree.map(np.testing.assert_array_equal, run(KERNEL, sharded), clean)


# ------------------------------------------------------------------ 16 bits


def test_parameters_are_cast_to_what_they_meet() -> None:
    short, wide = (jnp.ones((3, 2), dtype) for dtype in (jnp.bfloat16, jnp.float32))
    assert at_use(wide, short).dtype == add_bias(short, wide).dtype == jnp.bfloat16
    assert at_use(short, wide).dtype == add_bias(wide, short).dtype == jnp.float32
    whole = jnp.ones((3, 2), jnp.int32)  # no type for the computation
    assert at_use(0.5 * wide, whole).dtype == add_bias(whole, 0.5 * wide).dtype == jnp.float32
    assert add_bias(short, None) is short


def test_the_gradient_of_a_bias_is_summed_in_32_bits() -> None:
    """In 16 bits a sum of ones stops at 256, and 701 is not among their numbers."""
    rows = jnp.zeros((701, 2), jnp.bfloat16)
    gradient = jax.grad(lambda bias: jnp.sum(add_bias(rows, bias).astype(jnp.float32)))
    np.testing.assert_array_equal(gradient(jnp.zeros(2)), 701)


def test_dropout_of_16_bits_rounds_once() -> None:
    """The 16-bit factor nearest to 1 / 0.7 would make all kept values 0.08% too large."""

    def step(key: jax.Array, shard: Any) -> list[Any]:
        x = shard.nodes.astype(jnp.bfloat16)
        return [x, dropout(shard, x, key, rate=0.3)]

    sharded = sharded_in(1)
    x, y = (gather_rows(rows, sharded) for rows in spmd(step, outputs="rows")(KEY, sharded))
    kept = y != 0
    exact = x[kept].astype(np.float64) / 0.7
    np.testing.assert_array_equal(y[kept], exact.astype(jnp.bfloat16))


def raises(error: type[Exception], match: str, function: Any, layout: str = "rows") -> None:
    with pytest.raises(error, match=match):
        spmd(function, outputs="rows")(sharded_in(2, layout))


def test_wrong_features_are_refused() -> None:
    wide = jnp.ones((NUM_FEATURES + 1, OUT))
    message = rf"x has {NUM_FEATURES} features, but the kernel has shape"
    raises(ValueError, message, lambda shard: linear(shard, shard.nodes, wide))
    raises(ValueError, message, lambda shard: linear(shard, shard.nodes, wide), "columns")
    raises(ValueError, "one row per node", lambda s: linear(s, s.nodes[:-1], KERNEL))
    raises(ValueError, "NodeEmbedding", lambda s: linear(s, NO_FEATURES, KERNEL))


@pytest.mark.parametrize("rate", [1.0, -0.1, "0.5", True])
def test_a_wrong_rate_is_refused(rate: Any) -> None:
    message = "expected a probability of dropping"
    raises(ValueError, message, lambda s: dropout(s, s.nodes, KEY, rate=rate))


def test_dropout_without_a_key_is_refused() -> None:
    raises(ValueError, "needs a random key", lambda s: dropout(s, s.nodes, None, rate=0.5))


def test_columns_are_refused_where_rows_are_needed() -> None:
    def step(shard: Any) -> jax.Array:
        return require_rows(shard.nodes, "a test")

    raises(TypeError, r"a test needs all features .* shard\.to_nodes\(x\)", step, "columns")


def test_features_that_a_graph_does_not_have_are_refused_where_rows_are_needed() -> None:
    raises(ValueError, "NodeEmbedding", lambda shard: require_rows(NO_FEATURES, "a test"))
