"""Features split by column: a device holds some columns of every node (P3, section 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.row_maps import map_rows
from jaxgraph.parallel.feature_protocol import (
    Aggregation,
    FeatureKind,
    Numbers,
    Pytree,
    Shares,
    TransformFn,
    at_use,
    features_of,
)
from jaxgraph.parallel.kept_edges import check_all_edges
from jaxgraph.parallel.schedules.p3 import push_pull
from pallas_kernels.pytrees import pytree

if TYPE_CHECKING:
    from jaxgraph.parallel.shard import Shard


@pytree
class FeatureColumns(FeatureKind):
    """This device's columns of the features of all nodes, under `spmd`.

    Attributes:
      values: float [parts * rows, columns], the nodes of part 0 first; the last column of some
        devices is padding, where the number of features cannot be divided. Or
        `jaxgraph.parallel.SparseFeatures` of this shape.
      offset: int32 [], the first column.
      num_features: columns in all.
      groups: into how many slices they are cut.
    """

    values: Any
    offset: jax.Array
    num_features: int = dataclasses.field(metadata={"static": True})
    groups: int = dataclasses.field(metadata={"static": True})

    is_split = True

    @property
    def is_sparse(self) -> bool:
        """True where the columns are sparse."""
        return features_of(self.values).is_sparse

    @property
    def shape(self) -> tuple[int, ...]:
        """[parts * rows, num_features]"""
        return *self.values.shape[:-1], self.num_features

    @property
    def columns(self) -> int:
        """Columns of this device, with that of padding."""
        return self.values.shape[-1]

    @property
    def has_padding(self) -> bool:
        """True where some devices hold columns of padding."""
        return self.num_features % self.groups != 0

    def in_range(self) -> jax.Array:
        """bool [columns], False for padding columns."""
        width, longer = self.columns, self.num_features % self.groups
        is_full = self.offset < longer * width if longer else True
        return jnp.arange(width) < jnp.where(is_full, width, width - 1)

    def rows_of(self, kernel: jax.Array) -> jax.Array:
        """The rows of a kernel [num_features, ...] that belong to the columns, [columns, ...].

        A column of padding gets zeros, so that it adds nothing to a share.
        """
        width = self.columns
        padded = jnp.pad(kernel, ((0, width), *((0, 0),) * (kernel.ndim - 1)))
        rows = lax.dynamic_slice_in_dim(padded, self.offset, width, 0)
        if not self.has_padding:
            return rows
        return jnp.where(self.in_range().reshape(-1, *(1,) * (kernel.ndim - 1)), rows, 0)

    def kernels_of(self, kernels: Pytree) -> Pytree:
        """The rows of kernels that belong to the columns; scalars as they are."""
        return jax.tree.map(
            lambda kernel: self.rows_of(kernel) if jnp.ndim(kernel) else kernel,
            match_variation(kernels, self),
        )

    @property
    def mask(self) -> jax.Array | None:
        """`in_range`, or None where no device holds columns of padding."""
        return self.in_range() if self.has_padding else None

    def astype(self, dtype: Any) -> FeatureColumns:
        """The columns in another type."""
        return dataclasses.replace(self, values=features_of(self.values).astype(dtype))

    def mapped(self, nodes: Any, kernel: jax.Array, *, is_masked: bool = False) -> jax.Array:
        """x W, the sum of the devices' shares."""
        by = nodes.implementation
        if self.is_sparse:  # All rows at once; dense ones are mapped chunk by chunk.
            before, after = lambda kernel, x: (x @ kernel, None), lambda kernel, y, _: y
        else:
            before, after = None, lambda kernel, x, _: map_rows(x, kernel, by)
        return self.sync(Shares(nodes, self, at_use(kernel, self), None, after, before))

    def sync(self, shares: Shares) -> jax.Array:
        """The sum of the devices' shares of the own rows."""
        topology, aggregation = shares.shard.require_columns(), shares.aggregation
        if aggregation is not None:
            check_all_edges(shares.shard)
        kernels = self.kernels_of(shares.kernels)
        own, sent = self.values, self.values
        columns = None if shares.before is not None else self.mask
        if shares.before is not None:
            own, sent = shares.before(kernels, self._masked(topology.nodes.node_mask[:, None]))
        if shares.aggregate is not None:
            sent, aggregation = shares.aggregate, _Identity()
        elif aggregation is not None:
            sent = aggregation.send(topology.nodes, sent)
        function = partial(share_of_columns, shares.after, aggregation)
        return push_pull(topology, function, (kernels, columns), (own, sent))

    def sum_of_shares(
        self, nodes: Any, share: Callable[[Pytree, jax.Array, Any], jax.Array], kernels: Pytree
    ) -> jax.Array:
        """The sum of all devices' `share(kernels, rows of the senders, neighbourhood)`."""
        check_all_edges(nodes)
        kernels = match_variation(kernels, self)
        return push_pull(nodes.require_columns(), share, kernels, self.values)

    def _masked(self, mask: jax.Array) -> Any:
        """The values of real nodes, and no column of padding."""
        if self.is_sparse:
            return self.values
        mask = mask & self.in_range() if self.has_padding else mask
        return jnp.where(mask, self.values, 0)

    def aggregated(self, shard: Shard, aggregation: Aggregation, width: int) -> jax.Array:
        """See `jaxgraph.parallel.ptags.aggregate_columns`."""
        check_all_edges(shard)
        topology = shard.require_columns()
        sent = aggregation.send(topology.nodes, self.values)
        schedule = topology.schedule
        shape = (schedule.groups * schedule.replicas, schedule.chunks, -1, self.columns)

        def of_chunk(chunk: jax.Array, table: jax.Array) -> jax.Array:
            rows = topology.each_part(
                chunk, lambda rows: aggregation.receive(rows, sent, rows.own_rows(sent))
            )
            rows = rows.reshape(schedule.groups, 1, *table.shape[2:]).astype(table.dtype)
            return lax.dynamic_update_slice(table, rows, (topology.first_part(), chunk, 0, 0))

        empty = match_variation(jnp.zeros_like(self.values), (self, topology)).reshape(shape)
        return lax.fori_loop(0, schedule.chunks, of_chunk, empty).reshape(self.values.shape)

    def dropped(self, nodes: Any, key: jax.Array, rate: float, offset: Any = 0) -> Any:
        """The columns with entries dropped by node and column."""
        everyone = nodes.require_columns().nodes
        values = features_of(self.values).dropped(everyone, key, rate, self.offset)
        return dataclasses.replace(self, values=values)

    def hidden(self, nodes: Any, key: jax.Array, rate: float, first: Any) -> Any:
        """The columns, which are 0 in some nodes from a column of the graph on."""
        everyone = nodes.require_columns().nodes
        values = features_of(self.values).hidden(everyone, key, rate, first - self.offset)
        return dataclasses.replace(self, values=values)

    def rows(self, purpose: str) -> jax.Array:
        """Raises TypeError: a device holds no row of a node."""
        self.check_dense(purpose)
        raise TypeError(
            f"{purpose} needs all features of a node, but x is FeatureColumns (this device's "
            "columns of all nodes); pass it through jaxgraph.nn.Linear first, write the layer with "
            "jaxgraph.parallel.ptags, or gather the rows with shard.to_nodes(x)"
        )

    def gathered(self, shard: Shard, purpose: str) -> jax.Array:
        """All columns of the own nodes; moves features, which layers on columns do not."""
        self.check_dense(purpose)
        topology = shard.require_columns()
        return self.joined(topology.own_parts(self.values), topology.axis)

    def joined(self, values: jax.Array, axis: str) -> jax.Array:
        """Sends `values` [groups * rows, columns] to their devices; all columns of the own rows."""
        rows = lax.all_to_all(values, axis, split_axis=0, concat_axis=1, tiled=True)
        fewer, longer = divmod(self.num_features, self.groups)
        counts = fewer + (np.arange(self.groups) < longer)
        kept = np.flatnonzero(np.arange(self.columns) < counts[:, None])
        return rows if len(kept) == rows.shape[1] else rows[:, kept]

    def digest(self, of_rows: np.ndarray, of_columns: Numbers, first: int = 0) -> int:
        """The sum over the columns of this device; those of padding are 0, and add nothing."""
        return features_of(self.values).digest(of_rows, of_columns, int(self.offset))

    def is_digested_on(self, device: int) -> bool:
        """False in the other rows of devices, which hold the same columns."""
        return device < self.groups


@dataclasses.dataclass(frozen=True)
class _Identity:
    """The aggregation of features that are aggregated already."""

    def send(self, nodes: Any, x: jax.Array, /) -> jax.Array:
        """x as it is."""
        return x

    def receive(self, neighborhood: Any, sent: jax.Array, own: jax.Array, /) -> jax.Array:
        """The receivers' own rows."""
        return own


def share_of_columns(
    after: TransformFn,
    aggregation: Aggregation | None,
    params: tuple[Pytree, jax.Array | None],
    table: tuple[Pytree, Pytree],
    chunk: Any,
) -> jax.Array:
    """The share of a device's columns in the rows of a neighbourhood."""
    kernels, columns = params

    def in_range(values: jax.Array) -> jax.Array:
        return values if columns is None else jnp.where(columns, values, 0)

    own = jax.tree.map(lambda values: in_range(chunk.own_rows(values)), table[0])
    aggregated = None
    if aggregation is not None:
        aggregated = in_range(aggregation.receive(chunk, table[1], chunk.own_rows(table[1])))
    return after(kernels, own, aggregated)
