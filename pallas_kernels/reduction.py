"""Reductions of the edges of every row, in resumable form, with rows cut into pieces or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.compatibility import kernel
from pallas_kernels.lanes import LANES, Lanes
from pallas_kernels.rows import OPERANDS, Item, RowList, Rows, fold_edges, visit_rows
from pallas_kernels.teams import Launch, Team, team_for

__all__ = ["Part", "Reduction", "State", "empty_state", "reduce_rows"]

State = tuple[list[jax.Array], ...]
"""For each part, [count, lanes] for each read of a lane, or [1, lanes] if it is per head."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One array of a state.

    Attributes:
      empty: its value where nothing has been taken in.
      dtype: float32 or int32.
      per_head: whether there is one number per head, and not one per column.
    """

    empty: float
    dtype: Any = jnp.float32
    per_head: bool = False


@dataclasses.dataclass(frozen=True)
class Reduction:
    """How the edges of a row become its state.

    Attributes:
      name: of the kernel.
      parts: of the state.
      fold: `(lanes, team, item, references)`: the state of an item's edges alone.
      merge: `(left, right)`: the state after the edges of both, those of `left` first.
    """

    name: str
    parts: tuple[Part, ...]
    fold: Callable[[Lanes, Team, Item, Sequence[Any]], State]
    merge: Callable[[State, State], State]


def empty_state(lanes: Lanes, team: Team, parts: Sequence[Part]) -> State:
    """The state of no edges."""
    return tuple(
        [lanes.full((1, LANES), part.empty, part.dtype)]
        if part.per_head
        else [lanes.full((team.count, LANES), part.empty, part.dtype) for _ in range(team.steps)]
        for part in parts
    )


def reduce_rows(
    reduction: Reduction,
    team: Team,
    rows: Rows,
    arrays: Sequence[jax.Array],
    before: Sequence[jax.Array],
    launch: Launch,
    written: Sequence[jax.Array] = (),
) -> list[jax.Array]:
    """The states of rows after their edges.

    Args:
      reduction, team, launch: how.
      rows: the rows and their edges.
      arrays: of which `reduction.fold` gets the references.
      before: the states to continue from, [rows, heads * width] or, of a part that is per head,
        [rows, heads]; written over where a row has edges.
      written: what `reduction.fold` itself writes to, whose references it gets behind the others.

    Returns:
      The states, and behind them what has been written to.
    """
    if rows.pieces is None or rows.joined is None:
        return _call(reduction, team, launch, [rows.whole], arrays, before, [], written)
    partial = [((rows.partials, *each.shape[1:]), each.dtype) for each in before]
    lists = [rows.pieces, rows.whole]
    found = _call(reduction, team, launch, lists, arrays, before, partial, written)
    kept = len(before) + len(written)
    states, partials = found[: len(before)], found[kept:]
    joining = dataclasses.replace(
        reduction, name=f"{reduction.name}_join", fold=_folding_partials(reduction)
    )
    # Partial results are of 32 bits, whatever was reduced.
    count = len(reduction.parts)
    wide = team_for(team.width, 4, heads=team.heads, tables=count, words=launch.words)
    joined = _call(joining, wide, launch, [rows.joined], partials, states, [], ())
    return joined + found[len(before) : kept]


def _folding_partials(reduction: Reduction) -> Callable[..., State]:
    def fold(lanes: Lanes, team: Team, item: Item, references: Sequence[Any]) -> State:
        def fetch(slot: jax.Array, mask: jax.Array) -> tuple[()]:
            return ()

        def load(fetched: Any, slot: jax.Array, mask: jax.Array) -> State:
            return _read(lanes, team, item, reduction.parts, references, slot, mask, True)

        def combine(state: State, fetched: Any, loaded: State, slot: Any, mask: Any) -> State:
            return reduction.merge(state, loaded)

        empty = empty_state(lanes, team, reduction.parts)
        return fold_edges(lanes, team, item, fetch, load, combine, empty)

    return fold


def _call(
    reduction: Reduction,
    team: Team,
    launch: Launch,
    lists: Sequence[RowList],
    arrays: Sequence[jax.Array],
    before: Sequence[jax.Array],
    partial: Sequence[tuple[tuple[int, ...], Any]],
    written: Sequence[jax.Array],
) -> list[jax.Array]:
    """The states after some lists of rows; of two lists, the first is of pieces."""
    lanes = Lanes(launch.interpret is not None)
    described = [operand for each in lists for operand in each.operands()]
    first = len(described) + len(arrays)
    continued = [*before, *written]

    def body(*references: Any) -> None:
        outputs = references[first + len(continued) :]
        states, partials = outputs[: len(before)], outputs[len(continued) :]
        tables = [*references[len(described) : first], *outputs[len(before) : len(continued)]]

        def keep_partial(item: Item) -> None:
            state = reduction.fold(lanes, team, item, tables)
            _write(lanes, team, item, reduction.parts, partials, item.entry, state)

        def update_row(item: Item) -> None:
            state = reduction.fold(lanes, team, item, tables)
            old = _read(lanes, team, item, reduction.parts, states, item.row, item.valid, False)
            new = reduction.merge(old, state)
            _write(lanes, team, item, reduction.parts, states, item.row, new)

        visits = [keep_partial, update_row] if len(lists) == 2 else [update_row]
        for place, visit in enumerate(visits):
            some = references[place * OPERANDS : (place + 1) * OPERANDS]
            visit_rows(lanes, team, launch, some, visit)

    return kernel(
        body,
        [*((each.shape, each.dtype) for each in continued), *partial],
        programs=launch.programs,
        warpgroups=launch.warpgroups,
        name=reduction.name,
        continued={first + place: place for place in range(len(continued))},
        interpret=launch.interpret,
    )(*described, *arrays, *continued)


def _read(
    lanes: Lanes,
    team: Team,
    item: Item,
    parts: Sequence[Part],
    references: Sequence[Any],
    row: jax.Array,
    mask: jax.Array,
    constant: bool,
) -> State:
    """The state of a row of some tables, empty where it is masked."""

    def one(part: Part, reference: Any) -> list[jax.Array]:
        if part.per_head:
            return [
                lanes.read(
                    reference, row, item.head, mask=mask, otherwise=part.empty, constant=constant
                )
            ]
        return [
            lanes.read(
                reference,
                row,
                column,
                mask=mask & inside,
                count=team.count,
                otherwise=part.empty,
                constant=constant,
            )
            for column, inside in zip(item.columns, item.inside, strict=True)
        ]

    return tuple(one(*each) for each in zip(parts, references, strict=True))


def _write(
    lanes: Lanes,
    team: Team,
    item: Item,
    parts: Sequence[Part],
    references: Sequence[Any],
    row: jax.Array,
    state: State,
) -> None:
    for part, reference, values in zip(parts, references, state, strict=True):
        if part.per_head:
            mask = item.valid & (item.lane == 0)
            lanes.write(reference, row, item.head, values[0], mask=mask)
            continue
        for column, inside, each in zip(item.columns, item.inside, values, strict=True):
            lanes.write(reference, row, column, each, mask=item.valid & inside)
