"""Linear maps of rows against float64 NumPy, values and gradients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.row_maps import _map_rows, map_rows, map_rows_twice
from jaxgraph.ops.cpu.calls import row_product
from tests.cpu_kernels import needs_kernels
from tests.tolerance import assert_close

IMPLEMENTATIONS = ["xla", pytest.param("cpu", marks=needs_kernels)]

# Fewer rows than a chunk, a last chunk that is not full, several pieces of work; columns that fill
# no tile, one, and more than one.
SHAPES = [(0, 3, 5), (1, 1, 1), (5, 7, 3), (130, 6, 64), (1700, 41, 130), (3000, 130, 17)]
CASES = [(shape, np.float32) for shape in SHAPES]
CASES += [(SHAPES[4], dtype) for dtype in (jnp.bfloat16, np.float16, np.float64)]


def draw(shape: tuple[int, ...], dtype: np.dtype, seed: int) -> tuple[jax.Array, np.ndarray]:
    values = jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)
    return values, np.asarray(values).astype(np.float64)


def map_addend(x, kernel, implementation):
    """`map_rows` whose gradient of x is added to another."""
    return _map_rows(implementation, True, x, kernel)


def check(function, shape, dtype, implementation):
    """A function of rows and kernels, one or two, against products in float64."""
    rows, width, *outs = shape
    with jax.enable_x64(dtype == np.float64):
        shapes = [(rows, width), *((width, out) for out in outs), *((rows, out) for out in outs)]
        drawn, exact = zip(*(draw(s, dtype, i) for i, s in enumerate(shapes)), strict=True)
        (x, *kernels), cotangents = drawn[: len(outs) + 1], drawn[len(outs) + 1 :]
        (exact_x, *exact_kernels), exact_of_y = exact[: len(outs) + 1], exact[len(outs) + 1 :]

        @jax.jit
        def run(x, kernels, cotangents):
            doubled = 2 * x  # rows that are needed later as well
            y, pull = jax.vjp(lambda *a: function(*a, implementation), doubled, *kernels)
            return y, pull(cotangents if len(outs) > 1 else cotangents[0]), doubled

        y, (dx, *dkernels), doubled = run(x, kernels, cotangents)
        np.testing.assert_array_equal(doubled, 2 * x)
        same = functools.partial(assert_close, dtype=dtype)
        for found, kernel in zip(jax.tree.leaves(y), exact_kernels, strict=True):
            assert found.dtype == dtype
            same(found, 2 * exact_x @ kernel, reduction_length=width)
        pairs = list(zip(exact_of_y, exact_kernels, strict=True))
        same(dx, sum(of_y @ kernel.T for of_y, kernel in pairs), reduction_length=sum(outs))
        for found, of_y in zip(dkernels, exact_of_y, strict=True):
            assert found.dtype == dx.dtype == dtype
            same(found, 2 * exact_x.T @ of_y, reduction_length=max(rows, 1))


@pytest.mark.parametrize("function", [map_rows, map_addend])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_values_and_gradients(shape, dtype, implementation, function):
    check(function, shape, dtype, implementation)


# Fewer rows and columns than fill a tile, more of both
# than one piece of work or a panel, and maps that are not square or as narrow as a few columns.
TWICE = [(0, 20, 20), (5, 17, 17), (1700, 130, 130), (900, 41, 12), (900, 12, 12), (700, 64, 64)]
TWICE = [(*shape, 3) for shape in TWICE] + [(900, 41, 30, 25), (700, 64, 64, 64)]
TWICE_CASES = [(shape, np.float32) for shape in TWICE]
TWICE_CASES += [(TWICE[2], dtype) for dtype in (jnp.bfloat16, np.float64)]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("shape", "dtype"), TWICE_CASES, ids=str)
def test_two_maps_of_the_same_rows(shape, dtype, implementation):
    check(map_rows_twice, shape, dtype, implementation)


LARGE = [(map_rows, (70, 65)), (map_addend, (70, 65))]
LARGE += [(map_rows_twice, shape) for shape in ((70, 65, 3), (66, 66, 3), (70, 65, 66))]
"""Shapes whose product, and whose gradient of x, exceed 32 MiB."""


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize(("function", "shape"), LARGE, ids=str)
def test_large_maps(function, shape):
    check(function, (131_073, *shape), np.float32, "cpu")


@needs_kernels
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_in_memory_of_their_own(shape, dtype):
    rows, in_features, out_features = shape
    with jax.enable_x64(dtype == np.float64):
        x, exact_x = draw((rows, in_features), dtype, 0)
        kernel, exact_kernel = draw((in_features, out_features), dtype, 1)
        y = jax.jit(row_product)(x, kernel)
        assert y.dtype == dtype
        assert_close(y, exact_x @ exact_kernel, dtype=dtype, reduction_length=in_features)


@needs_kernels
def test_who_computes_large_products():
    def calls(shape: tuple[int, int, int], dtype: np.dtype, implementation: str = "cpu") -> int:
        def pull(x: jax.Array, kernel: jax.Array, gradient: jax.Array) -> Any:
            y, pull = jax.vjp(lambda x, kernel: map_rows(x, kernel, implementation), x, kernel)
            return y, pull(gradient)

        rows, in_features, out_features = shape
        shapes = ((rows, in_features), (in_features, out_features), (rows, out_features))
        arrays = (jax.ShapeDtypeStruct(each, dtype) for each in shapes)
        return jax.jit(pull).lower(*arrays).as_text().count("custom_call @jaxgraph_row_product(")

    wide, few = (1 << 18, 64, 64), (1 << 21, 64, 16)
    assert calls(wide, np.dtype("float32")) == 2
    assert calls(wide, np.dtype("float32"), "xla") == 0
    assert calls(wide, np.dtype(jnp.bfloat16)) == 0
    assert calls(few, np.dtype("float32")) == 1
    assert calls((1 << 16, 64, 64), np.dtype("float32")) == 0
