"""Messages over all edges of a graph that one device holds, without a loop over its rows.

XLA makes one fused, parallel and vectorised loop of a sum that is written out,
x[n_0] + x[n_1] + ... + x[n_15], gathers included, as long as nothing else uses what is gathered.
So the messages of the first, second, ... edge of *every* row are computed as one *lane* each, and
added up. What has a few numbers per edge, such as the logits of attention, is computed once for all
lanes and stored; features of edges never are. Rows of high degree are cut into runs of as many
edges as there are lanes (see `jaxgraph.ops.edges`); runs are reduced first, and merged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.edges import EdgeChunk, EdgeGroups, match_variation, take_rows, visit_slots
from jaxgraph.ops.message_functions import GatMessage, sum_message, weighted_message
from jaxgraph.ops.messages import (
    Inputs,
    MessageFn,
    at_edges,
    evaluate_message,
    floating_leaves,
    message_shapes,
    per_edge,
    pull_lane,
)
from jaxgraph.ops.precision import to_accumulation
from jaxgraph.ops.reducers import Reducer, Sum

__all__ = ["fits_whole", "pull_whole", "reduce_whole", "weigh_edges"]

Pytree = Any

_ROWS_MERGED_AT_ONCE, _RUNS_MERGED_AT_ONCE = 2048, 4
"""Heavy rows whose runs are merged together, and runs of each in one step: most have few."""


def fits_whole(edges: EdgeGroups, message: MessageFn, reducer: Reducer) -> bool:
    """Whether messages can be reduced here without an array of the size [edges, features].

    XLA stores, for all edges at once, matrix products, sums over features, and what is costly to
    compute twice; so only messages that pass features on, or multiply them by a number, can be.

    Args:
      edges: the edges.
      message, reducer: as for `reduce_messages`.

    Returns:
      False for other messages, for reducers that compare them, and where the graph has several
      parts.
    """
    passes_on = message in (sum_message, weighted_message) or isinstance(message, GatMessage)
    return edges.longest > 0 and passes_on and not reducer.compares


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Rows or runs that are reduced together.

    Attributes:
      rows: int32 [rows], what each is called at its end of the edges.
      starts, lengths: int32 [rows], the slot of the first edge, and the edges, at most `longest`.
    """

    rows: jax.Array
    starts: jax.Array
    lengths: jax.Array


@dataclasses.dataclass(frozen=True)
class _Lanes:
    """The edges of some rows: the first of every row, then the second of every row, ...

    Attributes:
      side: "receiver" or "sender", the end at which the rows are.
      rows: int32 [rows].
      edges: [lanes * rows], all of them.
    """

    side: str
    rows: jax.Array
    edges: EdgeChunk

    @property
    def count(self) -> int:
        """How many lanes."""
        return len(self.edges.mask) // len(self.rows)

    def each(self, tree: Pytree) -> list[Pytree]:
        """Arrays [lanes * rows, ...] as one tree [rows, ...] for each lane."""
        size = len(self.rows)
        return [
            jax.tree.map(lambda leaf, at=lane * size: leaf[at : at + size], tree)
            for lane in range(self.count)
        ]

    def inputs(self, inputs: Inputs) -> Inputs:
        """What all edges see, [lanes * rows, ...]."""
        sender, receiver = (self.at_end(s, getattr(inputs, s)) for s in ("sender", "receiver"))
        return Inputs(inputs.params, sender, receiver, take_rows(inputs.edge, self.edges.edge_ids))

    def at_end(self, side: str, tree: Pytree) -> Pytree:
        """Rows of one end's arrays for all edges, [lanes * rows, ...]."""
        if side != self.side:
            return take_rows(tree, getattr(self.edges, f"{side}s"))
        lanes, size = self.count, len(self.rows)

        def spread(leaf: jax.Array) -> jax.Array:
            shape = (lanes, size, *leaf.shape[1:])
            return jnp.broadcast_to(leaf[None], shape).reshape(lanes * size, *leaf.shape[1:])

        return jax.tree.map(spread, take_rows(tree, self.rows))

    def lane_inputs(self, inputs: Inputs) -> list[Inputs]:
        """What the edges of each lane see, [rows, ...]."""
        sender, receiver = (self.lanes_at(s, getattr(inputs, s)) for s in ("sender", "receiver"))
        ids = self.each(self.edges.edge_ids)
        edge = [take_rows(inputs.edge, each) for each in ids]
        return [Inputs(inputs.params, *each) for each in zip(sender, receiver, edge, strict=True)]

    def lanes_at(self, side: str, tree: Pytree) -> list[Pytree]:
        """Rows of one end's arrays for each lane, [rows, ...]."""
        if side == self.side:
            return [take_rows(tree, self.rows)] * self.count
        return [take_rows(tree, rows) for rows in self.each(getattr(self.edges, f"{side}s"))]


