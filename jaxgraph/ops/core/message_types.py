"""The types of messages that each reduction takes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.messages import MessageFn

__all__ = ["as_averaged", "check_types"]

Pytree = Any


def check_types(messages: Pytree, reduce: str) -> None:
    """Raises `TypeError` for messages that a reduction does not take.

    Args:
      messages: arrays or their shapes.
      reduce: "sum", "mean", "max", "min" or "softmax".
    """
    for leaf in jax.tree.leaves(messages):
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise TypeError(
                f"messages are {leaf.dtype}; expected real numbers: reduce real and imaginary "
                "parts as two arrays, (m.real, m.imag)"
            )
        is_number = jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == jnp.bool_
        if not is_number:
            raise TypeError(f"messages are {leaf.dtype}; expected numbers")
        if reduce == "sum" and leaf.dtype == jnp.bool_:
            raise TypeError(
                "messages are bool, which have no sum; count them as m.astype(jnp.int32), or ask "
                "with reduce='max' whether any is True, with 'min' whether all are"
            )
        if reduce == "softmax" and not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"with reduce='softmax' messages are {leaf.dtype}; expected floating numbers: "
                "m.astype(jnp.float32)"
            )


@dataclasses.dataclass(frozen=True)
class _Averaged:
    """A message with its integers as floating numbers, whose sums do not overflow."""

    message: MessageFn

    def __call__(self, params: Pytree, sender: Pytree, receiver: Pytree, edge: Pytree) -> Pytree:
        return jax.tree.map(_as_floating, self.message(params, sender, receiver, edge))


def _as_floating(leaf: Any) -> Any:
    return leaf if _is_floating(leaf) else leaf.astype(jnp.result_type(float))


def as_averaged(message: MessageFn, messages: Pytree) -> MessageFn:
    """A message whose sums can be divided into means.

    Args:
      message: as for `propagate_by`.
      messages: the shapes of what it returns.

    Returns:
      `message` with integers and truth values in JAX's default floating type (float32).
    """
    leaves = jax.tree.leaves(messages)
    return message if all(map(_is_floating, leaves)) else _Averaged(message)


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
