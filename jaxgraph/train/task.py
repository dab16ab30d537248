"""The task of a model: sums of a loss and of its metrics over the nodes of a shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jaxgraph.kinds import kind_of
from jaxgraph.parallel import Shard, ShardedGraph

SPLITS = ("train", "val", "test")


class Merged:
    """Sums with an addition of their own, `+`, over graphs; over shards their entries add up."""


Sums = Mapping[str, Any]
"""A pytree of sums and counts, which add up over shards and over graphs."""


@runtime_checkable
class Task(Protocol):
    """The goal of a model, on which training, evaluation and the history depend alone.

    Your own task is a subclass with `sums`; `splits` and `metrics` have a default.

    A task is hashable and holds no arrays, which belong to the graph (`Graph.with_nodes`): it is a
    static part of compiled programs. Two tasks of one class with equal attributes are equal. Calls
    of its methods follow this order: `splits` and `check_training` before compilation,
    `in_training` on every shard of a step, `evaluated_splits` of an evaluation, `sums` on every
    shard, `metrics` on the sums over all shards and all graphs.
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).items()))

    def splits(self, shard: Shard) -> tuple[str, ...]:
        """Returns a graph's splits among "train", "val" and "test"; by default, those with a mask.

        Args:
          shard: the shard, or the stacked shards of a sharded graph; only the presence of its
            arrays may be read, because they may be abstract.

        Returns:
          Names in the order above.

        Raises:
          ValueError: the graph lacks the task's targets.
        """
        return tuple(name for name in SPLITS if getattr(shard, f"{name}_mask") is not None)

    def evaluated_splits(self, shard: Shard) -> tuple[str, ...]:
        """Returns the splits that an evaluation measures; by default, all.

        Without "train", the metrics of an epoch have those of its step under that name.

        Args:
          shard: as for `splits`.

        Returns:
          Names in the order above.
        """
        return self.splits(shard)

    def check_training(self, graph: ShardedGraph) -> None:
        """Raises ValueError where a graph with training nodes cannot be learned from.

        Args:
          graph: the sharded graph, with its data.
        """

    def in_training(self, shard: Shard, key: jax.Array) -> Shard:
        """Returns the shard as a step sees it; by default, as it is.

        Args:
          shard: the shard; its features may be of any kind.
          key: the random key of the step. Layers draw from it too, so fold a number of your own
            into it.

        Returns:
          The shard on which the model runs and whose training loss counts.
        """
        return shard

    def sums(self, outputs: Any, shard: Shard, split: str) -> Sums:
        """Returns this shard's share of the sums from which loss and metrics are computed.

        Args:
          outputs: the model's outputs.
          shard: the shard; rows outside of `split_mask(shard, split)` must not count. Mask them by
            `jnp.where` before the arithmetic, since padding may hold NaN.
          split: "train", "val" or "test".

        Returns:
          A pytree of arrays, of the same shapes on every shard.

        Raises:
          ValueError: the outputs do not fit the graph.
        """
        ...

    def metrics(self, sums: Sums) -> Mapping[str, jax.Array]:
        """Returns the loss, under "loss", and the metrics of all shards.

        By default, every sum is divided by the sum named "count".

        Args:
          sums: the results of `sums`, added up.

        Returns:
          Scalars by name. "loss" is differentiated, and its lowest value determines the best epoch;
          "accuracy" is shown if it exists.
        """
        if not {"loss", "count"} <= set(sums):
            raise ValueError(
                f"sums of {type(self).__name__} returned {', '.join(sums)}; expected the sums of "
                "'loss' and 'count', or a method `metrics` that divides other sums"
            )
        count = sums["count"]
        return {name: total / count for name, total in sums.items() if name != "count"}


def described(outputs: Any) -> str:
    """Describes the outputs of a model, for messages."""
    if isinstance(outputs, jax.Array):
        return f"an array of shape {list(outputs.shape)}"
    return f"{kind_of(outputs)}; expected an array alone"


def split_mask(shard: Shard, split: str) -> jax.Array:
    """Returns a mask of the rows that are nodes of a split; it excludes padding.

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
