"""The task of a model: sums of a loss and of its metrics over the nodes of a shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jaxgraph.parallel import Shard

__all__ = ["SPLITS", "Sums", "Task", "split_mask"]

SPLITS = ("train", "val", "test")

Sums = Mapping[str, Any]
"""A pytree of sums and counts; those of shards, and of graphs, add up to those of the whole."""


@runtime_checkable
class Task(Protocol):
    """The goal of a model; training, evaluation and the history read nothing else of it.

    A task of one's own is a subclass with `sums`; `splits` and `metrics` have a default.

    A task is hashable and holds no arrays, which belong to the graph (`Graph.with_nodes`): it is a
    static part of compiled programs. Two of one class with equal attributes are equal. Its three
    methods are called in this order: `splits` before compilation, `sums` on every shard, `metrics`
    on the sums over all shards (and over all graphs, where there are several).
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).items()))

    def splits(self, shard: Shard) -> tuple[str, ...]:
        """Returns those of "train", "val" and "test" that a graph has; by default, has masks for.

        Args:
          shard: the shard, or the stacked shards of a sharded graph; only which of its arrays are
            there may be looked at, because they may be abstract.

        Returns:
          Names in the order above.

        Raises:
          ValueError: the graph lacks what the task learns from.
        """
        return tuple(name for name in SPLITS if getattr(shard, f"{name}_mask") is not None)

    def sums(self, outputs: Any, shard: Shard, split: str) -> Sums:
        """Returns this shard's share of the sums from which loss and metrics are computed.

        Args:
          outputs: what the model returned.
          shard: the shard; rows outside of `split_mask(shard, split)` must not count. Mask them by
            `jnp.where` before the arithmetic, since rows of padding may hold NaN.
          split: "train", "val" or "test".

        Returns:
          A pytree of arrays, of the same shapes on every shard.

        Raises:
          ValueError: the outputs do not fit the graph.
        """
        ...

    def metrics(self, sums: Sums) -> Mapping[str, jax.Array]:
        """Returns the loss, under "loss", and the metrics of all shards.

        By default, every sum is divided by the one that is called "count".

        Args:
          sums: what `sums` returned, added up.

        Returns:
          Scalars by name. "loss" is differentiated, and the epoch of the lowest is the best;
          "accuracy" is shown where there is one.
        """
        if not {"loss", "count"} <= set(sums):
            raise ValueError(
                f"sums of {type(self).__name__} returned {', '.join(sums)}; expected the sums of "
                "'loss' and 'count', or a method `metrics` that divides other sums"
            )
        count = sums["count"]
        return {name: total / count for name, total in sums.items() if name != "count"}


def split_mask(shard: Shard, split: str) -> jax.Array:
    """Returns which rows of a shard are nodes of a split; rows of padding are not.

    Args:
      shard: the shard.
      split: "train", "val" or "test".

    Returns:
      bool [rows].

    Raises:
      ValueError: there is no such split, or the graph has no mask for it.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; expected one of {', '.join(SPLITS)}")
    mask = getattr(shard, f"{split}_mask")
    if mask is None:
        raise ValueError(f"the graph has no {split}_mask; give Graph {split}_mask=...")
    return jnp.logical_and(mask, shard.node_mask)
