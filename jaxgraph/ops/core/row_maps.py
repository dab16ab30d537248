"""Linear maps of rows, y = x W, and their gradients.

With g the gradient of y, dx = g W^T and dW = x^T g. The CPU implementation has a kernel for dW, up
to 2.5 times as fast as XLA, and one for large y and dx, up to 2 times as fast; both read x once for
two maps. For the other implementations XLA computes everything.

With jax 0.12 the kernel for dW takes 12% off an epoch of GCN 2 x 128 at pubmed's size and 23% at
ogbn-arxiv's; the one for y and dx takes 25% off GraphSAGE 3 x 256 at ogbn-arxiv's, and 16% of its
memory.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.derivatives import custom_vjp
from jaxgraph.ops.cpu.calls import KERNEL_TYPES, row_product, row_products, weight_gradient

_FEW_COLUMNS = 16
"""Most columns for which the gradient of x is written out as a sum over columns."""

_LARGE = 1 << 25
"""Bytes of a product, or of two of one table, from which on the kernel is faster: it requests large
pages for memory that XLA allocates anew in every call. Below, XLA's own code is used."""


def map_rows(x: jax.Array, kernel: jax.Array, implementation: str) -> jax.Array:
    """y = x W"""
    return _map_rows(implementation, False, x, kernel) if implementation == "cpu" else x @ kernel


def map_rows_once(x: jax.Array, kernel: jax.Array, implementation: str) -> jax.Array:
    """`map_rows` for a backward: forward mode can differentiate it too."""
    return _product(implementation, x, kernel)


def _product(implementation: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
    if implementation == "cpu" and _is_large(x, kernel.shape[1]):
        return row_product(x, kernel)
    return x @ kernel


def _is_large(x: jax.Array, columns: int) -> bool:
    """True where a kernel computes `columns` columns from the rows of x faster than XLA."""
    # The newest jaxlib multiplies 16-bit numbers faster than the kernel.
    is_faster = x.dtype in (jnp.float32, jnp.float64) and columns > _FEW_COLUMNS
    return is_faster and len(x) * columns * x.dtype.itemsize >= _LARGE


def map_rows_twice(
    x: jax.Array, kernel: jax.Array, other: jax.Array, implementation: str
) -> tuple[jax.Array, jax.Array]:
    """y = x W and z = x V; V may have few columns: XLA then fuses its term of the gradient."""
    if implementation == "cpu" and x.dtype in KERNEL_TYPES:
        return _map_rows_twice(x, kernel, other)
    return map_rows(x, kernel, implementation), _map_rows(implementation, True, x, other)


def kernel_gradient(x: jax.Array, gradient: jax.Array, implementation: str) -> jax.Array:
    """dW = x^T g"""
    if implementation == "cpu" and x.dtype in KERNEL_TYPES:
        return weight_gradient(x, gradient).astype(x.dtype)
    return x.T @ gradient


@functools.partial(custom_vjp, nondiff_argnums=(0, 1), loops=False)
def _map_rows(implementation: str, is_added: bool, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """y = x W; `is_added`: whether the gradient of x is added to another."""
    return _product(implementation, x, kernel)


def _forward(
    implementation: str, is_added: bool, x: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, Any]:
    return _product(implementation, x, kernel), (x, kernel)


def _backward(
    implementation: str, is_added: bool, residuals: Any, gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    if is_added:
        of_x = _addend(implementation, gradient, kernel)
    else:
        of_x = _product(implementation, gradient, kernel.T)
    return of_x, kernel_gradient(x, gradient, implementation)


def _addend(implementation: str, gradient: jax.Array, kernel: jax.Array) -> jax.Array:
    """g W^T; with few columns as a sum that XLA fuses with the sum that it is added to."""
    if kernel.shape[1] > _FEW_COLUMNS:
        return _product(implementation, gradient, kernel.T)
    terms = (gradient[:, c, None] * kernel[None, :, c] for c in range(kernel.shape[1]))
    return functools.reduce(jnp.add, terms)


@functools.partial(custom_vjp, loops=False)
def _map_rows_twice(
    x: jax.Array, kernel: jax.Array, other: jax.Array
) -> tuple[jax.Array, jax.Array]:
    columns = (each.shape[1] for each in (kernel, other) if each.shape[1] > _FEW_COLUMNS)
    if _is_large(x, sum(columns)):
        return row_products(x, kernel, other)
    return x @ kernel, x @ other


def _forward_twice(x: jax.Array, kernel: jax.Array, other: jax.Array) -> Any:
    return _map_rows_twice.value(x, kernel, other), (x, kernel, other)


def _backward_twice(
    residuals: Any, gradients: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, kernel, other = residuals
    of_y, of_z = gradients
    of_both = weight_gradient(x, of_y, of_z)
    if _is_large(x, x.shape[1]):
        of_x = row_product(of_y, jnp.concatenate([kernel.T, other.T]), beside=of_z)
    else:
        of_x = _addend("cpu", of_y, kernel) + _addend("cpu", of_z, other)
    of_kernel, of_other = jnp.split(of_both.astype(x.dtype), kernel.shape[1:], 1)
    return of_x, of_kernel, of_other


_map_rows.defvjp(_forward, _backward)
_map_rows_twice.defvjp(_forward_twice, _backward_twice)
