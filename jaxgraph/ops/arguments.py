"""What the ops demand of their arguments, checked before anything is computed."""

from __future__ import annotations

from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.randomness import seed_words
from jaxgraph.ops.core.reducers import Softmax

__all__ = [
    "attention_reducer",
    "check_block",
    "check_no_added_loops",
    "check_rows",
    "check_same_axes",
    "check_slope",
    "check_slots",
]


def check_block(block: Any) -> None:
    """Raises `ValueError` unless `block` is a `Block`."""
    if not isinstance(block, Block):
        raise ValueError(
            f"block is a {type(block).__name__}; expected the edges of one shard, shard.block()"
        )


def check_rows(block: Block, side: str, name: str, values: Any, rest: str) -> None:
    """Checks an array with one row per sender or receiver.

    Args:
      block: the block.
      side: "sender" or "receiver".
      name: of the argument.
      values: what was given.
      rest: the axes behind the first, such as "heads, features"; "...": any number of axes.

    Raises:
      ValueError: it is not a floating-point array of these axes.
    """
    _check_floating(name, values)
    rows = block.sender_rows if side == "sender" else block.receiver_rows
    has_axes = rest == "..." or len(values.shape) == 2 + rest.count(",")
    if not has_axes or values.shape[:1] != (rows,):
        raise ValueError(
            f"{name} has shape {values.shape}; expected one row per {side} row of the block, "
            f"[{rows}, {rest}]"
        )


def check_slots(block: Block, name: str, values: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Checks an array with one row per edge slot.

    Args:
      block: the block.
      name: of the argument.
      values: what was given.
      shapes: what may stand behind the first axis.

    Raises:
      ValueError: it is not a floating-point array of such a shape.
    """
    _check_floating(name, values)
    expected = [(block.edge_slots, *rest) for rest in shapes]
    if values.shape not in expected:
        raise ValueError(
            f"{name} has shape {values.shape}; expected one row per edge slot of the block: "
            f"{' or '.join(map(str, expected))}"
        )


def check_no_added_loops(block: Block, name: str) -> None:
    """Raises `ValueError` where a block adds self-loops, which have no slot in arrays per edge."""
    if block.missing_self_loop is not None:
        raise ValueError(
            f"{name} has one value per edge, and the self-loops that the block adds have none; use "
            "shard.block() and add the loops to the graph with jaxgraph.transforms.add_self_loops"
        )


def check_same_axes(first: str, left: Any, second: str, right: Any) -> None:
    """Raises `ValueError` unless two arrays have equal axes behind the first."""
    if left.shape[1:] != right.shape[1:]:
        raise ValueError(
            f"{first} has shape {left.shape} and {second} {right.shape}; expected the same axes "
            "behind the first"
        )


def check_slope(negative_slope: Any) -> None:
    """Raises `ValueError` unless the slope of a leaky ReLU is a number."""
    if not isinstance(negative_slope, Real) or isinstance(negative_slope, bool):
        raise ValueError(
            f"negative_slope is {negative_slope!r}; expected a number such as 0.2, known before "
            "compilation"
        )


def attention_reducer(heads: int, dropout: float, key: jax.Array | None) -> Softmax:
    """The reducer of attention with dropout.

    Args:
      heads: number of heads.
      dropout: probability with which a coefficient is dropped, in [0, 1).
      key: typed random key, needed where dropout > 0.

    Returns:
      The reducer.

    Raises:
      ValueError: dropout is no number in [0, 1), or the key is missing or of another kind.
    """
    if not isinstance(dropout, Real) or isinstance(dropout, bool) or not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout!r}; expected a number in [0, 1)")
    if not dropout:
        return Softmax(heads=heads)
    if key is None:
        raise ValueError("dropout needs a random key: pass key=jax.random.key(seed)")
    return Softmax(seed_words(key), float(dropout), heads)


def _check_floating(name: str, values: Any) -> None:
    if not hasattr(values, "dtype") or not hasattr(values, "shape"):
        raise ValueError(f"{name} is a {type(values).__name__}; expected an array")
    if not jnp.issubdtype(values.dtype, jnp.floating):
        raise ValueError(f"{name} has dtype {values.dtype}; expected a floating type")
