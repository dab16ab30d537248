"""Compact rows and runs: the layout of a group's rows for XLA's loops over chunks of edges.

`jaxgraph.ops.core.edges` gives the reasons. Every implementation has these arrays: a user's own
messages are reduced by these loops on all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

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
from jaxgraph.layout.row_lengths import EdgeLengths, RowLengths, join_lengths, leaving
from jaxgraph.layout.schema import SLOTS, EdgeSet
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

    def of(self, prefix: str) -> RowSizes:
        """The sizes of an orientation, such as "incoming/by_receiver"."""
        return self.by_receiver if prefix.endswith("/by_receiver") else self.by_sender


@functools.lru_cache(maxsize=32)
def edge_sizes(manifest: Manifest) -> Mapping[str, EdgeSizes]:
    """Chooses chunks and runs, and bounds the rows and runs of a part."""
    found, chunk, longest = {}, 0, (0, 0)
    for name, edges in manifest.edge_sets.items():
        # Edges that leave parts are those that end in others, and have the same choices.
        if not edges.leaves:
            chunk, longest = _choices(edges.lengths, edges.by_receiver, manifest.num_parts)
        found[name] = _sizes(edges.lengths, chunk, longest, leave=edges.leaves)
    return found


def _choices(
    several: Sequence[EdgeLengths], node_rows: int, num_parts: int
) -> tuple[int, tuple[int, int]]:
    """The chunk, and the edges of runs by receiver and by sender."""
    # The choice ignores the room for other graphs.
    node_rows = int(node_rows / max(each.more for each in several) + 1e-6)
    sides = [[each.by_receiver for each in several], [each.by_sender for each in several]]
    by_receiver, by_sender = map(join_lengths, sides)
    chunk = choose_chunk(join_lengths([by_receiver, by_sender]), node_rows, num_parts)
    return chunk, (choose_longest(by_receiver, chunk)[0], choose_longest(by_sender, chunk)[0])


def _sizes(
    several: Sequence[EdgeLengths], chunk: int, longest: tuple[int, int], *, leave: bool = False
) -> EdgeSizes:
    def of_side(counts: Sequence[tuple[RowLengths, float]], longest: int) -> RowSizes:
        return RowSizes(longest, *_most(counts, longest, leave), chunk // PIECE)

    return EdgeSizes(
        chunk,
        of_side([(each.by_receiver, each.more) for each in several], longest[0]),
        of_side([(each.by_sender, each.more) for each in several], longest[1]),
    )


def _most(
    counts: Sequence[tuple[RowLengths, float]], longest: int | None, leave: bool
) -> tuple[int, int]:
    """The most rows and runs of a part and of a group; `longest` None: rows alone."""
    entries = of_group = 0
    for each, more in counts:
        found = each.by_group(each.rows)
        found = found if longest is None else found + count_runs(each, longest)
        found = leaving(found) if leave else found
        entries = max(entries, math.ceil(more * int(found.sum(axis=1).max())))
        of_group = max(of_group, math.ceil(more * int(found.max())))
    return entries, of_group


def compare(manifest: Manifest, pad_to: Manifest) -> dict[str, tuple[int, int]]:
    """Compares the rows of a graph with the room of other shapes."""
    found = {}
    for name, edges in manifest.edge_sets.items():
        sizes = edge_sizes(pad_to)[name]
        for side, prefix in edges.prefixes.items():
            counts = [(getattr(each, side), each.more) for each in edges.lengths]
            of_part, of_group = _most(counts, None, edges.leaves)
            own = sizes.of(prefix)
            found[f"{prefix}: rows"] = (of_part, own.entries)
            found[f"{prefix}: rows of a group"] = (of_group, own.of_group)
    return found


def shapes(listed: Shapes, manifest: Manifest) -> Shapes:
    """Shapes of the arrays that `arrays` makes, and of listed ones that need room for a chunk."""
    found: Shapes = {}
    for edges in manifest.edge_sets.values():
        data = [
            name
            for name, field in manifest.fields.items()
            if field.axis == SLOTS and field.owner == edges.name
        ]
        sizes = edge_sizes(manifest)[edges.name]
        ahead = 0 if edges.chunks is None else 1
        for side, prefix in edges.prefixes.items():
            pointers, integer = listed[f"{prefix}/compressed_ptr"]
            extents = dict.fromkeys(_VISITED, sizes.of(prefix).entries + sizes.chunk)
            extents |= {"run_ptr": pointers[-1], "heavy_rows": pointers[-1] - 1}
            extents["position"] = edges.own_rows(side)
            for field, size in extents.items():
                found[f"{prefix}/{field}"] = ((*pointers[:-1], size), integer)
        indices = [f"{prefix}/neighbors" for prefix in edges.prefixes.values()]
        for name in (*indices, f"{edges.name}/by_sender/edge_ids", *data):
            if name in listed:
                shape, dtype = list(listed[name][0]), listed[name][1]
                shape[ahead] += sizes.chunk
                found[name] = (tuple(shape), dtype)
        # The receiver of each slot is used for data of edges, and for all edges of a part.
        if data or (edges.data is not None and edges.chunks is None):
            found[f"{edges.name}/receivers"] = found[f"{edges.name}/by_receiver/neighbors"]
    return found


def arrays(part: Arrays, placed: Shapes, manifest: Manifest) -> Arrays:
    """Orders the rows of every group by length, and cuts heavy ones into runs."""
    sizes = edge_sizes(manifest)

    def make(edges: EdgeSet, side: str, tables: Arrays) -> Arrays:
        prefix, receivers = edges.prefixes[side], f"{edges.name}/receivers"
        made = _cut(tables, sizes[edges.name].of(prefix), edges.own_rows(side), prefix)
        found = {f"{prefix}/{field}": values for field, values in made.items()}
        if side == "by_receiver" and receivers in placed:
            rows, starts = tables["compressed_rows"], tables["compressed_starts"]
            count = tables["compressed_ptr"][-1]
            found[receivers] = np.repeat(rows[:count], np.diff(starts[: count + 1]))
        return found

    return by_orientation(part, placed, manifest, make)


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
    order = order_by_length(lengths, pointers, _by_row(rows, pointers))
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
    places = (
        np.arange(len(rows)) + runs_before[group],
        (run_ptr[:-1] + ahead)[group[row]] + np.arange(len(row)),
    )
    found = {
        "rows": (rows, rows[row]),
        "starts": (visited_starts, starts[row] + done),
        "degrees": (visited_lengths, np.minimum(lengths[row] - done, longest)),
    }
    arrays: Arrays = {
        "run_ptr": run_ptr,
        "heavy_rows": np.bincount(group[heavy], minlength=groups),
        "position": position,
    }
    for name, values in found.items():
        arrays[name] = joined = np.empty(run_ptr[-1], np.int32)
        for at, some in zip(places, values, strict=True):
            joined[at] = some
    return arrays


def _by_row(rows: np.ndarray, pointers: np.ndarray) -> np.ndarray | None:
    """The order of all groups' rows by ascending row; None: they ascend within every group."""
    ascends = rows[1:] > rows[:-1]
    ends = pointers[1:-1]
    ascends[ends[(ends > 0) & (ends < len(rows))] - 1] = True
    return None if ascends.all() else counting_argsort(rows, int(rows.max()) + 1)
