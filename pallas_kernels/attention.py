"""Attention over the neighbors of every row, with a running maximum.

Expected: an edge reads 4 bytes of index, the row of values and the sender's input of the logits: 4
bytes per head for GAT, nothing more for GATv2, a row of keys for dot products. A row writes its
output, once, and 8 bytes per head. With 2 such tables in registers, 4 edges are read at a time: 4
reads of 16 bytes (8 for dot products), and 41 to 111 kB in flight per multiprocessor.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.attention_dropout import Dropout, EdgeIds, keep_masks, kept, kept_scale
from pallas_kernels.attention_logits import GATV2, Logits, read_row
from pallas_kernels.lanes import Lanes
from pallas_kernels.pytrees import pytree
from pallas_kernels.reduction import (
    Part,
    Reduction,
    Result,
    State,
    empty_state,
    reduce_rows,
)
from pallas_kernels.rows import Item, Rows, fold_batches
from pallas_kernels.teams import Launch, Team, team_for

__all__ = ["Attention", "attention_output", "attention_state", "attention_team"]

PARTS = (Part(-math.inf, per_head=True), Part(0.0, per_head=True), Part(0.0))
"""The maximum of the logits, the sum of powers relative to it, and the weighted sum of values."""


@pytree
class Attention:
    """The arrays and settings from which attention is computed.

    Attributes:
      sender, receiver: the inputs of the logits from both ends, float32 [rows, heads] for GAT, else
        [rows, heads * width] of float32, bfloat16 or float16.
      vector: float32 [1, heads * width] for GATv2, else None.
      values: [senders, heads * width]; None where they are `sender`, as for GATv2.
      dropout: dropout of coefficients; None: no dropout.
      heads: number of heads.
      logits: the equation of the logits.
    """

    sender: jax.Array
    receiver: jax.Array
    vector: jax.Array | None
    values: jax.Array | None
    dropout: Dropout | None
    heads: int = dataclasses.field(metadata={"static": True})
    logits: Logits = dataclasses.field(metadata={"static": True})

    def operands(self) -> dict[str, jax.Array]:
        """The arrays, by name."""
        found = {"sender": self.sender, "receiver": self.receiver}
        optional = {"vector": self.vector, "values": self.values}
        found |= {name: array for name, array in optional.items() if array is not None}
        return found if self.dropout is None else found | self.dropout.operands()


def attention_team(attention: Attention, tables: int, launch: Launch) -> Team:
    """The team for attention.

    Args:
      attention: the inputs.
      tables: about how many rows a lane holds in registers for each edge in flight.
      launch: the launch configuration.

    Returns:
      The team.
    """
    values = attention.sender if attention.values is None else attention.values
    width = values.shape[1] // attention.heads
    return team_for(
        width, values.dtype.itemsize, heads=attention.heads, tables=tables, words=launch.words
    )


def attention_state(
    attention: Attention,
    rows: Rows,
    neighbors: jax.Array,
    before: tuple[Result, Result, Result],
    *,
    fresh: bool = False,
    launch: Launch | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The maximum m, normaliser z and weighted sum s of every receiver after its edges.

    m_i = max_e logit_e,  z_i = sum_e exp(logit_e - m_i),  s_i = sum_e d_e exp(logit_e - m_i) v_e

    The output of attention is s_i / z_i.

    Args:
      attention: the inputs.
      rows: the receivers and their edges.
      neighbors: int32 [edges], the sender of each edge.
      before: the state to continue from, float32 [receivers, heads] twice and [receivers, heads *
        width]; the state of no edges is -inf, 0, 0. It is overwritten at the rows in `rows`.
      fresh: whether `before` is the state of no edges there, and need not be read; it may then be
        shapes and types of uninitialised arrays.
      launch: the launch configuration; None: the one for the chip of this process.

    Returns:
      m, z and s.

    References:
      Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    launch = launch or Launch.here()
    reduction, team, arrays = _reduction(attention, neighbors, launch)
    found = reduce_rows(reduction, [team], rows, arrays, list(before), launch, fresh=fresh)
    return found[0], found[1], found[2]


def attention_output(
    attention: Attention,
    rows: Rows,
    neighbors: jax.Array,
    results: tuple[Result, Result, Result],
    before: tuple[jax.Array, jax.Array, jax.Array] | None = None,
    *,
    launch: Launch | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The output of attention, y_i = s_i / z_i of `attention_state`, divided in the same kernel.

    Args:
      attention, rows, neighbors, launch: as for `attention_state`.
      results: the arrays for m and z, float32 [receivers, heads], and y [receivers, heads * width],
        of any type of values, as in `reduce_rows`.
      before: the state to continue from, as for `attention_state`; None: the state of no edges.

    Returns:
      m, z and y; without edges 0, 1 and 0.
    """
    launch = launch or Launch.here()
    reduction, team, arrays = _reduction(attention, neighbors, launch)
    lanes = Lanes(launch.interpret is not None)

    def divide(state: State) -> State:
        peak, total = (lanes.split(part[0])[0] for part in state[:2])
        peak = jnp.where(peak == -jnp.inf, 0.0, peak)
        total = jnp.where(total > 0, total, 1.0)
        y = [each / lanes.spread(total, each.shape[0]) for each in state[2]]
        return [lanes.spread(peak, 1)], [lanes.spread(total, 1)], y

    found = reduce_rows(
        dataclasses.replace(reduction, finish=divide),
        [team],
        rows,
        arrays,
        results,
        launch,
        before=before or (),
        fresh=before is None,
    )
    return found[0], found[1], found[2]


