"""The library's messages: their values, and their equality, by which JAX finds programs again."""

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.message_functions import (
    GatMessage,
    GatV2Message,
    sum_message,
    weighted_message,
)

EDGES, HEADS, FEATURES = 4, 2, 3


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(len(shape)).standard_normal(shape), jnp.float32)


@pytest.mark.parametrize(
    "message", [sum_message, weighted_message, GatMessage(0.2), GatV2Message(0.2)]
)
def test_survives_pickling_as_an_equal_function(message: Any) -> None:
    copy = pickle.loads(pickle.dumps(message))
    assert copy == message and hash(copy) == hash(message)


@pytest.mark.parametrize("make", [GatMessage, GatV2Message])
def test_equal_slopes_give_equal_functions(make: Any) -> None:
    assert make(0.2) == make(0.2) and hash(make(0.2)) == hash(make(0.2))
    assert make(0.2) != make(0.1)
    assert make(0) == make(0.0)
    assert GatMessage(0.2) != GatV2Message(0.2)


def test_sum_passes_any_tree() -> None:
    tree = {"a": draw(EDGES, 2), "b": draw(EDGES)}
    assert sum_message((), tree, (), ()) is tree


@pytest.mark.parametrize("weight", [draw(EDGES), draw(EDGES, HEADS)])
def test_weights_are_of_the_leading_axes(weight: jax.Array) -> None:
    x = draw(EDGES, HEADS, FEATURES)
    spread = np.asarray(weight).reshape(EDGES, -1, 1)
    np.testing.assert_array_equal(weighted_message((), x, (), weight), spread * np.asarray(x))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_with_weights_are_not_rounded_to_sixteen_bits(dtype: Any) -> None:
    x, weight = draw(EDGES, FEATURES).astype(jnp.bfloat16), draw(EDGES).astype(dtype)
    product = weighted_message((), x, (), weight)
    assert product.dtype == jnp.float32
    exact = np.asarray(weight).astype(np.float64)[:, None] * np.asarray(x).astype(np.float64)
    np.testing.assert_array_equal(product, exact.astype(np.float32))


def test_attention_computes_logits_in_thirty_two_bits() -> None:
    x, left, right = draw(EDGES, HEADS, FEATURES), draw(EDGES, HEADS), -draw(EDGES, HEADS)
    logits, values = GatMessage(0.1)((), (x, left), 2 * right, ())
    expected = np.asarray(left + 2 * right)
    np.testing.assert_allclose(logits, np.where(expected > 0, expected, 0.1 * expected), rtol=1e-6)
    np.testing.assert_array_equal(values, x)

    attention = draw(HEADS, FEATURES)
    logits, values = GatV2Message(0.1)(attention, x, 1 - x, ())
    np.testing.assert_allclose(logits, np.repeat(attention.sum(-1)[None], EDGES, 0), rtol=1e-5)
    np.testing.assert_array_equal(values, x)

    short = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (x, left, right, attention))
    logits, values = GatMessage(0.1)((), short[:2], short[2], ())
    assert (logits.dtype, values.dtype) == (jnp.float32, jnp.bfloat16)
    logits, values = GatV2Message(0.1)(short[3], short[0], short[0], ())
    assert (logits.dtype, values.dtype) == (jnp.float32, jnp.bfloat16)
