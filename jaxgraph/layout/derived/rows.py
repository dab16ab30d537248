"""Compact rows and runs: the layout of a group's rows for XLA's loops over chunks of edges.

`jaxgraph.ops.core.edges` gives the reasons. Every implementation has these arrays: a user's own
messages are reduced by these loops on all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable

import numpy as np

from jaxgraph.layout.compressed_rows import order_by_length
from jaxgraph.layout.derived.chunks import (
    PIECE,
    choose_chunk,
    choose_longest,
    count_runs,
)
from jaxgraph.layout.derived.orientations import by_orientation
from jaxgraph.layout.index_check import part_error
from jaxgraph.layout.manifest import Arrays, Manifest, Shapes
from jaxgraph.layout.row_lengths import EdgeLengths, RowLengths, join_lengths
from jaxgraph.layout.schema import EDGES, SIDES, SLOTS, EdgeSet, orientations
from jaxgraph.partition.sorting import counting_argsort

_VISITED = ("rows", "starts", "degrees")


@dataclasses.dataclass(frozen=True)
class RowSizes:
    """Sizes of one orientation of some edges.

    Attributes:
      longest: edges of a run, or more where a part has no room for all runs of that length.
      entries: compact rows and runs of all groups of a part.
      of_group: compact rows and runs of the largest group.
      block: rows handled at a time.
    """

    longest: int
    entries: int
    of_group: int
    block: int

    @property
    def capacity(self) -> int:
        """Compact rows and runs of the largest group, plus one block of rows."""
        return self.of_group + self.block


@dataclasses.dataclass(frozen=True)
class EdgeSizes:
    """Sizes of the loops over some edges of every part.

    Attributes:
      chunk: edges handled at a time.
      by_receiver, by_sender: the two orientations.
    """

    chunk: int
    by_receiver: RowSizes
    by_sender: RowSizes


Choice = Callable[[EdgeSet], EdgeSizes]
"""The sizes of some edges."""


@functools.lru_cache(maxsize=128)
def sizes_of(edges: EdgeSet) -> EdgeSizes:
    """Chooses chunks and runs, and bounds the rows and runs of a part."""
    # Edges that leave parts are those that end in others, and have the same choices.
    node_rows = edges.by_sender if edges.leaves else edges.by_receiver
    chunk, longest = _choices(edges.lengths, node_rows, edges.parts)
    by_receiver, by_sender = (
        RowSizes(most, *_most(edges, side, most), chunk // PIECE)
        for side, most in zip(SIDES, longest, strict=True)
    )
    return EdgeSizes(chunk, by_receiver, by_sender)


@functools.lru_cache(maxsize=128)
def _choices(
    several: tuple[EdgeLengths, ...], node_rows: int, num_parts: int
) -> tuple[int, tuple[int, int]]:
    """The chunk, and the edges of runs by receiver and by sender."""
    # The choice ignores the room for other graphs.
    node_rows = int(node_rows / max(each.more for each in several) + 1e-6)
    by_receiver, by_sender = (join_lengths([getattr(x, side) for x in several]) for side in SIDES)
    chunk = choose_chunk(join_lengths([by_receiver, by_sender]), node_rows, num_parts)
    return chunk, (choose_longest(by_receiver, chunk)[0], choose_longest(by_sender, chunk)[0])


def _most(edges: EdgeSet, side: str, longest: int | None) -> tuple[int, int]:
    """The most rows and runs of a part and of a group; `longest` None: rows alone."""
    entries = of_group = 0
    for each in edges.lengths:
        counts: RowLengths = getattr(each, side)
        found = counts.by_group(counts.rows)
        found = edges.by_part(found if longest is None else found + count_runs(counts, longest))
        entries = max(entries, math.ceil(each.more * int(found.sum(axis=1).max())))
        of_group = max(of_group, math.ceil(each.more * int(found.max())))
    return entries, of_group


def compare(manifest: Manifest, pad_to: Manifest) -> dict[str, tuple[int, int]]:
    """Compares the rows of a graph with the room of other shapes."""
    found = {}
    for edges, side, prefix in orientations(manifest.edge_sets.values()):
        of_part, of_group = _most(edges, side, None)
        room: RowSizes = getattr(sizes_of(pad_to.edge_sets[edges.name]), side)
        found[f"{prefix}: rows"] = (of_part, room.entries)
        found[f"{prefix}: rows of a group"] = (of_group, room.of_group)
    return found


def shapes(listed: Shapes, sets: Iterable[EdgeSet], choose: Choice = sizes_of) -> Shapes:
    """Shapes of the arrays that `arrays` makes, and of listed ones that need room for a chunk."""
    found: Shapes = {}
    for edges in sets:
        sizes, name = choose(edges), edges.name
        slots = [x for x in edges.fields(listed) if x.axis in (EDGES, SLOTS) and x.name in listed]
        for field in slots:
            shape, dtype = list(listed[field.name][0]), listed[field.name][1]
            shape[len(field.lead)] += sizes.chunk
            found[field.name] = (tuple(shape), dtype)
        for side, prefix in edges.prefixes.items():
            (*lead, pointers), integer = listed[f"{prefix}/compressed_ptr"]
            room: RowSizes = getattr(sizes, side)
            extents = dict.fromkeys(_VISITED, room.entries + sizes.chunk)
            extents |= {"run_ptr": pointers, "heavy_rows": pointers - 1}
            extents["position"] = edges.own_rows(side)
            found |= {f"{prefix}/{x}": ((*lead, size), integer) for x, size in extents.items()}
            if edges.shares_halo and side == "by_sender":
                found[f"{name}/halo_position"] = ((edges.groups - 1, edges.table(side)[1]), integer)
            if edges.has_values:
                found[f"{prefix}/ends"] = found[f"{prefix}/neighbors"]
                found[f"{name}/by_sender/values"] = found[f"{name}/values"]
        # The receiver of each slot is used for data of edges, and for all edges of a part.
        has_data = any(field.axis == SLOTS for field in slots)
        if has_data or (edges.data is not None and edges.chunks is None):
            found[f"{name}/receivers"] = found[f"{name}/by_receiver/neighbors"]
    return found


def arrays(
    part: Arrays, placed: Shapes, sets: Iterable[EdgeSet], choose: Choice = sizes_of
) -> Arrays:
    """Orders the rows of every group by length, and cuts heavy ones into runs.

    The values of non-zeros are stored in both orders: a permutation at run time takes as long as
    their sum.
    """

    def make(edges: EdgeSet, side: str, tables: Arrays) -> Arrays:
        prefix = edges.prefixes[side]
        made = _cut(tables, getattr(choose(edges), side), edges.own_rows(side), prefix)
        found = {f"{prefix}/{field}": values for field, values in made.items()}
        if edges.shares_halo and side == "by_sender":
            found[f"{edges.name}/halo_position"] = _in_halo(made, tables, edges.table(side)[1])
        ends = f"{prefix}/ends" if edges.has_values else f"{edges.name}/receivers"
        if ends in placed and (side == "by_receiver" or edges.has_values):
            rows, starts = tables["compressed_rows"], tables["compressed_starts"]
            count = tables["compressed_ptr"][-1]
            found[ends] = np.repeat(rows[:count], np.diff(starts[: count + 1]))
        if edges.has_values and side == "by_sender":
            columns = part[f"{edges.name}/by_receiver/neighbors"][: len(found[ends])]
            by_column = counting_argsort(columns, edges.by_sender)
            found[f"{prefix}/values"] = part[f"{edges.name}/values"][by_column]
        return found

    return by_orientation(part, placed, sets, make)


def _in_halo(made: Arrays, tables: Arrays, halo_rows: int) -> np.ndarray:
    """int32 [groups - 1, halo rows], the compact row of each row of a halo, -1: none."""
    counts, starts = np.diff(tables["compressed_ptr"]), made["run_ptr"]
    found = np.full((len(counts) - 1, halo_rows), -1, np.int32)
    for group in range(1, len(counts)):
        rows = made["rows"][starts[group] : starts[group] + counts[group]]
        found[group - 1, rows] = np.arange(len(rows), dtype=np.int32)
    return found


def _cut(tables: Arrays, sizes: RowSizes, num_rows: int, prefix: str) -> Arrays:
    """`visited_rows`, with longer runs where the shapes have no room for all runs."""
    longest = sizes.longest
    while True:
        made = visited_rows(tables, longest, num_rows)
        of_part, of_group = made["run_ptr"][-1], np.diff(made["run_ptr"]).max(initial=0)
        if of_part <= sizes.entries and of_group <= sizes.of_group:
            return made
        if not made["heavy_rows"].any():
            raise part_error(
                f"{prefix}/compressed_ptr has {of_part} rows, up to {of_group} in a group; "
                f"expected at most {sizes.entries}, and {sizes.of_group} in a group, which is what "
                "the manifest's row lengths come to"
            )
        longest *= 2


def visited_rows(tables: Arrays, longest: int, num_rows: int) -> Arrays:
    """The compact rows of every group, followed by the runs that its heavy rows are cut into.

    A heavy row stores the number of its first run as its start, and its number of runs as degree.
    """
    pointers = tables["compressed_ptr"].astype(np.int64)
    bounds = tables["compressed_starts"][: pointers[-1] + 1]
    rows, lengths = tables["compressed_rows"][: pointers[-1]], np.diff(bounds)
    order = order_by_length(lengths, pointers, rows)
    rows, starts, lengths = rows[order], bounds[order], lengths[order]
    group, groups = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers)), len(pointers) - 1
    position = np.full(num_rows, -1, np.int32)
    if num_rows:
        position[rows[: pointers[1]]] = np.arange(pointers[1], dtype=np.int32)
    # Rows are ordered by length: the heavy ones are the first of every group.
    heavy = np.flatnonzero(lengths > longest)
    counts = -(-lengths[heavy].astype(np.int64) // longest)
    row = np.repeat(heavy, counts)
    first = np.cumsum(counts) - counts
    done = (np.arange(len(row)) - np.repeat(first, counts)) * longest
    runs_of_group = np.bincount(group[row], minlength=groups)
    runs_before = np.cumsum(runs_of_group) - runs_of_group
    run_ptr = np.concatenate([[0], np.cumsum(np.diff(pointers) + runs_of_group)])
    # The runs of a group follow its compact rows. Both are numbered from the first row on.
    ahead = np.diff(pointers) - runs_before
    visited_starts, visited_lengths = starts.copy(), lengths.copy()
    visited_starts[heavy], visited_lengths[heavy] = ahead[group[heavy]] + first, counts
    visited = {
        "rows": np.append(rows, rows[row]),
        "starts": np.append(visited_starts, starts[row] + done),
        "degrees": np.append(visited_lengths, np.minimum(lengths[row] - done, longest)),
    }
    places = np.argsort(np.append(2 * group, 2 * group[row] + 1), kind="stable")
    return {name: values[places] for name, values in visited.items()} | {
        "run_ptr": run_ptr,
        "heavy_rows": np.bincount(group[heavy], minlength=groups),
        "position": position,
    }
