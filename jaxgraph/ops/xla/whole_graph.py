"""Messages over all edges of a graph that one device holds, without a loop over its rows.

XLA makes one fused, parallel and vectorised loop of an unrolled sum, x[n_0] + x[n_1] + ... +
x[n_7], gathers included, as long as nothing else uses the gathered rows. So the messages of the
first, second, ... edge of *every* row are computed as one *lane* each, and added up. Values with a
few numbers per edge, such as the logits of attention, are computed once for all lanes and stored;
features of edges never are. There are about as many lanes as most rows have edges. Rows of higher
degree continue in a second level, and in a third. Edges beyond the last level are cut into runs,
which are reduced in the same way; runs are joined like edges. Each level is added where the level
before reads it, so that less is stored than for runs of all edges. The host lays out the lanes
(`jaxgraph.ops.xla.lanes`): a look-up in every call would take about as long as a sum of 16
features.

Without lanes an epoch at ogbn-arxiv's size takes 1.2 times as long for GCN, 1.1 for GraphSAGE and
1.8 for GAT, whose temporary memory is then 0.8 times as large (two cores of Zen 3, jax 0.12).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.core.edges import EdgeChunk, EdgeGroups, match_variation, visit_slots
from jaxgraph.ops.core.message_functions import GatMessage, sum_message, weighted_message
from jaxgraph.ops.core.messages import (
    Inputs,
    MessageFn,
    Wanted,
    at_edges,
    evaluate_message,
    floating_leaves,
    message_shapes,
    per_edge,
    pull_lane,
)
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.reducers import Extremum, Reducer, Softmax, Sum
from jaxgraph.ops.core.rows import take_rows, with_rows_from
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.core.stored import stored_branch
from jaxgraph.ops.xla.lanes import Join, Lanes, LaneTable, RunTable

__all__ = ["WholeGraph", "fits_whole"]

Pytree = Any

_SMALL = 1 << 26
"""Bytes up to which the states of all runs may take more than twice the memory of the rows'."""


def fits_whole(edges: EdgeGroups, message: MessageFn, reducer: Reducer, inputs: Inputs) -> bool:
    """True where messages can be reduced here without an array of the size [edges, features].

    XLA stores, for all edges at once, matrix products, sums over features, and values that are
    costly to recompute. So only messages that are features, or features times a number, fit. The
    states of runs are stored too. Where few rows have many edges and wide features, these states
    take many times the memory of the rows, and a chunk of edges at a time is faster as well.

    Args:
      edges: the edges.
      message, reducer, inputs: as for `reduce_messages`.

    Returns:
      False for other messages; for maxima and minima, which compare numbers that XLA could round in
      two ways; where the edges have no lanes (they belong to several parts, or were placed for
      other kernels); and where the states of runs are large compared with those of the rows.
    """
    passes_on = message in (sum_message, weighted_message) or isinstance(message, GatMessage)
    if edges.by_receiver.lanes is None or not passes_on or isinstance(reducer, Extremum):
        return False
    shapes = jax.tree.leaves(message_shapes(message, inputs, 1))
    of_a_row = sum(leaf.size * leaf.dtype.itemsize for leaf in shapes)
    lanes = [each.lanes for each in (edges.by_receiver, edges.by_sender) if each.lanes is not None]
    runs = max(len(each.runs.rows) for each in lanes)
    rows = max(len(each.rows.rows) for each in lanes)
    return runs * of_a_row <= max(_SMALL, 2 * rows * of_a_row)


def _is_attention(message: MessageFn, reducer: Reducer) -> TypeGuard[GatMessage]:
    """True where the messages are those of GAT and a softmax reduces them."""
    return isinstance(message, GatMessage) and isinstance(reducer, Softmax)


