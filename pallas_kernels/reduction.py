"""Reductions of the edges of every row, in resumable form, with or without cuts of long rows.

The blocks of one cluster share the pieces of a row; at the end they wait for each other and join
them. Where a row is too long for that, the whole chip shares them, and a second, short kernel joins
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.compatibility import kernel
from pallas_kernels.lanes import LANES, Lanes
from pallas_kernels.rows import (
    OPERANDS,
    Item,
    RowList,
    Rows,
    Span,
    Workers,
    all_workers,
    fold_edges,
    num_batches,
    visit_entries,
    visit_rows,
)
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

Result = jax.Array | jax.ShapeDtypeStruct
"""An array that is overwritten, or the shape and type of an uninitialised one."""

State = tuple[list[jax.Array], ...]
"""For each part, [count, lanes] for each read of a lane, or [1, lanes] if it is per head."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One array of a state.

    Attributes:
      empty: its value without edges.
      dtype: float32 or int32.
      per_head: whether it has one number per head instead of one per column.
    """

    empty: float
    dtype: Any = jnp.float32
    per_head: bool = False


@dataclasses.dataclass(frozen=True)
class Reduction:
    """The functions that reduce the edges of a row to its state.

    Attributes:
      name: name of the kernel.
      parts: the arrays of the state.
      fold: `(lanes, team, item, references)`: the state of an item's edges alone.
      merge: `(left, right)`: the state after the edges of both, those of `left` first.
      finish: computes the written arrays, of the same shapes, from a row's last state; None: the
        state.
    """

    name: str
    parts: tuple[Part, ...]
    fold: Callable[[Lanes, Team, Item, Sequence[Any]], State]
    merge: Callable[[State, State], State]
    finish: Callable[[State], State] | None = None


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
    """The reduction of some lists of rows in one kernel.

    Attributes:
      reduction, team: the reduction and its team.
      lists: lists of rows; if there are several, the first holds pieces, and of three the second
        holds the rows that the same kernel joins from these.
      arrays: the arrays whose references `reduction.fold` gets.
      results: for each row: arrays, which are overwritten, or shapes and types.
      before: the states to continue from; empty: the results, if they are read.
      written: the arrays that `reduction.fold` itself writes, whose references it gets after the
        others; shapes and types mean uninitialised arrays.
      partial: shape and type of each partial result of the pieces.
      fresh: whether rows start from the state of no edges, and need not be read.
    """

    reduction: Reduction
    team: Team
    lists: Sequence[RowList]
    arrays: Sequence[jax.Array]
    results: Sequence[Result]
    before: Sequence[jax.Array] = ()
    written: Sequence[Result] = ()
    partial: Sequence[jax.ShapeDtypeStruct] = ()
    fresh: bool = False


@dataclasses.dataclass(frozen=True)
class Started:
    """A reduction whose partial results have not been joined.

    Attributes:
      results: the results of rows that are not cut.
      written: the arrays that `fold` has written.
      join: the remaining task; None: nothing remains.
    """

    results: list[jax.Array]
    written: list[jax.Array]
    join: Task | None


def reduce_rows(
    reduction: Reduction,
    teams: Sequence[Team],
    rows: Rows,
    arrays: Sequence[jax.Array],
    results: Sequence[Result],
    launch: Launch,
    *,
    before: Sequence[jax.Array] = (),
    fresh: bool = False,
) -> list[jax.Array]:
    """The states of rows after their edges, or the results of `reduction.finish`.

    Args:
      reduction, launch: the reduction and its launch.
      teams: one for each pass over some of the columns, of `teams_for`, or the only one.
      rows: the rows and their edges.
      arrays: the arrays whose references `reduction.fold` gets.
      results: [rows, heads * width] or, for a part that is per head, [rows, heads]. Arrays are
        overwritten at the rows in `rows`; shapes and types mean uninitialised arrays.
      before: the states to continue from, in the same shapes; empty: the results, which are then
        arrays unless `fresh`.
      fresh: whether rows start from the state of no edges, and need not be read.

    Returns:
      The results.
    """
    found: list[Any] = list(results)
    for team in teams:
        started = start_rows(
            reduction, team, rows, arrays, found, launch, before=before, fresh=fresh
        )
        found = join_rows([started], launch)[0]
    return found


def start_rows(
    reduction: Reduction,
    team: Team,
    rows: Rows,
    arrays: Sequence[jax.Array],
    results: Sequence[Result],
    launch: Launch,
    written: Sequence[Result] = (),
    *,
    before: Sequence[jax.Array] = (),
    fresh: bool = False,
) -> Started:
    """The results of rows after their edges, before a second kernel joins partial results.

    Args:
      reduction, rows, arrays, results, launch, before, fresh: as for `reduce_rows`.
      team: of the only pass.
      written: the arrays that `reduction.fold` itself writes, whose references come last.

    Returns:
      The input of `join_rows`.
    """
    lists = [rows.whole]
    partial: list[jax.ShapeDtypeStruct] = []
    joins = rows.joined is not None and not rows.spread and launch.cluster > 1
    if rows.pieces is not None:
        lists = [rows.pieces, *([rows.joined] if joins else []), rows.whole]
        partial = _partial_shapes(reduction, team, rows.partials)
    task = Task(reduction, team, lists, arrays, results, before, written, partial, fresh)
    found = _call([task], launch)[0]
    kept = len(results) + len(written)
    done, of_fold, partials = found[: len(results)], found[len(results) : kept], found[kept:]
    if rows.joined is None or joins:
        return Started(done, of_fold, None)
    joining = dataclasses.replace(
        reduction, name=f"{reduction.name}_join", fold=_folding_partials(reduction)
    )
    wide = _joining_team(reduction, team, launch)
    join = Task(joining, wide, [rows.joined], partials, done, before, fresh=fresh)
    return Started(done, of_fold, join)


def _joining_team(reduction: Reduction, team: Team, launch: Launch) -> Team:
    """The team for partial results, which always have 32 bits."""
    count = len(reduction.parts)
    wide = team_for(
        team.width, 4, heads=team.heads, tables=count, words=launch.words, largest=team.count
    )
    return dataclasses.replace(wide, first=team.first)


def _partial_shapes(reduction: Reduction, team: Team, count: int) -> list[jax.ShapeDtypeStruct]:
    columns = team.first + team.heads * team.width
    return [
        jax.ShapeDtypeStruct((count, team.heads if part.per_head else columns), part.dtype)
        for part in reduction.parts
    ]


def join_rows(started: Sequence[Started], launch: Launch) -> list[list[jax.Array]]:
    """The results of reductions, after one kernel has done all remaining tasks."""
    joined = iter(_call([each.join for each in started if each.join is not None], launch))
    return [each.results if each.join is None else next(joined) for each in started]


def _folding_partials(reduction: Reduction, *, constant: bool = True) -> Callable[..., State]:
    def fold(lanes: Lanes, team: Team, item: Item, references: Sequence[Any]) -> State:
        def fetch(slot: jax.Array, mask: jax.Array) -> tuple[()]:
            return ()

        def load(fetched: Any, slot: jax.Array, mask: jax.Array) -> State:
            return _read(lanes, team, item, reduction.parts, references, slot, mask, constant)

        def combine(state: State, fetched: Any, loaded: State, slot: Any, mask: Any) -> State:
            return reduction.merge(state, loaded)

        empty = empty_state(lanes, team, reduction.parts)
        return fold_edges(lanes, team, item, fetch, load, combine, empty)

    return fold


def _call(tasks: Sequence[Task], launch: Launch) -> list[list[jax.Array]]:
    """Results, written arrays and partial results of tasks that do not depend on each other."""
    if not tasks:
        return []
    lanes = Lanes(launch.interpret is not None)
    if all(len(task.lists) < 3 for task in tasks):
        launch = launch.without_clusters()
    operands = [
        [*(array for each in task.lists for array in each.operands()), *task.arrays, *task.before]
        for task in tasks
    ]
    results = [[*task.results, *task.written, *task.partial] for task in tasks]
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
            _run_task(task, lanes, launch, tables, found)

    found = kernel(
        body,
        [(each.shape, each.dtype) for each in flat],
        programs=launch.programs,
        warpgroups=launch.warpgroups,
        cluster=launch.cluster,
        name=tasks[0].reduction.name,
        continued={len(inputs) + place: result for place, result in enumerate(continued)},
        interpret=launch.interpret,
    )(*inputs, *(flat[place] for place in continued))
    return _parted(found, counts[1])


def _firsts(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:place]) for place in range(len(counts))]


def _parted(items: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    """Consecutive parts of `items`, with the given numbers of items."""
    return [
        list(items[first : first + count])
        for first, count in zip(_firsts(counts), counts, strict=True)
    ]


def _run_task(
    task: Task, lanes: Lanes, launch: Launch, inputs: Sequence[Any], outputs: Sequence[Any]
) -> None:
    reduction, team = task.reduction, task.team
    described, kept = OPERANDS * len(task.lists), len(task.results) + len(task.written)
    arrays, before = _parted(inputs[described:], [len(task.arrays), len(task.before)])
    results, written, partials = _parted(
        outputs, [len(task.results), len(task.written), len(outputs) - kept]
    )
    parts, tables, constant = reduction.parts, [*arrays, *written], bool(before)

    def keep_partial(item: Item) -> None:
        state = reduction.fold(lanes, team, item, tables)
        _write(lanes, team, item, parts, partials, item.entry, state)

    def update_row(team: Team, item: Item, state: State) -> None:
        if not task.fresh:
            source = before or results
            old = _read(lanes, team, item, parts, source, item.row, item.valid, constant)
            state = reduction.merge(old, state)
        finished = state if reduction.finish is None else reduction.finish(state)
        _write(lanes, team, item, parts, results, item.row, finished)

    def reduce_row(item: Item) -> None:
        update_row(team, item, reduction.fold(lanes, team, item, tables))

    lists = _parted(inputs[:described], [OPERANDS] * len(task.lists))
    if len(lists) == 3:
        wide = _joining_team(reduction, team, launch)
        fold = _folding_partials(reduction, constant=False)

        def join_row(item: Item) -> None:
            update_row(wide, item, fold(lanes, wide, item, partials))

        visits = ((team, keep_partial), (wide, join_row), (team, reduce_row))
        _visit_together(lanes, launch, lists, visits)
        return
    for some, visit in zip(lists, [keep_partial, reduce_row][-len(lists) :], strict=True):
        visit_rows(lanes, team, launch, some, visit)


def _visit_together(
    lanes: Lanes,
    launch: Launch,
    lists: Sequence[Sequence[Any]],
    visits: Sequence[tuple[Team, Callable[[Item], None]]],
) -> None:
    """Reduces, in every cluster, the pieces of some rows, and at the end joins these rows.

    In between, the rows that are not cut are reduced, so that no warpgroup waits early for those
    that have pieces.

    Args:
      lanes, launch: those of the kernel.
      lists: references of `RowList.operands()`: the pieces, the rows that are cut, the others.
      visits: the team for each list, and the function that reduces an item.
    """
    pieces, joined, whole = lists
    of_pieces, of_joined, of_whole = visits
    clusters, count = launch.programs // launch.cluster, launch.cluster * launch.warpgroups
    cluster = lax.axis_index("program")
    of_grid = all_workers(launch).own
    own = of_grid - cluster * count
    bounds, _, starts, lengths = joined
    turns = lax.div(bounds[1] - bounds[0] - cluster + (clusters - 1), jnp.int32(clusters))

    def of_row(turn: jax.Array, dealt: jax.Array) -> jax.Array:
        place = bounds[0] + cluster + turn * clusters
        span = Span(starts[place], lengths[place])
        # The next row starts where one ends, so that short rows keep several warpgroups busy.
        turned = lax.rem(own + count - lax.rem(dealt, count), count)
        workers = Workers(turned, count, of_grid)
        visit_entries(lanes, of_pieces[0], workers, pieces, span, of_pieces[1])
        return dealt + num_batches(of_pieces[0], span.count)

    def run(barrier: Any) -> None:
        lax.fori_loop(0, turns, of_row, jnp.int32(0))
        visit_rows(lanes, of_whole[0], launch, whole, of_whole[1])
        lanes.meet(barrier)
        span = Span(cluster, turns, clusters)
        workers = Workers(own, count, of_grid)
        visit_entries(lanes, of_joined[0], workers, joined, span, of_joined[1])

    lanes.meeting(launch.warpgroups, run)


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
