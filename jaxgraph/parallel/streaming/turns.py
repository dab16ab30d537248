"""Arrays of the parts of a turn, which are on the devices at one time, one part on each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from pallas_kernels.pytrees import pytree

__all__ = ["Spread", "Summed", "Waiting", "is_spread", "map_arrays", "spread_type"]

Pytree = Any


@pytree
class Spread:
    """An array of each part of a turn, each on its device; programs see that of their device.

    An axis of devices would cost copies: XLA writes in place only to what it gets as it is.

    Attributes:
      array: [devices * rows, ...], one below the other; of numbers [devices], and on one device [].
      is_number: whether they are numbers.
    """

    array: Any
    is_number: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def dtype(self) -> Any:
        """Their type."""
        return self.array.dtype


@pytree
class Summed:
    """A result of a program that is summed over the devices, and then the same on all.

    Attributes:
      array: of each device.
    """

    array: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Waiting:
    """An array of each part of a turn, on the host; no pytree, but a leaf of one.

    Attributes:
      arrays: those of the devices of this process, in order.
    """

    arrays: tuple[Any, ...]


def spread_type(leaf: Any, devices: int) -> Spread:
    """The type of `Spread` arrays.

    Args:
      leaf: one of them, or its type.
      devices: their number.
    """
    shape = tuple(leaf.shape)
    if devices > 1:
        shape = (devices * shape[0], *shape[1:]) if shape else (devices,)
    return Spread(jax.ShapeDtypeStruct(shape, leaf.dtype), not leaf.shape)


def is_spread(value: Any) -> bool:
    """True for `Spread`."""
    return isinstance(value, Spread)


def map_arrays(function: Callable[[Any], Any], tree: Pytree) -> Pytree:
    """Maps leaves of a pytree, of which a `Spread` is one."""
    return jax.tree.map(function, tree, is_leaf=is_spread)
