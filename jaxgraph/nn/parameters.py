"""The modules' parameters: their initial values, their types and access to them."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx
from jax import numpy as jnp
from jax.core import Tracer
from jax.typing import DTypeLike

from jaxgraph.byte_amounts import refuse_beyond_memory
from jaxgraph.kinds import kind_of
from jaxgraph.parallel import feature_protocol

Pytree = TypeVar("Pytree")
_glorot = nnx.initializers.glorot_uniform(batch_axis=0)
_fan_in = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform", batch_axis=0)
_DRAWN_AT_ONCE = 1 << 16
"""Parameters are drawn in multiples of this many numbers."""


def kernel(
    rngs: nnx.Rngs, in_features: int, out_features: int, dtype: DTypeLike = jnp.float32
) -> nnx.Param:
    """Draws [in_features, out_features], uniform in +-sqrt(6 / (in_features + out_features)).

    References:
      Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
      networks", 2010, equation 16.
    """
    return nnx.Param(_draw(next_key(rngs), (in_features, out_features), dtype))


def fan_in_kernel(
    rngs: nnx.Rngs, in_features: int, out_features: int, dtype: DTypeLike = jnp.float32
) -> nnx.Param:
    """Draws [in_features, out_features], uniform in +-1 / sqrt(in_features).

    Smaller than `kernel` for many features: on Amazon Photo, whose features are not normalised, one
    GraphSAGE of five ends at 51% with `kernel`, and none of five below 91% with this.

    References:
      LeCun et al., "Efficient backprop", 1998, section 4.6; PyTorch's Linear.
    """
    return nnx.Param(_draw(next_key(rngs), (in_features, out_features), dtype, is_fan_in=True))


def kernels(rngs: nnx.Rngs, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> nnx.Param:
    """Draws [..., in_features, out_features], each matrix as `kernel` does."""
    return nnx.Param(_draw(next_key(rngs), shape, dtype))


def next_key(rngs: Any) -> jax.Array:
    """Returns the next key of the parameters' stream."""
    if not isinstance(rngs, nnx.Rngs):
        raise ValueError(
            f"rngs: got {kind_of(rngs)}; expected flax.nnx.Rngs(seed), such as nnx.Rngs(0), or "
            "nnx.Rngs(key) of a random key"
        )
    return rngs.params()


def _draw(
    key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike, *, is_fan_in: bool = False
) -> jax.Array:
    """Draws as `_glorot` or `_fan_in` does, without a compiled program for every shape.

    A program takes about 0.15 s and 4 MB, which are not freed. Numbers are drawn for a flat array,
    and do not depend on its padding.
    """
    if isinstance(key, Tracer):
        flat = (math.prod(shape[:-2]), *shape[-2:])
        return (_fan_in if is_fan_in else _glorot)(key, flat, dtype).reshape(shape)
    refuse_too_large(shape, dtype)
    size = math.prod(shape)
    drawn = -(-size // _DRAWN_AT_ONCE) * _DRAWN_AT_ONCE
    numbers = np.asarray(jax.random.uniform(key, (drawn,), dtype, -1.0))[:size]
    square = 1 / shape[-2] if is_fan_in else 6 / (shape[-2] + shape[-1])
    limit = np.sqrt(np.asarray(square, dtype))
    return jax.device_put(numbers.reshape(shape) * limit)


def zeros(features: int, dtype: DTypeLike = jnp.float32) -> nnx.Param:
    """Makes zeros [features]."""
    refuse_too_large((features,), dtype)
    return nnx.Param(jnp.zeros((features,), dtype))


def refuse_too_large(shape: tuple[int, ...], dtype: DTypeLike) -> None:
    """Raises ValueError for a parameter that this machine cannot draw, unless it is traced."""
    if not isinstance(jnp.zeros(()), Tracer):
        # Twice: the random bits, and the numbers made of them.
        needed = 2 * math.prod(shape) * jnp.dtype(dtype).itemsize
        refuse_beyond_memory(f"a parameter {list(shape)} of {jnp.dtype(dtype)}", needed)


def values(module: nnx.Module) -> dict[str, jax.Array]:
    """Returns a module's parameters by attribute, as `jaxgraph.layers` takes them."""
    return {
        name: variable.get_value()
        for name, variable in vars(module).items()
        if isinstance(variable, nnx.Param)
    }


def in_dtype(x: Pytree, dtype: DTypeLike | None) -> Pytree:
    """Casts floating arrays to the type in which a module computes."""
    return x if dtype is None else feature_protocol.in_dtype(x, dtype)


def checked_dtype(dtype: DTypeLike | None, param_dtype: DTypeLike) -> np.dtype | None:
    """Returns the type that a module computes in, and checks that of its parameters."""
    for name, given in (("dtype", dtype), ("param_dtype", param_dtype)):
        if given is not None and _is_floating(given):
            _check_held(name, jnp.dtype(given))
    if not _is_floating(param_dtype):
        raise ValueError(
            f"param_dtype is {param_dtype!r}; expected a floating type such as jax.numpy.float32"
        )
    if dtype is None:
        return None
    if not _is_floating(dtype):
        raise ValueError(
            f"dtype is {dtype!r}; expected None, for the type of the inputs, or a floating type "
            "such as jax.numpy.bfloat16"
        )
    return jnp.dtype(dtype)


def _check_held(name: str, dtype: np.dtype) -> None:
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"{name} is {dtype}, which JAX computes in 32 bits unless "
            "jax.config.update('jax_enable_x64', True) is called first"
        )


def _is_floating(dtype: DTypeLike | None) -> bool:
    try:
        return dtype is not None and jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        return False


def check_heads(num_heads: Any) -> None:
    """Raises ValueError for a number of heads that is not the same positive integer everywhere."""
    if isinstance(num_heads, list | tuple):
        raise ValueError(
            f"num_heads is {num_heads!r}; expected one positive integer, the heads of every layer. "
            "Layers of different numbers are convolutions, one after the other, such as "
            "jaxgraph.nn.GATConv(..., num_heads=8) and GATConv(..., num_heads=1, concat=False)"
        )
    check_sizes(num_heads=num_heads)


def check_sizes(**sizes: int) -> None:
    """Raises ValueError for a size that is not a positive integer."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} is {size!r}; expected a positive integer")
