"""Parameters drawn by one program for all shapes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph.nn.parameters import kernel
from tests.tolerance import assert_close


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(4, 3), (300, 299)])
def test_numbers_are_those_of_the_initializer(shape: tuple[int, int], dtype: Any) -> None:
    """Fewer and more than are drawn at once, and those of a model that is made under `jit`."""
    made = kernel(nnx.Rngs(3), *shape, dtype).get_value()
    expected = nnx.initializers.glorot_uniform()(nnx.Rngs(3).params(), shape, dtype)
    traced = jax.jit(lambda: kernel(nnx.Rngs(3), *shape, dtype).get_value())()
    assert made.dtype == dtype
    np.testing.assert_array_equal(made, expected)
    assert_close(traced, expected, dtype=dtype)


def test_another_shape_compiles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rngs = nnx.Rngs(0)
    kernel(rngs, 8, 8)
    with jax.log_compiles():
        kernel(rngs, 7, 9)
        assert "compilation" not in caplog.text
        jax.jit(lambda x: x + 1)(jnp.zeros(3))
    assert "compilation" in caplog.text