def _lanes(edges: EdgeGroups, side: str, some: _Rows) -> _Lanes:
    orientation = edges.orientation(side)
    places = jnp.arange(edges.longest, dtype=jnp.int32)[:, None]
    mask = places < some.lengths
    slots = some.starts + jnp.minimum(places, jnp.maximum(some.lengths - 1, 0))

    def known() -> tuple[jax.Array, jax.Array]:
        ids = orientation.edge_ids
        ids = slots if ids is None else take_rows(ids, slots)
        return take_rows(orientation.neighbors, slots), ids

    # What a branch returns is an array (see `visit_rows`).
    neighbors, ids = lax.cond(some.starts[0] >= 0, known, lambda: (slots, slots))
    own = jnp.broadcast_to(some.rows, slots.shape)
    senders, receivers = (own, neighbors) if side == "sender" else (neighbors, own)
    senders, receivers, ids, mask = (each.reshape(-1) for each in (senders, receivers, ids, mask))
    return _Lanes(side, some.rows, EdgeChunk(senders, receivers, ids, mask))


def _whole_rows(edges: EdgeGroups, side: str) -> tuple[_Rows, jax.Array]:
    """All rows of a table, heavy ones without edges, and the number of each heavy row, or -1."""
    orientation = edges.orientation(side)
    position, heavy = orientation.position, orientation.heavy_rows[0]
    compact = jnp.maximum(position, 0)
    light = position >= heavy
    number = jnp.where(light, -1, position)
    rows = jnp.arange(len(position), dtype=jnp.int32)
    # Lanes without an edge see a row that counts, not padding.
    rows = jnp.where(light, rows, orientation.rows[0])
    starts, lengths = (
        take_rows(each, compact) for each in (orientation.starts, orientation.degrees)
    )
    return _Rows(rows, jnp.where(light, starts, 0), jnp.where(light, lengths, 0)), number


def _runs(edges: EdgeGroups, side: str, runs: int) -> _Rows:
    """The runs of the heavy rows."""
    orientation = edges.orientation(side)
    first, stop = orientation.compressed_ptr[1], orientation.run_ptr[1]
    places = first + jnp.arange(runs, dtype=jnp.int32)
    inside = places < stop
    places = jnp.where(inside, places, 0)
    rows, starts, lengths = (
        take_rows(each, places)
        for each in (orientation.rows, orientation.starts, orientation.degrees)
    )
    return _Rows(rows, jnp.where(inside, starts, 0), jnp.where(inside, lengths, 0))


def _reduce(
    edges: EdgeGroups,
    side: str,
    reducer: Reducer,
    visit: Callable[[_Lanes], Pytree],
    empty: Callable[[int], Pytree],
) -> Pytree:
    """The states of all rows at one end.

    Args:
      edges: the edges.
      side: "receiver" or "sender".
      reducer: how states meet.
      visit: the states of the rows whose lanes it is given.
      empty: that many states of no edges.

    Returns:
      The states, [rows, ...].
    """

    def states() -> Pytree:
        some, heavy = _whole_rows(edges, side)
        state = visit(_lanes(edges, side, some))
        runs = edges.receiver_runs if side == "receiver" else edges.sender_runs
        if not runs:
            return state
        of_runs = visit(_lanes(edges, side, _runs(edges, side, runs)))
        merged = _merge_runs(edges, side, reducer, of_runs, empty)
        found = take_rows(merged, jnp.maximum(heavy, 0))
        return reducer.merge(state, _where(heavy >= 0, found, empty(1)))

    # Lanes without an edge read the first slot, which is padding where there is no edge at all.
    # Moreover, the result of a branch is an array: were a sum with two users fused into both, XLA
    # would store everything that is gathered for it.
    orientation = edges.orientation(side)
    has_edges = orientation.compressed_ptr[1] > 0
    return lax.cond(has_edges, states, lambda: empty(len(orientation.position)))


def _where(mask: jax.Array, some: Pytree, others: Pytree) -> Pytree:
    def pick(one: jax.Array, other: jax.Array) -> jax.Array:
        return jnp.where(mask.reshape(-1, *(1,) * (one.ndim - 1)), one, other)

    return jax.tree.map(pick, some, others)


