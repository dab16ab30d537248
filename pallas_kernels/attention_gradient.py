"""The gradients of attention: those of senders summed by sender, of receivers by receiver.

Coefficients are recomputed from the maximum and the normaliser of each receiver.

Expected: by sender an edge reads 4 bytes of index, 16 per head (`Adjoint.numbers`), its receiver's
row of the gradient and, for GATv2 and dot products, its receiver's input of the logits; it writes 4
per head. By receiver an edge reads these 4 (GAT), these and a row of keys (dot products), or a row
of the sender (GATv2). In flight: 33 to 131 kB per multiprocessor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.attention import Attention, attention_team
from pallas_kernels.attention_dropout import EdgeIds, keep_masks, kept, kept_scale
from pallas_kernels.attention_logits import DOT, GAT, GATV2, head_product, read_row
from pallas_kernels.lanes import LANES, Lanes
from pallas_kernels.neighbor_sum import SUM, Neighbors, add_states, fold_neighbors
from pallas_kernels.pytrees import pytree
from pallas_kernels.reduction import (
    Part,
    Reduction,
    Result,
    Started,
    State,
    empty_state,
    join_rows,
    start_rows,
)
from pallas_kernels.rows import Item, Rows, fold_batches
from pallas_kernels.teams import Launch, Team, team_for

__all__ = ["Adjoint", "Edges", "Gradients", "attention_gradients", "make_adjoint"]

NUMBERS = 4
"""Numbers per head of a receiver, which are read together."""

SENDER_PARTS = {
    GAT: (Part(0.0), Part(0.0, per_head=True)),
    GATV2: (Part(0.0),),
    DOT: (Part(0.0), Part(0.0)),
}
"""The senders' sums: the gradients of values, and of the senders' input of the logits."""


@pytree
class Adjoint:
    """The arrays of the receivers from which the gradients are computed.

    Attributes:
      gradient: g [receivers, heads * width], or [receivers, width] where all heads share it;
        float32, bfloat16 or float16.
      numbers: float32 [receivers, heads * 4], for each head m, 1 / z, <g, y> / z, and the
        receiver's input of GAT's logit.
    """

    gradient: jax.Array
    numbers: jax.Array


def make_adjoint(
    attention: Attention,
    gradient: jax.Array,
    peak: jax.Array,
    inverse: jax.Array,
    inner: jax.Array,
) -> Adjoint:
    """Packs the arrays of the receivers from which the gradients are computed.

    Args:
      attention: the inputs of the forward.
      gradient: g [receivers, heads * width], or [receivers, width], of the output y.
      peak, inverse, inner: m, 1 / z and <g, y>, float32 [receivers, heads].

    Returns:
      The adjoint; numbers that are read together are adjacent.
    """
    logits = attention.receiver if attention.logits.kind == GAT else jnp.zeros_like(peak)
    numbers = jnp.stack([peak, inverse, inner * inverse, logits], -1)
    return Adjoint(gradient, numbers.reshape(peak.shape[0], -1).astype(jnp.float32))


@pytree
class Edges:
    """The edges of every row at one end.

    Attributes:
      rows: the rows and their edges.
      neighbors: int32 [edges], the row at the other end of each edge.
      slots: int32 [edges], the index of each edge among those by receiver; None: its own index.
    """

    rows: Rows
    neighbors: jax.Array
    slots: jax.Array | None = None


@pytree
class Gradients:
    """Gradients, in float32, of the arrays of an `Attention`, in their shapes.

    As initial values, all but `vector` may be shapes and types of uninitialised arrays.

    Attributes:
      values, sender: sums by sender; GATv2 has one for both, `sender`.
      receiver: sums by receiver.
      vector: the gradient of GATv2's vector, [heads * width].
    """

    values: Result | None
    sender: Result | None
    receiver: Result | None
    vector: jax.Array | None


def attention_gradients(
    attention: Attention,
    adjoint: Adjoint,
    by_sender: Edges,
    by_receiver: Edges,
    before: Gradients,
    *,
    fresh: bool = False,
    launch: Launch | None = None,
) -> Gradients:
    """Adds to the gradients of the arrays of attention.

    With p_e the coefficient of an edge, d_e its dropout factor, and
    c_e = p_e (d_e <g_i, v_j> - <g_i, y_i>):

      GAT    dv_j = sum_e d_e p_e g_i,  dl_j = sum_e c_e leaky',  dr_i = sum_e c_e leaky'
      GATV2  ds_j = sum_e d_e p_e g_i + a c_e leaky'(h_e),  dr_i = a sum_e c_e leaky'(h_e),
             da = sum_e c_e leaky_relu(h_e),  with h_e = s_j + r_i
      DOT    dv_j = sum_e d_e p_e g_i,  dk_j = parameter sum_e c_e q_i,
             dq_i = parameter sum_e c_e k_j

    There are two kernels, one by sender and one by receiver; where a row is too long for a cluster,
    a third joins the partial results of both. For the receivers of GAT and DOT the first kernel
    writes one number per edge and head; the second kernel of GATv2 reads the rows of the senders
    anyway, and recomputes that number.

    Args:
      attention, adjoint: those of the forward.
      by_sender, by_receiver: the edges in both orientations.
      before: the arrays to which gradients are added, in place, at rows with edges; None: not
        wanted. GAT and DOT need both or neither of `values` and `sender`, and both for `receiver`;
        `vector` needs `receiver`.
      fresh: whether these are 0 at rows with edges, and need not be read.
      launch: the launch configuration; None: the one for the chip of this process.

    Returns:
      The gradients that are wanted; the same bits on every run.
    """
    launcher = _Launcher(launch or Launch.here(), fresh)
    if attention.logits.kind == GATV2:
        return _gatv2_gradients(attention, adjoint, by_sender, by_receiver, before, launcher)
    if before.sender is None or before.values is None:
        return Gradients(None, None, None, None)
    sums = [before.values, before.sender]
    if before.receiver is None:
        by_rows = _start_senders(attention, adjoint, by_sender, sums, [], launcher)
        values, sender = join_rows([by_rows], launcher.launch)[0]
        return Gradients(values, sender, None, None)
    slots = by_receiver.neighbors.shape[0]
    per_edge = jax.ShapeDtypeStruct((slots, attention.heads), jnp.float32)
    first = _start_senders(attention, adjoint, by_sender, sums, [per_edge], launcher)
    second = _start_receivers(attention, by_receiver, first.written[0], before.receiver, launcher)
    (values, sender), (receiver,) = join_rows([first, second], launcher.launch)
    return Gradients(values, sender, receiver, None)


@dataclasses.dataclass(frozen=True)
class _Launcher:
    """The launch of the reductions; `fresh`: they start from 0, and do not read it."""

    launch: Launch
    fresh: bool

    def start(
        self,
        reduction: Reduction,
        team: Team,
        edges: Edges,
        arrays: Sequence[jax.Array],
        before: Sequence[Result],
        written: Sequence[Result] = (),
    ) -> Started:
        return start_rows(
            reduction, team, edges.rows, arrays, before, self.launch, written, fresh=self.fresh
        )


def _gatv2_gradients(
    attention: Attention,
    adjoint: Adjoint,
    by_sender: Edges,
    by_receiver: Edges,
    before: Gradients,
    launcher: _Launcher,
) -> Gradients:
    started, sender, receiver, vector = [], None, None, None
    if before.sender is not None:
        started = [_start_senders(attention, adjoint, by_sender, [before.sender], [], launcher)]
    if before.receiver is not None:
        started.append(_start_hidden(attention, adjoint, by_receiver, before.receiver, launcher))
        if before.vector is not None:
            vector = before.vector + started[-1].written[0].sum(0)
    joined = join_rows(started, launcher.launch)
    if before.sender is not None:
        sender = joined[0][0]
    if before.receiver is not None:
        receiver = joined[-1][0]
    return Gradients(None, sender, receiver, vector)


def _start_senders(
    attention: Attention,
    adjoint: Adjoint,
    edges: Edges,
    before: Sequence[Result],
    per_edge: Sequence[jax.ShapeDtypeStruct],
    launcher: _Launcher,
) -> Started:
    """Starts the senders' sums; writes a number per edge and head to `per_edge`, if given."""
    kind = attention.logits.kind
    arrays = {"receivers": edges.neighbors} | (
        {} if edges.slots is None else {"slots": edges.slots}
    )
    arrays |= {"gradient": adjoint.gradient, "numbers": adjoint.numbers} | attention.operands()
    names = [*arrays, "per_edge"][: len(arrays) + len(per_edge)]

    def fold(lanes: Lanes, team: Team, item: Item, references: Sequence[Any]) -> State:
        tables = dict(zip(names, references, strict=True))
        return _fold_sender(attention, lanes, team, item, tables)

    reduction = Reduction(f"{kind}_sender_gradients", SENDER_PARTS[kind], fold, add_states)
    team = attention_team(attention, 2 if kind == GAT else 4, launcher.launch)
    return launcher.start(reduction, team, edges, list(arrays.values()), before, per_edge)


