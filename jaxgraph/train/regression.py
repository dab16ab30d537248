"""Regression of numbers of nodes, known or missing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.parallel import Shard
from jaxgraph.train.task import Merged, Sums, Task, described, split_mask
from pallas_kernels.pytrees import pytree

LOSSES = ("squared", "absolute", "huber")


@dataclasses.dataclass(frozen=True)
class NodeRegression(Task):
    """Numbers of nodes, of any shape, by their name in `Graph.with_nodes`; NaN if missing.

    Over the n known entries k of the nodes v of the split, and with d_vk = z_vk - y_vk:

    loss = 1/n sum_vk d_vk^2                                             "squared"
    loss = 1/n sum_vk |d_vk|                                             "absolute"
    loss = 1/n sum_vk d_vk^2 / 2 if |d_vk| <= delta, else delta (|d_vk| - delta / 2)   "huber"

    Metrics are "mse" and "mae", and r2 = 1 - sum_vk d_vk^2 / sum_vk (y_vk - mean_k)^2, the
    coefficient of determination, with entries weighted by their variance. The mean of each entry is
    over all devices, and is computed before the squares.

    Attributes:
      target: name of the node array. The model returns its shape, or [rows, 1] for [rows].
      loss: "squared", "absolute" or "huber".
      delta: threshold of "huber", above 0, in the unit of the targets.

    Raises:
      ValueError: an attribute has another value.
    """

    target: str = "target"
    loss: Literal["squared", "absolute", "huber"] = "squared"
    delta: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.target, str):
            raise ValueError(
                f"target is a {type(self.target).__name__}; expected the name of a node array: "
                "graph.with_nodes(target=...), and NodeRegression('target')"
            )
        if self.loss not in LOSSES:
            raise ValueError(f"loss is {self.loss!r}; expected one of {', '.join(LOSSES)}")
        is_number = isinstance(self.delta, int | float) and not isinstance(self.delta, bool)
        if not is_number or not 0 < self.delta < math.inf:
            raise ValueError(f"delta is {self.delta!r}; expected a number above 0, such as 1.0")

    def splits(self, shard: Shard) -> tuple[str, ...]:
        """Returns the splits that have a mask; see `Task.splits`."""
        self._target(shard)
        return super().splits(shard)

    def sums(self, outputs: jax.Array, shard: Shard, split: str) -> Sums:
        """Sums over the known entries of the nodes of a split; see `Task.sums`.

        Args:
          outputs: float [rows, ...], in the shape of the target.
          shard: the shard.
          split: "train", "val" or "test".

        Returns:
          The summed loss, squares and absolute values of d, and the moments of the targets.
        """
        mask, target = split_mask(shard, split), self._target(shard)
        self._check_outputs(outputs, target)
        rows = target.shape[0]
        outputs = to_accumulation(outputs.reshape(rows, -1))
        target = target.reshape(rows, -1).astype(outputs.dtype)
        known = mask[:, None] & ~jnp.isnan(target)
        # Masked before the arithmetic: otherwise a masked gradient through NaN would be NaN.
        outputs, target = (jnp.where(known, values, 0) for values in (outputs, target))
        difference = outputs - target
        squares, sizes = difference**2, jnp.abs(difference)
        losses = {"squared": squares, "absolute": sizes}.get(self.loss)
        if losses is None:
            large = self.delta * (sizes - self.delta / 2)
            losses = jnp.where(sizes <= self.delta, squares / 2, large)
        return {
            "loss": losses.sum(),
            "squares": squares.sum(),
            "sizes": sizes.sum(),
            "targets": _moments(shard, target, known),
        }

    def metrics(self, sums: Sums) -> Mapping[str, jax.Array]:
        """Computes loss and metrics of a split; NaN if no target is known, or all are equal."""
        targets: Moments = sums["targets"]
        count = targets.count.astype(sums["loss"].dtype).sum()
        return {
            "loss": sums["loss"] / count,
            "mse": sums["squares"] / count,
            "mae": sums["sizes"] / count,
            "r2": 1 - sums["squares"] / targets.squares.sum(),
        }

    def _target(self, shard: Shard) -> jax.Array:
        if self.target not in shard.node_data:
            names = ", ".join(shard.node_data) or "none"
            raise ValueError(
                f"the graph has no node array {self.target!r} to learn (its node arrays: {names}); "
                f"give it one with graph.with_nodes({self.target}=...), before it is sharded, or "
                f"rows of links, graphs or a set node_data={{{self.target!r}: ...}}"
            )
        return shard.node_data[self.target]

    def _check_outputs(self, outputs: Any, target: jax.Array) -> None:
        shape = getattr(outputs, "shape", None)
        alike = shape == target.shape or (
            shape is not None
            and {len(shape), target.ndim} == {1, 2}
            and shape[0] == target.shape[0]
            and math.prod(shape) == math.prod(target.shape)
        )
        if not alike:
            reshaped = " and reshape its outputs" if target.ndim > 2 else ""
            raise ValueError(
                f"the model returned {described(outputs)}; the regression of "
                f"{self.target!r} expects {list(target.shape)}. Make the model with "
                f"out_features={math.prod(target.shape[1:])}{reshaped}"
            )


@pytree
class Moments(Merged):
    """The moments of a graph's targets; those of shards add up entry by entry.

    Attributes:
      count: int32 [entries], number of known targets.
      total: float [entries], their sum.
      squares: float [entries], sum of the squares of their differences from the graph's mean.
    """

    count: jax.Array
    total: jax.Array
    squares: jax.Array

    def __add__(self, other: Moments) -> Moments:
        """Returns the moments of two graphs, whose means differ.

        References:
          Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
          Variances", 1979.
        """
        dtype = self.total.dtype
        mine, theirs = self.count.astype(dtype), other.count.astype(dtype)
        apart = _mean(self.count, self.total) - _mean(other.count, other.total)
        between = apart**2 * mine * (theirs / jnp.maximum(mine + theirs, 1))
        return Moments(
            self.count + other.count,
            self.total + other.total,
            self.squares + other.squares + between,
        )


def _moments(shard: Shard, target: jax.Array, known: jax.Array) -> Moments:
    """Computes this shard's share about the graph's mean, since E[y^2] - E[y]^2 would cancel."""
    count, total = known.sum(0, dtype=jnp.int32), target.sum(0)
    mean = _mean(*shard.sum((count, total)))
    return Moments(count, total, jnp.where(known, (target - mean) ** 2, 0).sum(0))


def _mean(count: jax.Array, total: jax.Array) -> jax.Array:
    return total / jnp.maximum(count, 1).astype(total.dtype)
