"""A relation: edges from one node table to another, the neighbourhood that a layer takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.layout.typed_pairs import EDGES_OF_PAIR
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.edges import EdgeGroups
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.reducers import Extremum, Reducer, Softmax
from jaxgraph.parallel.exchange import Call, Exchange, HaloTable, Units
from jaxgraph.parallel.feature_protocol import features_of
from jaxgraph.parallel.kept_edges import has_edge, refuse_dropped_edges, sum_of_kept
from jaxgraph.parallel.node_table import Degrees, NodeTable
from pallas_kernels.pytrees import pytree

Pytree = Any


@pytree
class EdgeArrays:
    """The edges of a relation on a device, and the data that they carry.

    Attributes:
      incoming: the edges that end here.
      outgoing: the edges that leave for other parts, or None where the schedule does not need them.
      reach: the receivers that have edges from other parts; None: not needed.
      reach_units: as of `jaxgraph.layout.manifest.Manifest`.
      at_receivers: the degrees of the receivers.
      at_senders: those of the senders; None: senders and receivers are the same nodes.
      edges, edge_weight, edge_type: [slots, ...], one slot per edge that ends here, then padding
        slots of a chunk; or None.
      edge_data: named arrays [slots, ...], 0 in slots of padding.
      kept_edges: bool [slots], the edges that carry messages; the others are dropped
        (`jaxgraph.layers.dropout_edge`). None: all.
      has_own_weights: whether the weights were replaced, which sums that were made for the whole
        graph do not know.
      receivers_first: whether the receivers are the first of the senders. A receiver then may lack
        a self-loop.
      set_number: of the set of edges in its graph: sets have random bits of their own.
    """

    incoming: EdgeGroups
    outgoing: EdgeGroups | None
    at_receivers: Degrees
    at_senders: Degrees | None = None
    edges: jax.Array | None = None
    edge_weight: jax.Array | None = None
    edge_type: jax.Array | None = None
    edge_data: Mapping[str, jax.Array] = dataclasses.field(default_factory=dict)
    kept_edges: jax.Array | None = None
    has_own_weights: bool = dataclasses.field(default=False, metadata={"static": True})
    reach: HaloTable | None = None
    reach_units: Units = dataclasses.field(default=((0,),), metadata={"static": True})
    receivers_first: bool = dataclasses.field(default=True, metadata={"static": True})
    set_number: int = dataclasses.field(default=0, metadata={"static": True})


def propagate_all(calls: Sequence[Call]) -> list[Pytree]:
    """Reduces the messages of several relations; those of one exchange share its halos.

    Self-loops are for receivers that are the first senders, as in `Relation.propagate`.
    """
    exchange = calls[0].relation.exchange
    alone = any(
        call.relation.exchange is not exchange
        or call.relation.kept_edges is not None
        or isinstance(call.reducer, Extremum)
        for call in calls
    )
    if alone or len(calls) == 1:
        return [call.run() for call in calls]
    own = [call.relation.with_own_bits(call.reducer) for call in calls]
    return exchange.propagate_all(
        [dataclasses.replace(call, reducer=x) for call, x in zip(calls, own, strict=True)]
    )


@pytree
class Pairs:
    """The pairs (edge type, receiver) of a relation; see `jaxgraph.layout.typed_pairs`.

    Attributes:
      into: the relation from the senders to the pairs.
      out_of: the relation from the pairs to the receivers.
      types: int32 [pairs], the type of each pair.
      back: those of the edges turned round, (edge type, sender), of which this is None.
      block: rows of a block of pairs, which has one type.
      num_types: the largest type plus one.
    """

    into: Relation
    out_of: Relation
    types: jax.Array
    back: Pairs | None
    block: int = dataclasses.field(metadata={"static": True})
    num_types: int = dataclasses.field(metadata={"static": True})

    @property
    def type_of_block(self) -> jax.Array:
        """int32 [blocks], the type of the pairs of each block."""
        return self.types[:: self.block]

    @property
    def edges_of_pair(self) -> jax.Array:
        """float [slots], of edges turned round: the edges of the pair that each had before."""
        return self.into.edge_data[EDGES_OF_PAIR]


@pytree
class Relation:
    """Edges from the nodes of one table to those of another, or of the same.

    Attributes:
      senders, receivers: the tables, with their degrees in this relation.
      arrays: the edges, and the data that they carry.
      exchange: the way on which the senders' rows get here.
      pairs: the pairs (edge type, receiver), or None: edges have no types.
    """

    senders: NodeTable
    receivers: NodeTable
    arrays: EdgeArrays
    exchange: Exchange
    pairs: Pairs | None = dataclasses.field(default=None, kw_only=True)

    @property
    def incoming(self) -> EdgeGroups:
        """The edges that end here."""
        return self.arrays.incoming

    @property
    def edges(self) -> jax.Array | None:
        """[slots, ...], features of the edges, or None."""
        return self.arrays.edges

    @property
    def edge_weight(self) -> jax.Array | None:
        """[slots], weights of the edges, or None."""
        return self.arrays.edge_weight

    @property
    def edge_type(self) -> jax.Array | None:
        """[slots], types of the edges, or None."""
        return self.arrays.edge_type

    @property
    def edge_data(self) -> Mapping[str, jax.Array]:
        """[slots, ...] by name, named arrays of the edges."""
        return self.arrays.edge_data

    @property
    def kept_edges(self) -> jax.Array | None:
        """bool [slots], the edges that carry messages, or None: all."""
        return self.arrays.kept_edges

    @property
    def has_own_weights(self) -> bool:
        """True where the weights of the edges were replaced."""
        return self.arrays.has_own_weights

    @property
    def sender_rows(self) -> int:
        """Rows of the table of senders, padding included."""
        return self.senders.num_rows

    @property
    def receiver_rows(self) -> int:
        """Rows of the table of receivers, padding included."""
        return self.receivers.num_rows

    @property
    def edge_slots(self) -> int:
        """Slots of an array with one row per edge that ends here, padding included."""
        return self.incoming.by_receiver.neighbors.shape[-1]

    @property
    def edge_mask(self) -> jax.Array:
        """bool [slots], False for padding; True for edges that are dropped, too."""
        return has_edge(self.incoming)

    @property
    def implementation(self) -> str:
        """The implementation that reduces over the edges: "xla", "cpu" or "mosaic_gpu"."""
        return self.incoming.implementation

    @property
    def edge_chunk(self) -> int:
        """Number of edges in a call of a message function."""
        return self.incoming.chunk

    def has_edges(self, side: str) -> jax.Array:
        """bool [rows], the rows that some edge reads at its "sender" or "receiver"."""
        rows = self.sender_rows if side == "sender" else self.receiver_rows
        position = self.incoming.orientation(side).position[:rows]
        shared = self.exchange.send if side == "sender" else self.arrays.reach
        # Rows of given halos, past those of the first group, are all read.
        found = jnp.pad(position >= 0, (0, rows - len(position)), constant_values=True)
        if shared is None:
            return found
        elsewhere = (shared.position >= 0).any(0)
        return found | jnp.pad(elsewhere, (0, rows - len(elsewhere)))

    def own_rows(self, values: jax.Array) -> jax.Array:
        """The receivers' rows of `values` [senders, ...].

        Raises:
          ValueError: the receivers are not the first of the senders.
        """
        if not self.arrays.receivers_first:
            raise ValueError(
                "x holds rows of the senders alone, and the receivers are other nodes: pass a pair "
                "(x_senders, x_receivers), or make the block with receivers_first=True where its "
                "receivers are the first senders"
            )
        rows = self.receiver_rows
        return values if rows == self.sender_rows else features_of(values).first_rows(rows)

    def sum(self, values: Pytree) -> Pytree:
        """Sums over the receivers of all devices."""
        return self.receivers.sum(values)

    def with_arrays(self, **changes: Any) -> Relation:
        """The relation with other arrays of its edges."""
        return dataclasses.replace(self, arrays=dataclasses.replace(self.arrays, **changes))

    def block(self) -> Block:
        """The edges whose senders are on this device; in mode "domain" with all halos."""
        nodes, missing = self.receivers, None
        if self.arrays.receivers_first:
            missing = nodes.missing_self_loop & nodes.node_mask
        return Block(self.incoming, nodes.node_ids, missing)

    def propagate(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, *, self_loops: bool = False
    ) -> Pytree:
        """Reduces messages at the receivers by the schedule of the exchange.

        y_i = reduce_{e: j -> i} message(params, sender_j, receiver_i, edge_e)
        """
        if self.kept_edges is not None:
            kept = sum_of_kept(self.kept_edges, message, reducer, inputs, self_loops=self_loops)
            return self.with_arrays(kept_edges=None).propagate(*kept)
        # Nodes of other tables lack no self-loop.
        loops = self_loops and self.arrays.receivers_first
        reducer = self.with_own_bits(reducer)
        return self.exchange.propagate(Call(self, message, reducer, inputs, loops))

    def with_own_bits(self, reducer: Reducer) -> Reducer:
        """The reducer, which drops by the random bits of this set of edges."""
        is_random = isinstance(reducer, Softmax)
        return reducer.of_set(self.arrays.set_number) if is_random else reducer

    def pull_sum(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, gradient: Pytree, wanted: Wanted
    ) -> Inputs:
        """Pulls a gradient back through a sum of messages, for ops that state their derivative."""
        if self.kept_edges is not None:
            if wanted.edge:
                refuse_dropped_edges("an op on edge values", "call it on the whole shard")
            kept = sum_of_kept(self.kept_edges, message, reducer, inputs, self_loops=False)
            return self.with_arrays(kept_edges=None).pull_sum(*kept, gradient, wanted)
        return self.exchange.pull_sum(Call(self, message, reducer, inputs), gradient, wanted)