def _start_receivers(
    attention: Attention, edges: Edges, per_edge: jax.Array, before: Result, launcher: _Launcher
) -> Started:
    """Starts the receivers' sums of `per_edge` (GAT), or of the keys weighted with it (DOT)."""
    kind = attention.logits.kind
    if kind == GAT:
        operands = Neighbors(per_edge, None).operands()
        team = team_for(attention.heads, 4, words=launcher.launch.words)
    else:
        operands = Neighbors(attention.sender, edges.neighbors, per_edge).operands()
        team = attention_team(attention, 1, launcher.launch)
    fold = partial(fold_neighbors, tuple(operands))
    reduction = Reduction(f"{kind}_receiver_gradients", SUM, fold, add_states)
    return launcher.start(reduction, team, edges, list(operands.values()), [before])


def _start_hidden(
    attention: Attention, adjoint: Adjoint, edges: Edges, before: Result, launcher: _Launcher
) -> Started:
    """Starts the sums of GATv2's receivers; writes each team's partial gradient of the vector."""
    team = attention_team(attention, 4, launcher.launch)
    arrays = {"senders": edges.neighbors, "gradient": adjoint.gradient}
    arrays |= {"numbers": adjoint.numbers, **attention.operands()}
    names = [*arrays, "vector_sums"]

    def fold(lanes: Lanes, team: Team, item: Item, references: Sequence[Any]) -> State:
        tables = dict(zip(names, references, strict=True))
        return _fold_receiver(attention, lanes, team, item, tables)

    # Every team sums the contributions of its own rows.
    vector_sums = jnp.zeros((launcher.launch.workers * team.teams, before.shape[1]), jnp.float32)
    reduction = Reduction("gatv2_receiver_gradients", SUM, fold, add_states)
    return launcher.start(reduction, team, edges, list(arrays.values()), [before], [vector_sums])


