"""Running states and gradients, to which groups of edges are added one after another."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.messages import Inputs, floating_leaves, zero_totals
from jaxgraph.ops.core.reducers import Reducer, Sum
from jaxgraph.ops.core.rows import take_rows, with_rows_from

Pytree = Any


@dataclasses.dataclass(frozen=True)
class Places:
    """The positions of a group's rows among the rows of running gradients.

    Attributes:
    sender, receiver: int32 [rows to change], the compact row of each row, -1: none; or None: the
      rows belong to another table, to which their gradient is sent as an answer.
    """

    sender: jax.Array | None
    receiver: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Pulled:
    """The gradients that pulling through one group returns.

    Attributes:
      gradients: the running gradients, as lists.
      answer: gradients of rows of another table, or None.
      done: arrays that exist once the work is done.
    """

    gradients: Inputs
    answer: list[jax.Array] | None
    done: Pytree


def merge_at(reducer: Reducer, state: Pytree, compact: Pytree, position: jax.Array) -> Pytree:
    """Merges the compact rows of a group into the first rows of a state."""
    size = position.shape[0]
    has = position >= 0
    found = take_rows(compact, jnp.maximum(position, 0))
    old = jax.tree.map(lambda leaf: leaf[:size], state)
    merged = reducer.merge(old, found)

    def place(leaf: jax.Array, new: jax.Array, kept: jax.Array) -> jax.Array:
        new = jnp.where(has.reshape(size, *(1,) * (new.ndim - 1)), new, kept)
        return with_rows_from(leaf, 0, new)

    return jax.tree.map(place, state, merged, old)


def add_at(
    totals: list[jax.Array], compact: list[jax.Array], position: jax.Array
) -> list[jax.Array]:
    """Adds compact rows to the first rows of each array, as `merge_at` does for states."""
    return merge_at(Sum(), totals, compact, position) if totals else totals


def zero_gradients(inputs: Inputs) -> Inputs:
    """`Inputs` of lists of zeros, one per floating leaf."""
    params, sender, receiver = map(zero_totals, (inputs.params, inputs.sender, inputs.receiver))
    return Inputs(
        params, sender, receiver, [jnp.zeros_like(x) for x in floating_leaves(inputs.edge)]
    )
