"""Features of a sample that stay split by column: push-pull parallelism (P3, section 3.2).

A device pushes the nodes and edges of its sample's first layer to all devices that hold other
columns. Each computes shares of the layer's output from its own columns, for one sample after the
other, and a reduce-scatter leaves every device with the complete rows of its own sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.errors import TraceContextError
from jax import lax

from jaxgraph.ops.core.chosen_rows import chosen_rows
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.row_maps import map_rows
from jaxgraph.parallel.feature_protocol import FeatureKind, Shares, at_use, features_of
from jaxgraph.parallel.features import FeatureColumns, share_of_columns
from jaxgraph.parallel.node_table import NodeTable
from jaxgraph.parallel.relation import Relation
from jaxgraph.parallel.schedules.p3 import push_pull
from pallas_kernels.pytrees import pytree

Pytree = Any
AtSync = Callable[[Callable[[], jax.Array]], jax.Array]


class NotPipelinedError(ValueError):
    """A model whose first layer cannot run apart from the others."""


class RecordedShares:
    """Computes the sums over devices of a model's first layer, and keeps them."""

    def __init__(self) -> None:
        self.values: list[jax.Array] = []
        self._level = nnx.Variable(0)

    def __call__(self, summed: Callable[[], jax.Array]) -> jax.Array:
        try:
            # NNX alone says whether this is the trace that began: another would leak the values.
            self._level.set_value(1)
        except TraceContextError as error:
            raise NotPipelinedError(
                "the pipeline (staleness=3) runs the first layer apart from the others, and the "
                "model has it inside of jax.checkpoint, jax.jit or a loop; call it outside of "
                "these, or train with staleness=0"
            ) from error
        self.values.append(summed())
        return self.values[-1]


class GivenShares:
    """Gives the sums over devices that were recorded, in the same order."""

    def __init__(self, values: Sequence[jax.Array]) -> None:
        self._values = iter(values)

    def __call__(self, summed: Callable[[], jax.Array]) -> jax.Array:
        return next(self._values)


@pytree
class _Dropout:
    """Drops entries of rows by node and column."""

    key: jax.Array
    rate: float = dataclasses.field(metadata={"static": True})

    def __call__(self, x: jax.Array, nodes: Any, first: Any) -> jax.Array:
        return features_of(x).dropped(nodes, self.key, self.rate, first)


@pytree
class _Cast:
    """Casts rows to another type."""

    dtype: Any = dataclasses.field(metadata={"static": True})

    def __call__(self, x: jax.Array, nodes: Any, first: Any) -> jax.Array:
        return x.astype(self.dtype)


