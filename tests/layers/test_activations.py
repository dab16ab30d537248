"""Activations and their gradients against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.layers import elu
from jaxgraph.layers.activations import keeping_output

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


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_relu_that_keeps_its_output(dtype) -> None:
    x = jnp.asarray([*X, -0.0, np.inf, -np.inf, np.nan], dtype)
    gradient = jnp.linspace(-1, 1, len(x), dtype=dtype)
    found, expected = (
        (y, *pull(gradient))
        for y, pull in (jax.vjp(f, x) for f in (keeping_output(jax.nn.relu), jax.nn.relu))
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_array_equal(np.asarray(ours, float), np.asarray(theirs, float))
    assert keeping_output(jnp.tanh) is jnp.tanh


def test_relu_can_be_mapped_and_differentiated_twice() -> None:
    relu = keeping_output(jax.nn.relu)
    x = jnp.arange(-3.0, 3.0).reshape(2, 3)
    np.testing.assert_array_equal(jax.vmap(relu)(x), jnp.maximum(x, 0))
    np.testing.assert_array_equal(
        jax.hessian(lambda x: jnp.sum(relu(x) ** 2))(x[1]), 2 * np.diag(x[1] > 0)
    )


def test_no_empty_array_is_refused() -> None:
    assert keeping_output(jax.nn.relu)(jnp.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize(("platform", "loops"), [("cpu", True), ("cuda", False)])
def test_only_a_cpu_is_given_a_loop(platform: str, loops: bool) -> None:
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(keeping_output(jax.nn.relu)(x))))
    lowered = gradient.trace(jnp.ones((4, 4))).lower(lowering_platforms=(platform,))
    assert ("stablehlo.while" in lowered.as_text()) == loops
