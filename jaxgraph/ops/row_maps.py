"""Linear maps of rows, whose parameters have a gradient that sums over all of them."""

from __future__ import annotations

from typing import Any

import jax

from jaxgraph.ops.cpu.calls import KERNEL_TYPES, weight_gradient

__all__ = ["map_rows"]


def map_rows(x: jax.Array, kernel: jax.Array, implementation: str) -> jax.Array:
    """y = x W, with dx = g W^T and dW = x^T g, g being the gradient of y.

    Args:
      x: float [rows, in_features].
      kernel: W [in_features, out_features], of the type of x.
      implementation: "cpu" has a kernel for dW, for which XLA takes up to twice as long; by every
        other name all is XLA's.

    Returns:
      float [rows, out_features].
    """
    is_known = x.dtype in KERNEL_TYPES and x.dtype == kernel.dtype
    return _map_rows(x, kernel) if implementation == "cpu" and is_known else x @ kernel


@jax.custom_vjp
def _map_rows(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return x @ kernel


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Any]:
    return x @ kernel, (x, kernel)


def _backward(residuals: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    return gradient @ kernel.T, weight_gradient(x, gradient).astype(kernel.dtype)


_map_rows.defvjp(_forward, _backward)
