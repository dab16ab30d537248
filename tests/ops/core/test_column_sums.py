"""Sums by column against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.column_sums import column_sums
from jaxgraph.ops.core.precision import accumulation_dtype
from tests.cpu_kernels import needs_kernels
from tests.tolerance import assert_close

IMPLEMENTATIONS = ["xla", pytest.param("cpu", marks=needs_kernels)]

# No row, one, and several pieces of work; columns that fill no vector, several, and one more.
SHAPES = [(0, 3), (1, 1), (5, 7), (3000, 64), (5001, 41)]
CASES = [(shape, np.float32) for shape in SHAPES]
CASES += [(SHAPES[-1], dtype) for dtype in (jnp.bfloat16, np.float16, np.float64)]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_sums_and_products(shape, dtype, padded, implementation):
    rows, features = shape
    rng = np.random.default_rng(0)
    with jax.enable_x64(dtype == np.float64):
        valid = rng.random(rows) < 0.7 if padded else np.ones(rows, bool)
        x, z = (
            jnp.asarray(np.where(valid[:, None], rng.standard_normal(shape), np.nan), dtype)
            for _ in range(2)
        )
        wide = accumulation_dtype(dtype)
        x_shift, z_shift = (jnp.asarray(rng.standard_normal(features), wide) for _ in range(2))
        mask = jnp.asarray(valid) if padded else None
        sums, products = jax.jit(column_sums, static_argnums=5)(
            x, z, x_shift, z_shift, mask, implementation
        )
        assert sums.dtype == products.dtype == wide
        of_x, of_z = (
            (np.asarray(table).astype(np.float64) - np.asarray(shift, np.float64))[valid]
            for table, shift in ((x, x_shift), (z, z_shift))
        )
        length = max(rows, 1)
        assert_close(sums, of_x.sum(0), dtype=wide, reduction_length=length)
        assert_close(products, (of_x * of_z).sum(0), dtype=wide, reduction_length=length)


@needs_kernels
def test_long_sums_are_as_exact_as_short_ones():
    # One running sum in float32 would stop at 2^24.
    rows = (1 << 24) + 4096
    ones = jnp.ones((rows, 1), jnp.float32)
    zero = jnp.zeros(1, jnp.float32)
    sums, products = column_sums(ones, ones, zero, zero, None, "cpu")
    assert sums == products == rows
