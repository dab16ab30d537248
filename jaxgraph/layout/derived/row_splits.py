"""The order in which GPU kernels take rows, and the splits of long ones.

`pallas_kernels.schedule` explains the choice of the rows that are split.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np

from jaxgraph.layout.derived.orientations import by_orientation
from jaxgraph.layout.index_check import part_error
from jaxgraph.layout.manifest import Arrays, Manifest, Shapes
from jaxgraph.layout.schema import EdgeSet, orientations
from pallas_kernels.schedule import SHORTEST, Pieces, cut_rows, longest_piece, most_pieces

_WHOLE = ("whole_rows", "whole_starts", "whole_lengths")
_PER_GROUP = ("counts", "longest")
_POINTERS = ("whole_ptr", "split_ptr", "row_ptr")
_OF_SPLITS = {f"split_{name}": name for name in ("rows", "starts", "lengths")}
_OF_CUT_ROWS = {"rows": "joined_rows", "firsts": "joined_starts", "splits": "joined_lengths"}
_PIECES = _OF_SPLITS | _OF_CUT_ROWS
"""Fields of `pallas_kernels.schedule.Pieces`, whose groups are joined."""
FIELDS = (*_WHOLE, *_PER_GROUP, *_POINTERS, *_PIECES)
"""Arrays of `jaxgraph.ops.core.edges.RowSplits`."""


def longest_row(edges: EdgeSet, side: str) -> int:
    """The largest number of edges of a row; rows that no kernel splits count as equally long."""
    several = edges.lengths
    return max(math.ceil(x.longer * max(SHORTEST, getattr(x, side).longest)) for x in several)


def compare(manifest: Manifest, pad_to: Manifest) -> dict[str, tuple[int, int]]:
    """Compares the longest rows of a graph with the room of other shapes."""
    return {
        f"{end}: edges of a row": (
            longest_row(edges, side),
            longest_row(pad_to.edge_sets[edges.name], side),
        )
        for edges, side, end in orientations(manifest.edge_sets.values())
        if not edges.leaves
    }


def shapes(listed: Shapes, sets: Iterable[EdgeSet]) -> Shapes:
    """Shapes and dtypes of the arrays that `arrays` makes."""
    found: Shapes = {}
    for edges, side, prefix in orientations(sets):
        (*lead, pointers), integer = listed[f"{prefix}/compressed_ptr"]
        rows, slots = (listed[f"{prefix}/{x}"][0][-1] for x in ("compressed_rows", "neighbors"))
        splits, groups = most_pieces(slots, longest_row(edges, side)), pointers - 1
        sizes = dict.fromkeys(_PER_GROUP, groups) | dict.fromkeys(_POINTERS, pointers)
        # All rows of the first group, and those with edges of the others.
        own = edges.own_rows(side)
        sizes |= dict.fromkeys(_WHOLE, max(rows, own) if groups == 1 else rows + own)
        for field, size in (sizes | dict.fromkeys(_PIECES, splits)).items():
            found[f"{prefix}/cut/{field}"] = ((*lead, size), integer)
    return found


def arrays(part: Arrays, placed: Shapes, sets: Iterable[EdgeSet]) -> Arrays:
    """Orders the rows of every group of a part, and splits long ones."""

    def make(edges: EdgeSet, side: str, tables: Arrays) -> Arrays:
        prefix = edges.prefixes[side]
        most, of_first = longest_row(edges, side), edges.own_rows(side)
        lengths = np.diff(tables["compressed_starts"][: tables["compressed_ptr"][-1] + 1])
        if lengths.max(initial=0) > most:
            raise part_error(
                f"{prefix}/compressed_starts has a row of {lengths.max()} edges; expected at most "
                f"the manifest's {most}"
            )
        made = split_rows(tables, lengths, of_first)
        return {f"{prefix}/cut/{field}": values for field, values in made.items()}

    return by_orientation(part, placed, sets, make)


def split_rows(tables: Arrays, lengths: np.ndarray, of_first: int) -> Arrays:
    """Orders the rows of every group of an orientation, and splits long ones."""
    pointers, rows, starts = (tables[f"compressed_{x}"] for x in ("ptr", "rows", "starts"))
    longest = longest_piece(len(tables["neighbors"]), int(lengths.max(initial=0)))
    # The first group has its rows without edges last.
    with_edges, groups = pointers[1], []
    empty = np.setdiff1d(np.arange(of_first), rows[:with_edges], assume_unique=True)
    whole_ptr = pointers + np.where(np.arange(len(pointers)) > 0, len(empty), 0)
    whole = np.zeros((len(_WHOLE), whole_ptr[-1]), np.int32)
    whole[0, with_edges : with_edges + len(empty)] = empty
    for first, (start, stop) in zip(whole_ptr, itertools.pairwise(pointers), strict=False):
        order = start + np.argsort(-lengths[start:stop], kind="stable")
        ordered = (rows[order], starts[order], lengths[order])
        whole[:, first : first + stop - start] = ordered
        groups.append(cut_rows(*ordered, longest))
    return {"whole_ptr": whole_ptr, **dict(zip(_WHOLE, whole, strict=True)), **_tables(groups)}


def _tables(groups: list[Pieces]) -> Arrays:
    cut = [len(each.joined_rows) for each in groups]
    return {
        "counts": np.asarray(cut),
        "longest": np.asarray([each.lengths.max(initial=0) for each in groups]),
        "split_ptr": np.cumsum([0, *(len(each.rows) for each in groups)]),
        "row_ptr": np.cumsum([0, *cut]),
        **{x: np.concatenate([getattr(g, of) for g in groups]) for x, of in _PIECES.items()},
    }
