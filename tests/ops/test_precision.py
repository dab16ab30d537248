"""The types in which values are accumulated."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgraph.ops.precision import accumulation_dtype, to_accumulation


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (jnp.bfloat16, jnp.float32),
        (jnp.float16, jnp.float32),
        (jnp.float8_e4m3fn, jnp.float32),
        (jnp.float32, jnp.float32),
        (jnp.float64, jnp.float64),
        (jnp.int16, jnp.int16),
        (jnp.bool_, jnp.bool_),
    ],
)
def test_short_floats_accumulate_in_float32(dtype: Any, expected: Any) -> None:
    assert accumulation_dtype(dtype) == expected
    with jax.enable_x64(True):
        assert to_accumulation(jnp.zeros(3, dtype)).dtype == expected