@dataclasses.dataclass(frozen=True)
class _Lanes:
    """The edges of some rows: the first of every row, then the second of every row, ...

    Attributes:
      side: "receiver" or "sender", the end at which the rows are.
      table: the rows.
      masks: bool [rows] for each lane, True for rows with an edge in it.
      edges: [lanes * rows], all of them.
    """

    side: str
    table: LaneTable
    masks: list[jax.Array]
    edges: EdgeChunk

    @property
    def count(self) -> int:
        """The number of lanes."""
        return len(self.masks)

    def each(self, tree: Pytree) -> list[Pytree]:
        """Arrays [lanes * rows, ...] as one tree [rows, ...] for each lane."""
        size = len(self.table.rows)
        return [
            jax.tree.map(lambda leaf, at=lane * size: leaf[at : at + size], tree)
            for lane in range(self.count)
        ]

    def inputs(self, inputs: Inputs) -> Inputs:
        """The inputs of all edges, [lanes * rows, ...]."""
        sender, receiver = (self.at_end(s, getattr(inputs, s)) for s in ("sender", "receiver"))
        return Inputs(inputs.params, sender, receiver, take_rows(inputs.edge, self.edges.edge_ids))

    def at_end(self, side: str, tree: Pytree) -> Pytree:
        """Rows of one end's arrays for all edges, [lanes * rows, ...]."""
        if side != self.side:
            return take_rows(tree, getattr(self.edges, f"{side}s"))
        lanes, size = self.count, len(self.table.rows)

        def spread(leaf: jax.Array) -> jax.Array:
            shape = (lanes, size, *leaf.shape[1:])
            return jnp.broadcast_to(leaf[None], shape).reshape(lanes * size, *leaf.shape[1:])

        return jax.tree.map(spread, take_rows(tree, self.table.rows))

    def lane_inputs(self, inputs: Inputs) -> list[Inputs]:
        """The inputs of the edges of each lane, [rows, ...]."""
        sender, receiver = (self.lanes_at(s, getattr(inputs, s)) for s in ("sender", "receiver"))
        ids = self.each(self.edges.edge_ids)
        edge = [take_rows(inputs.edge, each) for each in ids]
        return [Inputs(inputs.params, *each) for each in zip(sender, receiver, edge, strict=True)]

    def lanes_at(self, side: str, tree: Pytree) -> list[Pytree]:
        """Rows of one end's arrays for each lane, [rows, ...]."""
        if side == self.side:
            return [take_rows(tree, self.table.rows)] * self.count
        neighbors = self.table.neighbors
        return [take_rows(tree, neighbors[:, lane]) for lane in range(self.count)]


def _lanes(edges: EdgeGroups, side: str, table: LaneTable) -> _Lanes:
    by_lane = table.neighbors.T
    shape = by_lane.shape
    places = jnp.arange(shape[0], dtype=jnp.int32)[:, None]
    lengths = table.lengths[None]
    slots = table.starts[None] + jnp.minimum(places, jnp.maximum(lengths - 1, 0))
    slots, neighbors = slots.reshape(-1), by_lane.reshape(-1)
    own = jnp.broadcast_to(table.rows, shape).reshape(-1)
    senders, receivers = (own, neighbors) if side == "sender" else (neighbors, own)
    known = edges.orientation(side).edge_ids
    ids = slots
    if known is not None:
        # Stored: fused into its readers, this look-up would run for each of their elements.
        ids = stored_branch(slots[0], lambda: take_rows(known, slots), lambda: slots)
    masks = [table.lengths > lane for lane in range(shape[0])]
    mask = (places < lengths).reshape(-1)
    return _Lanes(side, table, masks, EdgeChunk(senders, receivers, ids, mask))


@dataclasses.dataclass(frozen=True)
class _Reduction:
    """The computation of the states of all rows at one end.

    Attributes:
      edges: the edges.
      side: "receiver" or "sender".
      reducer: how states are combined.
      visit: computes the states of rows from their lanes.
      empty: makes states of no edges.
      at_once: whether one loop, which XLA compiles once, visits all runs, or one loop per level, so
        that less is stored.
    """

    edges: EdgeGroups
    side: str
    reducer: Reducer
    visit: Callable[[_Lanes], Pytree]
    empty: Callable[[int], Pytree]
    at_once: bool

    @property
    def lanes(self) -> Lanes:
        """The edges at that end."""
        lanes = self.edges.orientation(self.side).lanes
        assert lanes is not None  # see fits_whole
        return lanes

    def states(self) -> Pytree:
        """The states, [rows, ...]."""
        # Lanes without an edge read the first slot, which is padding where there is no edge at all.
        # A branch also materialises its result: if XLA fused a sum into two users, it would store
        # everything that is gathered for it.
        orientation = self.edges.orientation(self.side)
        has_edges = orientation.compressed_ptr[1] > 0
        rows = len(orientation.position)
        return lax.cond(has_edges, self._of_all_levels, partial(self.empty, rows))

    def _of_all_levels(self) -> Pytree:
        """The states, from those of the last level to those of the first."""
        lanes, runs = self.lanes, len(self.lanes.runs.rows)
        if not runs:
            return self._of_table(lanes.rows)
        known = self._stored(runs, partial(self._of_table, lanes.runs)) if self.at_once else None
        levels, joined = lanes.levels()
        further = self._joined(known, joined) if lanes.joins else None
        for level, where in zip(reversed(levels), reversed(lanes.further[1:]), strict=True):
            make = partial(self._of_level, known, level, where, further)
            further = self._stored(len(where), make)
        return self._merged(self._of_table(lanes.rows), lanes.further[0], further)

    def _of_table(self, table: LaneTable) -> Pytree:
        return self.visit(_lanes(self.edges, self.side, table))

    def _of_runs(self, known: Pytree | None, some: slice) -> Pytree:
        """The states of some runs; `known`: the states of all, if computed."""
        if known is not None:
            return _part(known, some)
        return self._of_table(_part(self.lanes.runs, some))

    def _of_level(
        self, known: Pytree | None, level: slice, where: jax.Array, further: Pytree | None
    ) -> Pytree:
        state = self._of_runs(known, level)
        return state if further is None else self._merged(state, where, further)

    def _joined(self, known: Pytree | None, joined: slice) -> Pytree:
        """The states of the rows that continue after the last level."""
        if known is not None:
            # Gathered from the states of all runs, without a slice.
            return _join_runs(self.lanes.joins, self.reducer, known, joined.start, self.empty)
        make = partial(self._of_runs, known, joined)
        states = self._stored(joined.stop - joined.start, make)
        return _join_runs(self.lanes.joins, self.reducer, states, 0, self.empty)

    def _stored(self, rows: int, make: Callable[[], Pytree]) -> Pytree:
        return stored_branch(self.lanes.runs.lengths[0], make, partial(self.empty, rows))

    def _merged(self, state: Pytree, where: jax.Array, further: Pytree) -> Pytree:
        found = take_rows(further, jnp.maximum(where, 0))
        return self.reducer.merge(state, _where(where >= 0, found, self.empty(1)))


