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

__all__ = [
    "Part",
    "Reduction",
    "Started",
    "State",
    "empty_state",
    "join_rows",
    "reduce_rows",
    "start_rows",
]

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


@dataclasses.dataclass(frozen=True)
class Task:
    """One walk over some rows.

    Attributes:
      reduction, team: how.
      lists: of rows; of two lists, the first is of pieces.
      arrays: of which `reduction.fold` gets the references.
      before: the states to continue from.
      written: what `reduction.fold` itself writes to, whose references it gets behind the others;
        shapes and types stand for arrays that start as anything.
      partial: shape and type of each partial result of the pieces.
      fresh: whether `before` is empty where a row has edges, and need not be read.
    """

    reduction: Reduction
    team: Team
    lists: Sequence[RowList]
    arrays: Sequence[jax.Array]
    before: Sequence[jax.Array]
    written: Sequence[jax.Array | jax.ShapeDtypeStruct] = ()
    partial: Sequence[jax.ShapeDtypeStruct] = ()
    fresh: bool = False


@dataclasses.dataclass(frozen=True)
class Started:
    """A reduction whose partial results have not been joined.

    Attributes:
      states: of the rows that are not cut.
      written: what has been written to.
      join: what is left to do; None: nothing.
    """

    states: list[jax.Array]
    written: list[jax.Array]
    join: Task | None


def reduce_rows(
    reduction: Reduction,
    team: Team,
    rows: Rows,
    arrays: Sequence[jax.Array],
    before: Sequence[jax.Array],
    launch: Launch,
    *,
    fresh: bool = False,
) -> list[jax.Array]:
    """The states of rows after their edges.

    Args:
      reduction, team, launch: how.
      rows: the rows and their edges.
      arrays: of which `reduction.fold` gets the references.
      before: the states to continue from, [rows, heads * width] or, of a part that is per head,
        [rows, heads]; written over where a row has edges.
      fresh: whether `before` is empty where a row has edges, and need not be read.

    Returns:
      The states.
    """
    started = start_rows(reduction, team, rows, arrays, before, launch, fresh=fresh)
    return join_rows([started], launch)[0]


def start_rows(
    reduction: Reduction,
    team: Team,
    rows: Rows,
    arrays: Sequence[jax.Array],
    before: Sequence[jax.Array],
    launch: Launch,
    written: Sequence[jax.Array | jax.ShapeDtypeStruct] = (),
    *,
    fresh: bool = False,
) -> Started:
    """The states of rows after their edges, as far as one kernel can tell.

    Args:
      reduction, team, rows, arrays, before, launch, fresh: as for `reduce_rows`.
      written: what `reduction.fold` itself writes to, whose references it gets behind the others;
        shapes and types stand for arrays that start as anything.

    Returns:
      What `join_rows` ends.
    """
    if rows.pieces is None or rows.joined is None:
        task = Task(reduction, team, [rows.whole], arrays, before, written, (), fresh)
        found = _call([task], launch)[0]
        return Started(found[: len(before)], found[len(before) :], None)
    partial = [
        jax.ShapeDtypeStruct((rows.partials, *each.shape[1:]), each.dtype) for each in before
    ]
    lists = [rows.pieces, rows.whole]
    task = Task(reduction, team, lists, arrays, before, written, partial, fresh)
    found = _call([task], launch)[0]
    kept = len(before) + len(written)
    joining = dataclasses.replace(
        reduction, name=f"{reduction.name}_join", fold=_folding_partials(reduction)
    )
    # Partial results are of 32 bits, whatever was reduced.
    count = len(reduction.parts)
    wide = team_for(team.width, 4, heads=team.heads, tables=count, words=launch.words)
    states = found[: len(before)]
    join = Task(joining, wide, [rows.joined], found[kept:], states, fresh=fresh)
    return Started(states, found[len(before) : kept], join)


def join_rows(started: Sequence[Started], launch: Launch) -> list[list[jax.Array]]:
    """The states of reductions, with what is left to do of all of them in one kernel."""
    joined = iter(_call([each.join for each in started if each.join is not None], launch))
    return [each.states if each.join is None else next(joined) for each in started]


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


def _call(tasks: Sequence[Task], launch: Launch) -> list[list[jax.Array]]:
    """States, written arrays and partial results of tasks that do not depend on each other."""
    if not tasks:
        return []
    lanes = Lanes(launch.interpret is not None)
    operands = [
        [*(array for each in task.lists for array in each.operands()), *task.arrays]
        for task in tasks
    ]
    results = [[*task.before, *task.written, *task.partial] for task in tasks]
    counts = [[len(part) for part in parts] for parts in (operands, results)]
    flat = [each for some in results for each in some]
    continued = [
        place for place, each in enumerate(flat) if not isinstance(each, jax.ShapeDtypeStruct)
    ]
    inputs = [each for some in operands for each in some]

    def body(*references: Any) -> None:
        of_results = references[len(inputs) + len(continued) :]
        parts = (_parted(references, counts[0]), _parted(of_results, counts[1]))
        for task, tables, found in zip(tasks, *parts, strict=True):
            _walk(task, lanes, launch, tables, found)

    found = kernel(
        body,
        [(each.shape, each.dtype) for each in flat],
        programs=launch.programs,
        warpgroups=launch.warpgroups,
        name=tasks[0].reduction.name,
        continued={len(inputs) + place: result for place, result in enumerate(continued)},
        interpret=launch.interpret,
    )(*inputs, *(flat[place] for place in continued))
    return _parted(found, counts[1])


def _firsts(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:place]) for place in range(len(counts))]


def _parted(items: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    """Consecutive parts of so many items."""
    return [
        list(items[first : first + count])
        for first, count in zip(_firsts(counts), counts, strict=True)
    ]


def _walk(
    task: Task, lanes: Lanes, launch: Launch, inputs: Sequence[Any], outputs: Sequence[Any]
) -> None:
    reduction, team = task.reduction, task.team
    described, kept = OPERANDS * len(task.lists), len(task.before) + len(task.written)
    tables = [*inputs[described:], *outputs[len(task.before) : kept]]
    states, partials = outputs[: len(task.before)], outputs[kept:]

    def keep_partial(item: Item) -> None:
        state = reduction.fold(lanes, team, item, tables)
        _write(lanes, team, item, reduction.parts, partials, item.entry, state)

    def update_row(item: Item) -> None:
        state = reduction.fold(lanes, team, item, tables)
        if not task.fresh:
            old = _read(lanes, team, item, reduction.parts, states, item.row, item.valid, False)
            state = reduction.merge(old, state)
        _write(lanes, team, item, reduction.parts, states, item.row, state)

    visits = [keep_partial, update_row] if len(task.lists) == 2 else [update_row]
    for place, visit in enumerate(visits):
        visit_rows(lanes, team, launch, inputs[place * OPERANDS : (place + 1) * OPERANDS], visit)


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
