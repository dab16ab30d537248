"""Rows of a table, compared with NumPy's indexing."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.chosen_rows import chosen_rows
from tests.cpu_kernels import needs_kernels

IMPLEMENTATIONS = ["xla", pytest.param("cpu", marks=needs_kernels)]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("count", [0, 1, 5000])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((40,), np.float32),
        ((4, 41), np.float32),
        ((2, 33), jnp.bfloat16),
        ((130,), np.bool_),
        ((35,), np.int32),
        ((3,), np.float32),
        ((), np.int32),
    ],
    ids=str,
)
def test_rows(shape: tuple[int, ...], dtype: Any, count: int, implementation: str) -> None:
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.integers(0, 100, (700, *shape)), dtype)
    rows = rng.integers(0, 700, count).astype(np.int32)
    found = jax.jit(chosen_rows, static_argnums=2)(table, rows, implementation)
    assert found.dtype == table.dtype
    np.testing.assert_array_equal(found, np.asarray(table)[rows])