def _part(tree: Pytree, rows: slice) -> Pytree:
    """Some rows of every array of a pytree."""
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def _where(mask: jax.Array, some: Pytree, others: Pytree) -> Pytree:
    def pick(one: jax.Array, other: jax.Array) -> jax.Array:
        return jnp.where(mask.reshape(-1, *(1,) * (one.ndim - 1)), one, other)

    return jax.tree.map(pick, some, others)


def _join_runs(
    joins: tuple[Join, ...],
    reducer: Reducer,
    states: Pytree,
    first: int,
    empty: Callable[[int], Pytree],
) -> Pytree:
    """The states of the rows to which runs are joined, from those of the runs from `first` on."""
    of_runs = [(states, first)]
    for join in joins[:-1]:
        of_runs.append((_stored_join(join.runs, reducer, *of_runs[-1], empty), 0))
    further = None
    for join, below in zip(reversed(joins), reversed(of_runs), strict=True):
        further = _stored_join(join.rows, reducer, *below, empty, further)
    return further


def _stored_join(
    table: RunTable,
    reducer: Reducer,
    states: Pytree,
    first: int,
    empty: Callable[[int], Pytree],
    further: Pytree = None,
) -> Pytree:
    """The states of rows from those of their runs; the first rows add their `further` states."""
    rows, of_rows = len(table.lengths), table.runs + first

    def joined() -> Pytree:
        masks = [table.lengths > lane for lane in range(len(of_rows))]
        each = [
            _where(mask, take_rows(states, runs), empty(1))
            for mask, runs in zip(masks, of_rows, strict=True)
        ]
        of_all = _where(jnp.concatenate(masks), take_rows(states, of_rows.reshape(-1)), empty(1))
        state = reducer.fold_lanes(of_all, each)
        if further is None:
            return state
        known, place = len(jax.tree.leaves(further)[0]), jnp.arange(rows)
        found = take_rows(further, jnp.minimum(place, known - 1))
        return reducer.merge(state, _where(place < known, found, empty(1)))

    return stored_branch(table.lengths[0], joined, lambda: empty(rows))


def reduce_whole(edges: EdgeGroups, message: MessageFn, reducer: Reducer, inputs: Inputs) -> Pytree:
    """Reduces the messages of all edges at their receivers.

    Args:
      edges: the edges, all of group 0.
      message, reducer, inputs: as for `reduce_messages`, such that `fits_whole`.

    Returns:
      The reducer's state, [receiver rows, ...].
    """
    shapes = message_shapes(message, inputs, 1)

    def empty(rows: int) -> Pytree:
        return match_variation(reducer.empty(shapes, rows), (edges, inputs, reducer))

    def visit(lanes: _Lanes) -> Pytree:
        keep = per_edge(edges, 0, reducer, lanes.edges)
        seen_by_all = lanes.inputs(inputs)
        flat = reducer.lift(evaluate_message(message, seen_by_all), lanes.edges.mask, keep)
        kept = [None] * lanes.count if keep is None else lanes.each(keep)
        each = [
            reducer.lift(evaluate_message(message, seen), valid, keep)
            for seen, valid, keep in zip(lanes.lane_inputs(inputs), lanes.masks, kept, strict=True)
        ]
        return reducer.fold_lanes(flat, each)

    at_once = isinstance(message, GatMessage)
    return _Reduction(edges, "receiver", reducer, visit, empty, at_once).states()


