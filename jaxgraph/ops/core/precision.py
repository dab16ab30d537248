"""The types in which sums are accumulated.

A sum of thousands of 16-bit numbers in 16 bits stops growing when its next term is less than half a
unit in its last place. So all sums accumulate in 32 bits and are rounded once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_FEW_FEATURES = 64
"""Features of a head up to which one product of whole rows is faster than one per head."""


def accumulation_dtype(dtype: Any) -> np.dtype:
    """The type in which values of a type are accumulated."""
    dtype = jnp.dtype(dtype)
    is_short = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
    return jnp.dtype(jnp.float32) if is_short else dtype


def to_accumulation(values: jax.Array) -> jax.Array:
    """`values` in their accumulation type."""
    return values.astype(accumulation_dtype(values.dtype))


@jax.custom_jvp
def inner_product(left: jax.Array, right: jax.Array) -> jax.Array:
    """<a_i, b_i> over the last axis, of arrays of at least two axes."""
    shape = jnp.broadcast_shapes(left.shape, right.shape)
    left, right = (jnp.broadcast_to(each, shape).reshape(shape[0], -1) for each in (left, right))
    products, features = left * right, shape[-1]
    by_run, of_all = (partial(f, features=features) for f in (_sums_of_runs, _sums_of_all_runs))
    if products.shape[1] > features and features <= _FEW_FEATURES:
        sums = lax.platform_dependent(products, cpu=of_all, default=by_run)
    else:
        sums = by_run(products)
    return sums.reshape(shape[:-1])


def _sums_of_runs(products: jax.Array, features: int) -> jax.Array:
    """Sums of `features` consecutive columns, [rows, columns] to [rows, columns / features]."""
    # XLA's CPU compiler does not vectorise a fused sum over the last axis. For a matrix product it
    # computes the operand, gathers included, in a vectorised loop, and then calls a library.
    ones = jnp.ones(features, products.dtype)
    sums = jnp.dot(products.reshape(-1, features), ones, precision=lax.Precision.HIGHEST)
    return sums.reshape(len(products), -1)


def _sums_of_all_runs(products: jax.Array, features: int) -> jax.Array:
    """The same by one product of whole rows: XLA computes a row's address once, not per run."""
    runs = np.repeat(np.eye(products.shape[1] // features), features, axis=0)
    sums = jnp.dot(products, runs.astype(products.dtype), precision=lax.Precision.HIGHEST)
    # An infinite number in one run times zero is NaN in the sums of the others.
    return lax.cond(
        jnp.isnan(sums).any(),
        lambda: _sums_of_runs(products, features),
        lambda: sums,
    )


@inner_product.defjvp
def _inner_product_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (left, right), (left_dot, right_dot) = primals, tangents
    change = jnp.sum(left_dot * right, -1) + jnp.sum(left * right_dot, -1)
    return inner_product(left, right), change


def inner_products_of_heads(shared: jax.Array, values: jax.Array) -> jax.Array:
    """<a_i, b_ih> for every head h, in the accumulation type."""
    if values.dtype == accumulation_dtype(values.dtype):
        # XLA's CPU compiler sums an operand that is repeated over the heads ten times slower.
        return jnp.einsum("rf,rhf->rh", shared, values, precision=lax.Precision.HIGHEST)
    # A matrix product would copy its operands to 32 bits.
    shared, heads = to_accumulation(shared), range(values.shape[1])
    return jnp.stack([jnp.sum(shared * values[:, head], -1) for head in heads], 1)
