"""Checks of the arguments of ops, made before anything is computed."""

from __future__ import annotations

from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.propagation import Neighborhood
from jaxgraph.ops.core.randomness import seed_words
from jaxgraph.ops.core.reducers import HeadMean, Softmax


def check_neighborhood(neighborhood: Any) -> None:
    """Raises `ValueError` unless an op can run on `neighborhood`."""
    if not hasattr(neighborhood, "propagate") or not hasattr(neighborhood, "edge_slots"):
        raise ValueError(
            f"neighborhood is a {type(neighborhood).__name__}; expected the shard of a device, in "
            "a function that jaxgraph.parallel.spmd runs on every shard"
        )


def check_rows(neighborhood: Neighborhood, side: str, name: str, values: Any, rest: str) -> None:
    """Checks an array with one row per sender or receiver."""
    _check_floating(name, values)
    rows = neighborhood.sender_rows if side == "sender" else neighborhood.receiver_rows
    has_axes = rest == "..." or len(values.shape) == 2 + rest.count(",")
    if not has_axes or values.shape[:1] != (rows,):
        raise ValueError(
            f"{name} has shape {values.shape}; expected one row per {side} row of the "
            f"neighbourhood, [{rows}, {rest}]"
        )


def check_slots(
    neighborhood: Neighborhood, name: str, values: Any, shapes: tuple[tuple[int, ...], ...]
) -> None:
    """Checks an array with one row per edge slot."""
    _check_floating(name, values)
    expected = [(neighborhood.edge_slots, *rest) for rest in shapes]
    if values.shape not in expected:
        raise ValueError(
            f"{name} has shape {values.shape}; expected one row per edge slot: "
            f"{' or '.join(map(str, expected))}"
        )


def check_no_loops(self_loops: bool, name: str) -> None:
    """Raises `ValueError` where self-loops are added, which have no slot in arrays per edge."""
    if self_loops:
        raise ValueError(
            f"{name} has one value per edge, and the self-loops that are added have none; add the "
            "loops to the graph with jaxgraph.transforms.add_self_loops"
        )


def check_same_axes(first: str, left: Any, second: str, right: Any) -> None:
    """Raises `ValueError` unless two arrays have equal axes after the first."""
    if left.shape[1:] != right.shape[1:]:
        raise ValueError(
            f"{first} has shape {left.shape} and {second} {right.shape}; expected the same axes "
            "after the first"
        )


def check_slope(negative_slope: Any) -> None:
    """Raises `ValueError` unless the slope of a leaky ReLU is a number."""
    if not isinstance(negative_slope, Real) or isinstance(negative_slope, bool):
        raise ValueError(
            f"negative_slope is {negative_slope!r}; expected a number such as 0.2, known before "
            "compilation"
        )


def attention_reducer(
    heads: int, dropout: float, key: jax.Array | None, *, mean_heads: bool = False
) -> Softmax:
    """The reducer of attention with dropout."""
    if not isinstance(dropout, Real) or isinstance(dropout, bool) or not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout!r}; expected a number in [0, 1)")
    reducer = HeadMean if mean_heads else Softmax
    if not dropout:
        return reducer(heads=heads)
    if key is None:
        raise ValueError("attention dropout needs a random key: pass key=jax.random.key(seed)")
    return reducer(seed_words(key), float(dropout), heads)


def _check_floating(name: str, values: Any) -> None:
    if not hasattr(values, "dtype") or not hasattr(values, "ndim"):
        raise ValueError(f"{name} is a {type(values).__name__}; expected an array")
    if not jnp.issubdtype(values.dtype, jnp.floating):
        raise ValueError(f"{name} has dtype {values.dtype}; expected a floating type")
