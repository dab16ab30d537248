"""Parameters as the modules make and hand them on."""

from __future__ import annotations

import jax
from flax import nnx
from jax import numpy as jnp

__all__ = ["attention_vector", "check_sizes", "kernel", "values", "zeros"]

_glorot = nnx.initializers.glorot_uniform()


def kernel(rngs: nnx.Rngs, in_features: int, out_features: int) -> nnx.Param:
    """[in_features, out_features], uniform in +-sqrt(6 / (in_features + out_features)).

    References:
      Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
      networks", 2010, equation 16.
    """
    return nnx.Param(_glorot(rngs.params(), (in_features, out_features), jnp.float32))


def attention_vector(rngs: nnx.Rngs, num_heads: int, features: int) -> nnx.Param:
    """[num_heads, features], uniform in +-sqrt(6 / (num_heads + features))."""
    return nnx.Param(_glorot(rngs.params(), (num_heads, features), jnp.float32))


def zeros(features: int) -> nnx.Param:
    """[features]"""
    return nnx.Param(jnp.zeros((features,), jnp.float32))


def values(module: nnx.Module) -> dict[str, jax.Array]:
    """The parameters of a module by attribute, as `jaxgraph.layers` takes them."""
    return {
        name: variable.get_value()
        for name, variable in vars(module).items()
        if isinstance(variable, nnx.Param)
    }


def check_sizes(**sizes: int) -> None:
    """Raises ValueError for a size that is not a positive integer."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} is {size!r}; expected a positive integer")
