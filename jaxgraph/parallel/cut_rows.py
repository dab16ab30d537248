"""How GPU kernels take the rows of a part, decided on the host when it is placed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxgraph.ops.core.edges import CutRows
from pallas_kernels.schedule import Pieces, cut_rows, is_spread, longest_piece, most_pieces

__all__ = ["cut_arrays", "cut_rows_at", "cut_shapes"]

Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype]]
LongestRow = Callable[[str], int]

_WHOLE = ("whole_rows", "whole_starts", "whole_lengths")
_PER_GROUP = ("counts", "longest")
_POINTERS = ("whole_ptr", "piece_ptr", "row_ptr")
_PER_PIECE = ("piece_rows", "piece_starts", "piece_lengths", "rows", "firsts", "pieces")


def cut_shapes(
    shapes: Shapes, longest_row: LongestRow
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shapes and types of the arrays that `cut_arrays` makes.

    Args:
      shapes: of the arrays of a part, by name.
      longest_row: for what the names of an orientation start with, edges of a row at most.

    Returns:
      The same for the new arrays.
    """
    found: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
    for prefix, capacity in _orientations(
        {name: shape for name, (shape, _) in shapes.items()}, longest_row
    ):
        groups = shapes[f"{prefix}/compressed_ptr"][0][0] - 1
        rows = shapes[f"{prefix}/compressed_rows"][0][0]
        sizes = dict.fromkeys(_PER_GROUP, groups) | dict.fromkeys(_POINTERS, groups + 1)
        of_first = shapes[f"{prefix}/position"][0][-1]
        sizes |= dict.fromkeys(_WHOLE, _room(groups, rows, of_first))
        for field, size in (sizes | dict.fromkeys(_PER_PIECE, capacity)).items():
            found[f"{prefix}/cut/{field}"] = ((size,), np.dtype(np.int32))
    return found


def _room(groups: int, compressed: int, of_first: int) -> int:
    """Entries for all rows of the first group, and those with edges of the others."""
    return max(compressed, of_first) if groups == 1 else compressed + of_first


def _orientations(
    shapes: Mapping[str, tuple[int, ...]], longest_row: LongestRow
) -> list[tuple[str, int]]:
    """Every orientation, and into how many pieces its rows may be cut."""
    names = [name.removesuffix("/compressed_ptr") for name in shapes if "/compressed_ptr" in name]
    return [
        (name, most_pieces(shapes[f"{name}/neighbors"][0], longest_row(name))) for name in names
    ]


def cut_arrays(part: Mapping[str, np.ndarray], longest_row: LongestRow) -> dict[str, np.ndarray]:
    """Orders the rows of every group of a part, and cuts long ones.

    Args:
      part: the arrays of a part, [1, ...] each, in their padded shapes.
      longest_row: as for `cut_shapes`.

    Returns:
      The arrays of `jaxgraph.ops.core.edges.CutRows` for every orientation, [1, ...].
    """
    arrays: dict[str, np.ndarray] = {}
    for prefix, capacity in _orientations(
        {name: x.shape[1:] for name, x in part.items()}, longest_row
    ):
        fields = ("compressed_ptr", "compressed_rows", "compressed_starts")
        pointers, rows, starts = (part[f"{prefix}/{field}"][0] for field in fields)
        degrees = np.diff(starts[: pointers[-1] + 1])
        slots = part[f"{prefix}/neighbors"].shape[1]
        longest = longest_piece(slots, int(degrees.max(initial=0)))
        groups, of_first = [], part[f"{prefix}/position"].shape[-1]
        room = _room(len(pointers) - 1, len(rows), of_first)
        whole = np.zeros((len(_WHOLE), room), np.int32)
        # Of the first group, the rows without edges stand behind the others.
        with_edges = pointers[1]
        empty = np.setdiff1d(np.arange(of_first), rows[:with_edges], assume_unique=True)
        whole[0, with_edges : with_edges + len(empty)] = empty
        whole_ptr = pointers + np.where(np.arange(len(pointers)) > 0, len(empty), 0)
        for first, (start, stop) in zip(whole_ptr, itertools.pairwise(pointers), strict=False):
            order = start + np.argsort(-degrees[start:stop], kind="stable")
            ordered = (rows[order], starts[order], degrees[order])
            whole[:, first : first + stop - start] = ordered
            groups.append(cut_rows(*ordered, longest))
        arrays[f"{prefix}/cut/whole_ptr"] = whole_ptr.astype(np.int32)[None]
        for field, values in zip(_WHOLE, whole, strict=True):
            arrays[f"{prefix}/cut/{field}"] = values[None]
        for field, values in _tables(groups, capacity).items():
            arrays[f"{prefix}/cut/{field}"] = values.astype(np.int32)[None]
    return arrays


def _tables(groups: list[Pieces], capacity: int) -> dict[str, np.ndarray]:
    def joined(name: str) -> np.ndarray:
        values = np.concatenate([getattr(each, name) for each in groups])
        return np.pad(values, (0, capacity - len(values)))

    cut = [len(each.joined_rows) for each in groups]
    return {
        "counts": np.asarray(cut),
        "longest": np.asarray([each.lengths.max(initial=0) for each in groups]),
        "piece_ptr": np.cumsum([0, *(len(each.rows) for each in groups)]),
        "piece_rows": joined("rows"),
        "piece_starts": joined("starts"),
        "piece_lengths": joined("lengths"),
        "row_ptr": np.cumsum([0, *cut]),
        "rows": joined("joined_rows"),
        "firsts": joined("joined_starts"),
        "pieces": joined("joined_lengths"),
    }


def cut_rows_at(arrays: Mapping[str, Any], prefix: str, longest: int) -> CutRows | None:
    """How kernels take the rows of an orientation, or None: nothing was made for them.

    Args:
      arrays: of all parts, by name.
      prefix: what the names of the orientation start with.
      longest: edges of a row at most.

    Returns:
      The arrays.
    """
    if f"{prefix}/cut/counts" not in arrays:
        return None
    fields = (*_WHOLE, *_PER_GROUP, *_POINTERS, *_PER_PIECE)
    found = {field: arrays[f"{prefix}/cut/{field}"] for field in fields}
    slots = arrays[f"{prefix}/neighbors"].shape[-1]
    spread = is_spread(slots, longest)
    return CutRows(**found, partials=found["piece_rows"].shape[-1], spread=spread)
