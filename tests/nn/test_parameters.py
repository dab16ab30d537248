"""Parameters drawn by one program for all shapes."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxgraph.nn.parameters import fan_in_kernel, kernel
from tests.tolerance import assert_close


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(4, 3), (300, 299)])
@pytest.mark.parametrize(
    ("maker", "initializer"),
    [
        (kernel, nnx.initializers.glorot_uniform()),
        (fan_in_kernel, nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")),
    ],
)
def test_numbers_are_those_of_the_initializer(
    maker: Any, initializer: Any, shape: tuple[int, int], dtype: Any
) -> None:
    """Fewer and more than are drawn at once, and those of a model made under `jit`."""
    made = maker(nnx.Rngs(3), *shape, dtype).get_value()
    expected = initializer(nnx.Rngs(3).params(), shape, dtype)
    traced = jax.jit(lambda: maker(nnx.Rngs(3), *shape, dtype).get_value())()
    assert made.dtype == dtype
    assert_close(made, expected, dtype=dtype)
    assert_close(traced, expected, dtype=dtype)


def test_another_shape_compiles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rngs = nnx.Rngs(0)
    kernel(rngs, 8, 8)
    with jax.log_compiles():
        kernel(rngs, 7, 9)
        assert "compilation" not in caplog.text
        jax.jit(lambda x: x + 1)(jnp.zeros(3))
    assert "compilation" in caplog.text
