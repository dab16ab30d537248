"""The types in which values are accumulated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.precision import (
    inner_product,
)


@pytest.mark.parametrize("features", [7, 100])
def test_inner_products_and_their_gradients(features: int) -> None:
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((rows, 3, features)) for rows in (5, 1))
    y, pull = jax.vjp(
        inner_product, jnp.asarray(left, jnp.float32), jnp.asarray(right, jnp.float32)
    )
    np.testing.assert_allclose(y, (left * right).sum(-1), rtol=1e-5, atol=1e-5)
    gradient = rng.standard_normal((5, 3))
    of_left, of_right = pull(jnp.asarray(gradient, jnp.float32))
    np.testing.assert_allclose(of_left, gradient[..., None] * right, rtol=1e-5, atol=1e-5)
    expected = (gradient[..., None] * left).sum(0, keepdims=True)
    np.testing.assert_allclose(of_right, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("features", [7, 100])
def test_a_head_that_overflows_leaves_the_others_alone(features: int) -> None:
    left = jnp.ones((4, 3, features)).at[2, 1, 0].set(jnp.inf)
    y = np.asarray(inner_product(left, jnp.ones_like(left)))
    assert y[2, 1] == np.inf
    assert np.isfinite(y).sum() == y.size - 1