def _merge_runs(
    edges: EdgeGroups,
    side: str,
    reducer: Reducer,
    of_runs: Pytree,
    empty: Callable[[int], Pytree],
) -> Pytree:
    """The states of the heavy rows, [heavy rows or more, ...], from those of their runs."""
    orientation, lanes = edges.orientation(side), _RUNS_MERGED_AT_ONCE
    runs = jax.tree.leaves(of_runs)[0].shape[0]
    # A heavy row has two runs at least.
    size = max(min(_ROWS_MERGED_AT_ONCE, runs // 2), 1)
    capacity = -(-(runs // 2) // size) * size
    heavy, before = orientation.heavy_rows[0], orientation.compressed_ptr[1]
    nothing = empty(size)
    places = jnp.arange(lanes, dtype=jnp.int32)[:, None]

    def body(loop: tuple[jax.Array, Pytree]) -> tuple[jax.Array, Pytree]:
        first, table = loop
        rows = first + jnp.arange(size, dtype=jnp.int32)
        inside = rows < heavy
        rows = jnp.where(inside, rows, 0)
        counts = jnp.where(inside, take_rows(orientation.degrees, rows), 0)
        starts = jnp.where(inside, take_rows(orientation.starts, rows) - before, 0)

        def take_in(inner: tuple[jax.Array, Pytree]) -> tuple[jax.Array, Pytree]:
            done, state = inner
            mask = done + places < counts
            which = jnp.where(mask, starts + done + places, 0)
            each = [
                _where(mask[lane], take_rows(of_runs, which[lane]), empty(1))
                for lane in range(lanes)
            ]
            flat = _where(mask.reshape(-1), take_rows(of_runs, which.reshape(-1)), empty(1))
            return done + lanes, reducer.merge(state, reducer.take_lanes(flat, each))

        # The first row of all has the most runs.
        most = counts[0]
        start = match_variation(jnp.int32(0), (most, table))
        state = lax.while_loop(lambda inner: inner[0] < most, take_in, (start, nothing))[1]
        table = jax.tree.map(
            lambda leaf, new: lax.dynamic_update_slice_in_dim(leaf, new, first, 0), table, state
        )
        return first + size, table

    table = empty(capacity)
    start = match_variation(jnp.int32(0), (heavy, table))
    return lax.while_loop(lambda loop: loop[0] < heavy, body, (start, table))[1]


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
        mask = lanes.edges.mask
        flat = reducer.lift(evaluate_message(message, lanes.inputs(inputs)), mask, keep)
        kept = [None] * lanes.count if keep is None else lanes.each(keep)
        each = [
            reducer.lift(evaluate_message(message, seen), valid, keep)
            for seen, valid, keep in zip(
                lanes.lane_inputs(inputs), lanes.each(mask), kept, strict=True
            )
        ]
        return reducer.take_lanes(flat, each)

    return _reduce(edges, "receiver", reducer, visit, empty)


def weigh_edges(
    edges: EdgeGroups, message: MessageFn, reducer: Reducer, inputs: Inputs, adjoint: Pytree
) -> Pytree:
    """What `reducer.weigh` says of every edge, a chunk of edges at a time.

    Args:
      edges: the edges, all of group 0.
      message, reducer, inputs, adjoint: as for `pull_messages`.

    Returns:
      Pytree of arrays [slots, ...].
    """

    def weigh(chunk: EdgeChunk) -> Pytree:
        messages = evaluate_message(message, at_edges(inputs, chunk))
        keep = per_edge(edges, 0, reducer, chunk)
        return reducer.weigh(messages, chunk.at_end("receiver", adjoint), keep)

    def visit(chunk: EdgeChunk, first: jax.Array, written: Pytree) -> Pytree:
        return jax.tree.map(
            lambda leaf, new: lax.dynamic_update_slice_in_dim(leaf, new, first, 0),
            written,
            weigh(chunk),
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
      weights: what `weigh_edges` returned.

    Returns:
      Gradients of the floating leaves at that end, [rows, ...].
    """
    wanted = floating_leaves(getattr(inputs, side))

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
            lanes.each(lanes.edges.mask),
            [take_rows(weights, ids) for ids in lanes.each(lanes.edges.edge_ids)],
            strict=True,
        )
        each = [pull_lane(message, reducer, side, *part) for part in parts]
        return Sum().merge(*([to_accumulation(leaf) for leaf in lane] for lane in each))

    return _reduce(edges, side, Sum(), visit, empty)