@pytree
class SampledColumns(FeatureKind):
    """This device's columns of the features of a sample's nodes, of which no row is fetched.

    Attributes:
      table: the columns of all nodes.
      places: int32 [rows], where each node of the sample is among the rows of the table.
      changes: what becomes of the rows where they are used, in this order.
      at_sync: called in place of every sum over devices, with the function that computes it; None:
        it is computed.
    """

    table: FeatureColumns
    places: jax.Array
    changes: tuple[Any, ...] = ()
    at_sync: AtSync | None = dataclasses.field(default=None, metadata={"static": True})

    is_split = True

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, num_features]"""
        return len(self.places), self.table.num_features

    @property
    def dtype(self) -> Any:
        """The type of the values where they are used."""
        casts = [each.dtype for each in self.changes if isinstance(each, _Cast)]
        return casts[-1] if casts else self.table.dtype

    @property
    def columns(self) -> int:
        """Columns of this device, with that of padding."""
        return self.table.columns

    @property
    def values(self) -> jax.Array:
        """Columns of some rows, of which shapes and types are read."""
        return self.table.values[: len(self.places)].astype(self.dtype)

    def astype(self, dtype: Any) -> SampledColumns:
        """The columns in another type."""
        return self._changed(_Cast(jnp.dtype(dtype)))

    def dropped(self, nodes: Any, key: jax.Array, rate: float, offset: Any = 0) -> Any:
        """The columns with entries dropped by node and column."""
        return self._changed(_Dropout(key, rate))

    def first_rows(self, count: int) -> SampledColumns:
        """The columns of the first nodes."""
        return dataclasses.replace(self, places=self.places[:count])

    def rows(self, purpose: str) -> jax.Array:
        """Raises TypeError: a device holds no row of a node."""
        return self.table.rows(purpose)

    def mapped(self, nodes: Any, kernel: jax.Array, *, is_masked: bool = False) -> jax.Array:
        """x W, the sum of the devices' shares."""
        by = nodes.implementation
        after = lambda kernel, x, _: map_rows(x, kernel, by)  # noqa: E731
        return self.sync(Shares(nodes, self, at_use(kernel, self), None, after))

    def sync(self, shares: Shares) -> jax.Array:
        """The sum of the devices' shares of the rows of this device's sample."""
        columns = None if shares.before is not None else self.table.mask
        given = self.table.kernels_of(shares.kernels), columns
        share = partial(_share, shares)
        return self.sum_of_shares(shares.shard, share, given)

    def rows_of(self, kernel: jax.Array) -> jax.Array:
        """The rows of a kernel that belong to the columns."""
        return self.table.rows_of(kernel)

    def sum_of_shares(
        self, nodes: Any, share: Callable[[Pytree, jax.Array, Any], jax.Array], kernels: Pytree
    ) -> jax.Array:
        """The sum of all devices' `share(kernels, rows of the senders, neighbourhood)`."""
        rows = nodes.senders.num_rows
        if len(self.places) != rows:
            raise ValueError(
                f"x has shape {self.shape}; expected one row per node of the senders, [{rows}, "
                "features]: neighborhood.own_rows(x) has those of the receivers"
            )

        def of_part(given: Any, table: jax.Array, part: tuple[Any, jax.Array]) -> jax.Array:
            (kernels, changes, first), (nodes, places) = given, part
            x, senders = chosen_rows(table, places, nodes.implementation), nodes.senders
            for change in changes:
                x = change(x, senders, first)
            return share(kernels, jnp.where(senders.node_mask[:, None], x, 0), nodes)

        def summed() -> jax.Array:
            given = match_variation(kernels, self), self.changes, self.table.offset
            return push_pull(Pushed.of(nodes, self.places), of_part, given, self.table.values)

        return summed() if self.at_sync is None else self.at_sync(summed)

    def gathered(self, shard: Any, purpose: str) -> jax.Array:
        """All columns of the nodes; moves features, which layers on columns do not."""
        pushed = Pushed.of(shard, self.places)
        answers = chosen_rows(self.table.values, pushed.parts[1].reshape(-1), shard.implementation)
        x = self.table.joined(answers, pushed.axis)
        for change in self.changes:
            x = change(x, shard, 0)
        return x

    def _changed(self, change: Any) -> SampledColumns:
        return dataclasses.replace(self, changes=(*self.changes, change))


@pytree
class Pushed:
    """The nodes and edges of the samples of all devices that hold other columns.

    Attributes:
      parts: a neighbourhood and the places of its senders, [devices, ...] of each array.
      axis: name of the mesh axis over which columns are split.
    """

    parts: tuple[Any, jax.Array]
    axis: str = dataclasses.field(metadata={"static": True})

    @property
    def chunks(self) -> int:
        """The samples are one chunk."""
        return 1

    @classmethod
    def of(cls, nodes: Any, places: jax.Array) -> Pushed:
        """Pushes the nodes and edges of this device's sample to the other devices."""
        axis = nodes.receivers.axis
        axis = axis if isinstance(axis, str) else axis[-1]
        part = _without_data(nodes), places
        return cls(jax.tree.map(lambda leaf: lax.all_gather(leaf, axis), part), axis)

    def each_part(self, chunk: int, function: Callable[[Any], jax.Array]) -> jax.Array:
        """Maps the samples, one by one, to [devices * rows, ...]."""
        found = lax.map(function, self.parts)
        return found.reshape(-1, *found.shape[2:])

    def fold_parts(
        self, chunk: int, function: Callable[[Any, Any, Any], Any], rows: jax.Array, state: Pytree
    ) -> Pytree:
        """Folds a function over the samples and their rows [devices * rows, ...]."""
        by_part = rows.reshape(lax.axis_size(self.axis), -1, *rows.shape[1:])

        def step(state: Pytree, part: Any) -> tuple[Pytree, None]:
            return function(part[0], part[1], state), None

        return lax.scan(step, state, (self.parts, by_part))[0]


def _without_data(nodes: Relation | NodeTable) -> Any:
    """A neighbourhood, or a table, whose nodes have ids, masks and degrees alone."""
    if isinstance(nodes, NodeTable):
        return nodes.without_data()
    ends = {"senders": nodes.senders.without_data(), "receivers": nodes.receivers.without_data()}
    return dataclasses.replace(nodes, **ends)


def _share(
    shares: Shares, given: tuple[Pytree, jax.Array | None], x: jax.Array, nodes: Any
) -> jax.Array:
    """The share of a device's columns in the rows of a sample."""
    own, sent = (x, x) if shares.before is None else shares.before(given[0], x)
    if shares.aggregation is not None:
        sent = shares.aggregation.send(nodes.senders, sent)
    return share_of_columns(shares.after, shares.aggregation, given, (own, sent), nodes)
