"""Activations and their gradients against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.layers import elu

X = np.concatenate([np.linspace(-30, 30, 1001), -np.logspace(-20, 0, 50), [0.0]])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_elu(dtype) -> None:
    x = jnp.asarray(X, dtype)
    exact = np.asarray(x, np.float64)
    digits = float(jnp.finfo(dtype).eps)
    y, pull = jax.vjp(elu, x)
    expected = np.where(exact > 0, exact, np.expm1(exact))
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=2 * digits)
    (slope,) = pull(jnp.ones_like(x))
    assert slope.dtype == dtype
    expected = np.where(exact > 0, 1, np.exp(exact))
    np.testing.assert_allclose(np.asarray(slope, np.float64), expected, rtol=0, atol=4 * digits)