def weigh_edges(
    edges: EdgeGroups, message: MessageFn, reducer: Reducer, inputs: Inputs, adjoint: Pytree
) -> Pytree:
    """Evaluates `reducer.weigh` for every edge, a chunk of edges at a time.

    For GAT's attention, the gradient of the logits is that before their activation. Both ends use
    it, so that neither reads the logits again.

    Args:
      edges: the edges, all of group 0.
      message, reducer, inputs, adjoint: as for `pull_messages`.

    Returns:
      Pytree of arrays [slots, ...].
    """

    def weigh(chunk: EdgeChunk) -> Pytree:
        seen, keep = at_edges(inputs, chunk), per_edge(edges, 0, reducer, chunk)
        messages = evaluate_message(message, seen)
        weights = reducer.weigh(messages, chunk.at_end("receiver", adjoint), keep)
        if not _is_attention(message, reducer):
            return weights
        powers, of_logits = weights
        logits, _ = evaluate_message(message.without_activation, seen)
        return powers, message.pulled_activation(logits, of_logits)

    def visit(chunk: EdgeChunk, first: jax.Array, written: Pytree) -> Pytree:
        return jax.tree.map(
            lambda leaf, new: with_rows_from(leaf, first, new), written, weigh(chunk)
        )

    some = jnp.zeros(edges.chunk, jnp.int32)
    shapes = jax.eval_shape(lambda: weigh(EdgeChunk(some, some, some, some == 0)))
    slots = len(edges.by_receiver.neighbors)
    empty = jax.tree.map(lambda leaf: jnp.zeros((slots, *leaf.shape[1:]), leaf.dtype), shapes)
    likes = (edges, inputs, adjoint, reducer)
    return visit_slots(edges, 0, visit, match_variation(empty, likes))


def pull_whole(
    edges: EdgeGroups,
    side: str,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    adjoint: Pytree,
    weights: Pytree,
) -> list[jax.Array]:
    """Pulls the gradient of the outputs back to all rows at one end of the edges.

    Args:
      edges: the edges, all of group 0.
      side: "sender" or "receiver", whose gradient is wanted.
      message, reducer, inputs, adjoint: as for `pull_messages`, such that `fits_whole`.
      weights: the result of `weigh_edges`.

    Returns:
      Gradients of the floating leaves at that end, [rows, ...].
    """
    wanted = floating_leaves(getattr(inputs, side))
    weighed = message.without_activation if _is_attention(message, reducer) else message

    def empty(rows: int) -> list[jax.Array]:
        zeros = Sum().empty(wanted, rows)
        return match_variation(zeros, (edges, inputs, adjoint, reducer))

    def visit(lanes: _Lanes) -> list[jax.Array]:
        keep = per_edge(edges, 0, reducer, lanes.edges)
        kept = [None] * lanes.count if keep is None else lanes.each(keep)
        parts = zip(
            lanes.lane_inputs(inputs),
            lanes.lanes_at("receiver", adjoint),
            kept,
            lanes.masks,
            [take_rows(weights, ids) for ids in lanes.each(lanes.edges.edge_ids)],
            strict=True,
        )
        each = [pull_lane(weighed, reducer, side, *part) for part in parts]
        return Sum().merge(*([to_accumulation(leaf) for leaf in lane] for lane in each))

    at_once = isinstance(message, GatMessage)
    return _Reduction(edges, side, Sum(), visit, empty, at_once).states()


@dataclasses.dataclass(frozen=True)
class WholeGraph(Stages):
    """The stages of all rows at once, where the edges are all edges of a graph.

    Values per edge, and further groups, are still computed by chunks.
    """

    def _fold_all(self, edges: EdgeGroups, inputs: Inputs, empty: Pytree) -> Pytree:
        return reduce_whole(edges, self.message, self.reducer, inputs)

    def _fold_more(self, edges: EdgeGroups, inputs: Inputs, state: Pytree) -> Pytree:
        whole = reduce_whole(edges, self.message, self.reducer, inputs)
        return self.reducer.merge(state, whole)

    def _pull_all(
        self,
        edges: EdgeGroups,
        inputs: Inputs,
        adjoint: Pytree,
        wanted: Wanted,
        gradients: Inputs,
        after: jax.Array,
    ) -> Inputs:
        given = (self.message, self.reducer, inputs, adjoint)
        weights = weigh_edges(edges, *given)
        for side in ("sender", "receiver"):
            if getattr(wanted, side):
                rows = pull_whole(edges, side, *given, weights)
                totals = [t + part for t, part in zip(getattr(gradients, side), rows, strict=True)]
                wanted = dataclasses.replace(wanted, **{side: False})
                gradients = dataclasses.replace(gradients, **{side: totals})
        return super()._pull_all(edges, inputs, adjoint, wanted, gradients, after)