def _fold_sender(
    attention: Attention, lanes: Lanes, team: Team, item: Item, tables: Mapping[str, Any]
) -> State:
    logits, dropout = attention.logits, attention.dropout
    of_row = partial(read_row, lanes, team, item)
    own = logits.read(lanes, team, item, tables["sender"], item.row, item.has_edges)
    values = own if logits.kind == GATV2 else of_row(tables["values"], item.row, item.has_edges)
    vector = of_row(tables["vector"], item.row * 0, item.has_edges) if "vector" in tables else []
    ids = EdgeIds.of_row(lanes, team, dropout, tables, "sender", item)

    def fetch(slot: jax.Array, mask: jax.Array) -> list[jax.Array]:
        names = ["receivers"] + (["slots"] if "slots" in tables else [])
        return [lanes.read(tables[name], slot, mask=mask)[0] for name in names]

    def load(fetched: list[jax.Array], slot: jax.Array, mask: jax.Array) -> Any:
        receiver, place = fetched[0], fetched[-1] if "slots" in tables else slot
        gradient = of_row(tables["gradient"], receiver, mask)
        numbers = _numbers(lanes, item, tables["numbers"], receiver, mask)
        # GAT's numbers include the receiver's input of the logits.
        far = numbers[3:] if logits.kind == GAT else of_row(tables["receiver"], receiver, mask)
        return gradient, numbers, far, [] if ids is None else ids.read(receiver, place, mask)

    def combine(state: State, edges: Sequence[tuple]) -> State:
        powers = []
        for _, (gradient, numbers, far, _), _, mask in edges:
            logit, slope = logits.of_edge(lanes, team, own, far, vector)
            power = _Power.of(logit, slope, head_product(lanes, team, values, gradient), numbers)
            powers.append((power, mask))
        masks = keep_masks(ids, [read for _, (_, _, _, read), _, _ in edges])
        changes = _changes(powers, masks, kept_scale(ids))
        for edge, keep, (weight, change) in zip(edges, masks, changes, strict=True):
            if "per_edge" in tables:
                place = edge[0][-1] if "slots" in tables else edge[2]
                mask = edge[3] & (item.lane == 0)
                kept = lanes.spread(change, 1)
                lanes.write(tables["per_edge"], place, item.head, kept, mask=mask)
            state = add_states(state, added(edge[1], keep, weight, change))
        return state

    def added(loaded: Any, keep: jax.Array | None, weight: jax.Array, change: jax.Array) -> State:
        gradient, _, far, _ = loaded
        weight, wide = (lanes.spread(each, team.count) for each in (weight, change))
        weighted = kept(lanes, keep, [each * weight for each in gradient])
        if logits.kind == GAT:
            return weighted, [lanes.spread(change, 1)]
        if logits.kind == DOT:
            return weighted, [each * wide for each in far]
        hidden = (x + z for x, z in zip(own, far, strict=True))
        slopes = [a * logits.slope(h) for a, h in zip(vector, hidden, strict=True)]
        return ([a + b * wide for a, b in zip(weighted, slopes, strict=True)],)

    empty = empty_state(lanes, team, SENDER_PARTS[logits.kind])
    return fold_batches(lanes, team, item, fetch, load, combine, empty)


