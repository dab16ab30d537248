"""The reductions by name: their reducers, and the types of messages that each takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.implementations import check_name
from jaxgraph.ops.core.input_classes import extremum_of
from jaxgraph.ops.core.messages import Inputs, MessageFn, message_shapes
from jaxgraph.ops.core.reducers import Extremum, Mean, Reducer, Softmax, Sum

Pytree = Any


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A way to reduce messages that users name.

    Attributes:
      name: the name.
      reducer: makes the reducer.
      takes: "numbers", "numbers and truth values" or "floating numbers".
    """

    name: str
    reducer: Callable[..., Reducer]
    takes: str

    def check_types(self, messages: Pytree) -> None:
        """Raises `TypeError` for messages (arrays or shapes) of types that it does not take."""
        for leaf in jax.tree.leaves(messages):
            if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
                raise TypeError(
                    f"messages are {leaf.dtype}; expected real numbers: reduce real and imaginary "
                    "parts as two arrays, (m.real, m.imag)"
                )
            is_number = jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == jnp.bool_
            if not is_number:
                raise TypeError(f"messages are {leaf.dtype}; expected numbers")
            if self.takes == "numbers" and leaf.dtype == jnp.bool_:
                raise TypeError(
                    "messages are bool, which have no sum; count them as m.astype(jnp.int32), or "
                    "ask with reduce='max' whether any is True, with 'min' whether all are"
                )
            if self.takes == "floating numbers" and not _is_floating(leaf):
                raise TypeError(
                    f"with reduce={self.name!r} messages are {leaf.dtype}; expected floating "
                    "numbers: m.astype(jnp.float32)"
                )

    def of(
        self, message: MessageFn, inputs: Inputs, chunk: int
    ) -> tuple[MessageFn, Reducer, Inputs]:
        """The reduction of some messages, which are not of "softmax"."""
        reducer = self.reducer()
        if isinstance(reducer, Extremum):
            return extremum_of(message, inputs, chunk, reducer)
        if isinstance(reducer, Mean):
            leaves = jax.tree.leaves(message_shapes(message, inputs, chunk))
            message = message if all(map(_is_floating, leaves)) else _Averaged(message)
        return message, reducer, inputs


@dataclasses.dataclass(frozen=True)
class _Averaged:
    """A message with its integers as floating numbers, whose sums do not overflow."""

    message: MessageFn

    def __call__(self, params: Pytree, sender: Pytree, receiver: Pytree, edge: Pytree) -> Pytree:
        def as_floating(leaf: Any) -> Any:
            return leaf if _is_floating(leaf) else leaf.astype(jnp.result_type(float))

        return jax.tree.map(as_floating, self.message(params, sender, receiver, edge))


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


_ANY = "numbers and truth values"

REDUCTIONS: Mapping[str, Reduction] = MappingProxyType(
    {
        each.name: each
        for each in (
            Reduction("sum", Sum, "numbers"),
            Reduction("mean", Mean, _ANY),
            Reduction("max", Extremum, _ANY),
            Reduction("min", partial(Extremum, -1.0), _ANY),
            Reduction("softmax", Softmax, "floating numbers"),
        )
    }
)
"""All of them."""

OF_VALUES = tuple(name for name in REDUCTIONS if name != "softmax")
"""The names of those that take messages of one value each, without logits that weigh it."""


def check_reduction(reduce: Any, names: Iterable[str] = OF_VALUES) -> None:
    """Raises `ValueError` unless `reduce` is one of `names`."""
    check_name("reduce", reduce, names)