def _reduction(
    attention: Attention, neighbors: jax.Array, launch: Launch
) -> tuple[Reduction, Team, list[jax.Array]]:
    """The reduction of a row's edges to attention's state, its team and the arrays it reads."""
    arrays = {"neighbors": neighbors, **attention.operands()}

    def fold(lanes: Lanes, team: Team, item: Item, references: Sequence[Any]) -> State:
        tables = dict(zip(arrays, references, strict=True))
        return _fold(attention, lanes, team, item, tables)

    merge = partial(_merge, Lanes(launch.interpret is not None))
    reduction = Reduction(f"{attention.logits.kind}_attention", PARTS, fold, merge)
    return reduction, attention_team(attention, 2, launch), list(arrays.values())


def _fold(
    attention: Attention, lanes: Lanes, team: Team, item: Item, tables: Mapping[str, Any]
) -> State:
    logits, dropout = attention.logits, attention.dropout
    of_row = partial(read_row, lanes, team, item)
    own = logits.read(lanes, team, item, tables["receiver"], item.row, item.has_edges)
    vector = of_row(tables["vector"], item.row * 0, item.has_edges) if "vector" in tables else []
    ids = EdgeIds.of_row(lanes, team, dropout, tables, "receiver", item)

    def fetch(slot: jax.Array, mask: jax.Array) -> jax.Array:
        return lanes.read(tables["neighbors"], slot, mask=mask)[0]

    def load(neighbor: jax.Array, slot: jax.Array, mask: jax.Array) -> Any:
        far = logits.read(lanes, team, item, tables["sender"], neighbor, mask)
        values = far if logits.kind == GATV2 else of_row(tables["values"], neighbor, mask)
        return far, values, [] if ids is None else ids.read(neighbor, slot, mask)

    def combine(state: State, edges: Sequence[tuple]) -> State:
        numbers = []
        for _, (far, _, _), _, mask in edges:
            logit, _ = logits.of_edge(lanes, team, own, far, vector)
            numbers.append(jnp.where(mask, logit, -jnp.inf))
        top, scale, powers = _powers(lanes.split(state[0][0])[0], numbers)
        total = lanes.split(state[1][0])[0] * scale + sum(powers)
        sums = _scaled(lanes, state[2], scale)
        masks = keep_masks(ids, [read for _, (_, _, read), _, _ in edges])
        for power, keep, (_, (_, values, _), _, _) in zip(powers, masks, edges, strict=True):
            weighted = _scaled(lanes, values, power * kept_scale(ids))
            sums = [a + b for a, b in zip(sums, kept(lanes, keep, weighted), strict=True)]
        return [lanes.spread(top, 1)], [lanes.spread(total, 1)], sums

    empty = empty_state(lanes, team, PARTS)
    return fold_batches(lanes, team, item, fetch, load, combine, empty)


def _powers(
    peak: jax.Array, logits: Sequence[jax.Array]
) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
    """The new maximum, the power of the old one relative to it, and the powers of the logits."""
    top = peak
    for logit in logits:
        top = jnp.maximum(top, logit)
    # exp(-inf - -inf) would be NaN.
    shift = jnp.where(top == -jnp.inf, 0.0, top)
    return top, jnp.exp(peak - shift), [jnp.exp(logit - shift) for logit in logits]


def _scaled(lanes: Lanes, values: Sequence[jax.Array], scale: jax.Array) -> list[jax.Array]:
    return [each * lanes.spread(scale, each.shape[0]) for each in values]


def _merge(lanes: Lanes, left: State, right: State) -> State:
    peaks, totals = ([lanes.split(side[part][0])[0] for side in (left, right)] for part in (0, 1))
    top, one, (other,) = _powers(peaks[0], peaks[1:])
    total = totals[0] * one + totals[1] * other
    scaled = (_scaled(lanes, left[2], one), _scaled(lanes, right[2], other))
    sums = [a + b for a, b in zip(*scaled, strict=True)]
    return [lanes.spread(top, 1)], [lanes.spread(total, 1)], sums