def _fold_receiver(
    attention: Attention,
    lanes: Lanes,
    team: Team,
    item: Item,
    tables: Mapping[str, Any],
) -> State:
    logits, dropout = attention.logits, attention.dropout
    of_row = partial(read_row, lanes, team, item)
    own, gradient = (
        of_row(tables[name], item.row, item.has_edges) for name in ("receiver", "gradient")
    )
    vector = of_row(tables["vector"], item.row * 0, item.has_edges)
    numbers = _numbers(lanes, item, tables["numbers"], item.row, item.has_edges)
    ids = EdgeIds.of_row(lanes, team, dropout, tables, "receiver", item)

    def fetch(slot: jax.Array, mask: jax.Array) -> jax.Array:
        return lanes.read(tables["senders"], slot, mask=mask)[0]

    def load(sender: jax.Array, slot: jax.Array, mask: jax.Array) -> Any:
        read = [] if ids is None else ids.read(sender, slot, mask)
        return of_row(tables["sender"], sender, mask), read

    def combine(state: State, edges: Sequence[tuple]) -> State:
        powers = []
        for _, (far, _), _, mask in edges:
            logit, slope = logits.of_edge(lanes, team, own, far, vector)
            power = _Power.of(logit, slope, head_product(lanes, team, gradient, far), numbers)
            powers.append((power, mask))
        masks = keep_masks(ids, [read for _, (_, read), _, _ in edges])
        changes = _changes(powers, masks, kept_scale(ids))
        for (_, (far, _), _, _), (_, change) in zip(edges, changes, strict=True):
            wide = lanes.spread(change, team.count)
            hidden = [x + z for x, z in zip(own, far, strict=True)]
            slopes = [logits.slope(h) * wide for h in hidden]
            products = [h * slope for h, slope in zip(hidden, slopes, strict=True)]
            state = add_states(state, (slopes, products))
        return state

    empty = empty_state(lanes, team, (*SUM, *SUM))
    slopes, products = fold_batches(lanes, team, item, fetch, load, combine, empty)
    _add_to_own_row(lanes, team, item, tables["vector_sums"], products)
    return ([a * b for a, b in zip(vector, slopes, strict=True)],)


def _add_to_own_row(
    lanes: Lanes,
    team: Team,
    item: Item,
    table: Any,
    values: Sequence[jax.Array],
) -> None:
    """Adds to the row of a table that belongs to the team."""
    row = item.worker * (LANES // team.lanes) + lanes.ids() // team.lanes
    for column, inside, each in zip(item.columns, item.inside, values, strict=True):
        mask = item.valid & inside
        old = lanes.read(table, row, column, mask=mask, count=team.count, constant=False)
        lanes.write(table, row, column, old + each, mask=mask)


def _numbers(
    lanes: Lanes, item: Item, table: Any, row: jax.Array, mask: jax.Array
) -> list[jax.Array]:
    found = lanes.read(table, row, item.head * NUMBERS, mask=mask, count=NUMBERS)
    return lanes.split(found)


@dataclasses.dataclass(frozen=True)
class _Power:
    """The coefficient of an edge and its products, before dropout, [lanes] each.

    Attributes:
      weight: its coefficient.
      product: <g, v>.
      inner: the coefficient times <g, y>.
      slope: the derivative of its logit.
    """

    weight: jax.Array
    product: jax.Array
    inner: jax.Array
    slope: jax.Array | float

    @classmethod
    def of(
        cls,
        logit: jax.Array,
        slope: jax.Array | float,
        product: jax.Array,
        numbers: Sequence[jax.Array],
    ) -> _Power:
        peak, inverse, inner, _ = numbers
        power = jnp.exp(logit - peak)
        return cls(power * inverse, product, power * inner, slope)


def _changes(
    powers: Sequence[tuple[_Power, jax.Array]],
    masks: Sequence[jax.Array | None],
    scale: float,
) -> list[tuple[jax.Array, jax.Array]]:
    """Returns for each edge the weight of g where it is kept, and the gradient of the logit."""

    def one(power: _Power, mask: jax.Array, keep: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        weight = power.weight * scale
        # Dropped values may be NaN.
        product = weight * power.product
        product = product if keep is None else jnp.where(keep, product, 0.0)
        change = (product - power.inner) * power.slope
        # A row without edges may hold NaN.
        return jnp.where(mask, weight, 0.0), jnp.where(mask, change, 0.0)

    return [one(*each, keep) for each, keep in zip(powers, masks, strict=True)]
