"""Checks every index of a part once on the host: kernels access memory at indices unchecked.

A source of parts may be a folder or another program. The arrays that its manifest lists are
compared with the sizes of the manifest and with each other, in one pass over each array of edges.
Arrays derived from them need no check.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from jaxgraph.layout.manifest import FEATURES, Arrays, Manifest

__all__ = ["check_indices", "check_stored_integers", "part_error"]


def part_error(fault: str) -> ValueError:
    """Makes the error of a part whose arrays do not fit its manifest, with the remedy.

    Args:
      fault: the array that is wrong, and what was expected.

    Returns:
      The error.
    """
    return ValueError(
        f"{fault}. The parts were damaged, or are not those of this manifest: make them again from "
        "the graph, with jaxgraph.parallel.shard(graph, partition, mesh), or correct what "
        "part(index) of your own source returns"
    )


def check_stored_integers(what: str, values: np.ndarray, dtype: np.dtype) -> None:
    """Checks that integers fit the dtype in which a device stores them.

    Args:
      what: the array, for the message.
      values: the integers.
      dtype: the type.

    Raises:
      ValueError: it cannot hold all of them.
    """
    if dtype.kind not in "iu" or values.dtype.kind not in "iu" or not values.size:
        return
    if not np.can_cast(values.dtype, dtype, "safe"):
        limits = np.iinfo(dtype)
        _check_range(what, int(values.min()), int(values.max()), limits.min, limits.max + 1)


def check_indices(arrays: Arrays, manifest: Manifest, index: int) -> None:
    """Checks every index of a part.

    Args:
      arrays: those of the part that its manifest lists, padded.
      manifest: the sizes that all parts agree on.
      index: which part.

    Raises:
      ValueError: an index points outside of its table, or pointers do not ascend.
    """
    check = _Check(arrays, f"part {index}: ")
    counts, rows = manifest.counts, manifest.node_rows
    check.all_below("node_ids", 2**31 if counts is None else counts.num_nodes)
    if "labels" in arrays and arrays["labels"].ndim == 1:
        check.all_below("labels", manifest.num_classes, least=-1)
    if manifest.num_edge_types and "edge_type" in arrays:
        check.all_below("edge_type", manifest.num_edge_types)
    senders, receivers = _halo_tables(manifest, index)
    _check_edges(check, "incoming", (rows,) * len(senders), senders)
    check.pointers("incoming/sender_ptr", len(arrays["incoming/sender_ids"]))
    if "outgoing/receiver_ptr" in arrays:
        _check_edges(check, "outgoing", receivers, (rows,) * len(receivers))
        check.pointers("outgoing/receiver_ptr", len(arrays["outgoing/receiver_ids"]))
    if manifest.features is not None:
        ends = [(manifest.table_rows(f"{FEATURES}/by_{x}"),) for x in ("receiver", "sender")]
        _check_features(check, *ends)
    for name, units in _messages(manifest, index).items():
        if f"{name}/rows" in arrays:
            _check_halo(check, name, rows, units, manifest.halo_unit)
    if manifest.columns is not None:
        _check_columns(arrays, manifest, f"part {index}: ")


def _halo_tables(manifest: Manifest, part: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The rows of the senders' table of each incoming group, and of the outgoing receivers' tables.

    Step g on the ring of parts brings the senders of part p - g. Outgoing group g ends in part
    p + g + 1.
    """
    parts, unit = manifest.num_parts, manifest.halo_unit
    if manifest.mode == "domain" or parts == 1:
        return (manifest.sender_rows,), ()
    brought = [unit * manifest.halo_units[part][(part - g) % parts] for g in range(1, parts)]
    answered = [unit * manifest.reach_units[(part + g) % parts][part] for g in range(1, parts)]
    return (manifest.node_rows, *brought), tuple(answered)


def _messages(manifest: Manifest, part: int) -> dict[str, list[tuple[int, int]]]:
    """The units of the message of a part at each step, and of the largest message of all parts."""
    steps, parts = range(1, manifest.num_parts), manifest.num_parts
    sent, answered = manifest.halo_units, manifest.reach_units
    largest = [max(max(row) for row in units) for units in (sent, answered)]
    return {
        "send": [(sent[(part + g) % parts][part], largest[0]) for g in steps],
        "reach": [(answered[part][(part - g) % parts], largest[1]) for g in steps],
    }


def _check_edges(
    check: _Check,
    prefix: str,
    receivers: tuple[int, ...],
    senders: tuple[int, ...],
) -> None:
    """Checks both orientations of edges; `receivers` and `senders` count table rows by group."""
    by_receiver, by_sender = f"{prefix}/by_receiver", f"{prefix}/by_sender"
    edges = [
        _check_orientation(check, by_receiver, receivers, senders),
        _check_orientation(check, by_sender, senders, receivers),
    ]
    if edges[0] != edges[1]:
        raise part_error(
            f"{check.where}{prefix} has {edges[0]} edges by receiver and {edges[1]} by sender"
        )
    check.all_below(f"{by_sender}/edge_ids", max(edges[0], 1))


def _check_features(check: _Check, rows: tuple[int], columns: tuple[int]) -> None:
    """Checks the indices of non-zeros by row and by column, and that both have the same count."""
    counts = (
        _check_orientation(check, f"{FEATURES}/by_receiver", rows, columns),
        _check_orientation(check, f"{FEATURES}/by_sender", columns, rows),
    )
    if counts[0] != counts[1]:
        raise part_error(
            f"{check.where}{FEATURES} has {counts[0]} non-zeros by row and {counts[1]} by column"
        )


def _check_orientation(
    check: _Check, prefix: str, own_rows: tuple[int, ...], other_rows: tuple[int, ...]
) -> int:
    """Checks one orientation and returns its edges.

    Args:
      check: of the arrays.
      prefix: the start of their names.
      own_rows: rows of the table of the orientation's own rows, in each group.
      other_rows: rows of the table at the other end of its edges.
    """
    arrays = check.arrays
    rows_of_group = check.pointers(
        f"{prefix}/compressed_ptr", len(arrays[f"{prefix}/compressed_rows"]), len(own_rows) + 1
    )
    starts = arrays[f"{prefix}/compressed_starts"][: rows_of_group[-1] + 1]
    if len(starts) != rows_of_group[-1] + 1:
        raise part_error(
            f"{check.where}{prefix}/compressed_starts has {len(starts)} entries; expected one for "
            f"each of {rows_of_group[-1]} rows, and the end"
        )
    check.ascending(f"{prefix}/compressed_starts", starts, len(arrays[f"{prefix}/neighbors"]))
    for field, bounds, rows in (
        ("compressed_rows", rows_of_group, own_rows),
        ("neighbors", starts[rows_of_group], other_rows),
    ):
        # Vector loads extend past the last edge and the last row, into the padding.
        check.all_below(f"{prefix}/{field}", max((*rows, 1)))
        if len(set(rows)) > 1:
            for some, stop in zip(itertools.pairwise(bounds), rows, strict=True):
                check.below(f"{prefix}/{field}", slice(*some), stop)
    return int(starts[-1])


def _check_halo(
    check: _Check, name: str, rows: int, units: list[tuple[int, int]], unit: int
) -> None:
    room = len(check.arrays[f"{name}/rows"])
    of_step = check.pointers(f"{name}/ptr", room)
    check.all_below(f"{name}/rows", rows)
    steps = len(check.arrays[f"{name}/position"])
    if steps != len(of_step) - 1:
        raise part_error(
            f"{check.where}{name}/position has {steps} steps; expected {len(of_step) - 1}"
        )
    for step, ((first, stop), (own, largest)) in enumerate(
        zip(itertools.pairwise(of_step), units, strict=True)
    ):
        # A device slices the largest message from the first row on.
        if stop - first > unit * own or first + unit * largest > room:
            raise part_error(
                f"{check.where}{name}/ptr has rows {first} to {stop} of {room} at step {step + 1}; "
                f"expected at most {unit * own}, and room for {unit * largest} from there"
            )
        place = check.arrays[f"{name}/position"][step]
        _check_array(f"{check.where}{name}/position", place, max(int(stop - first), 1), -1)


def _check_columns(arrays: Arrays, manifest: Manifest, where: str) -> None:
    schedule = manifest.columns
    assert schedule is not None
    whole = _Check(arrays, where)
    whole.all_below(
        "columns/node_ids", 2**31 if manifest.counts is None else manifest.counts.num_nodes
    )
    whole.all_below("columns/offset", schedule.num_features + 1)
    names = [name for name in arrays if name.startswith("columns/by_")]
    ends = [(manifest.table_rows(f"columns/by_{end}"),) for end in ("receiver", "sender")]
    for chunk in range(schedule.chunks):
        check = _Check({name: arrays[name][chunk] for name in names}, f"{where}chunk {chunk}: ")
        _check_edges(check, "columns", *ends)


class _Check:
    """Comparisons of arrays of a part.

    Args:
      arrays: by name.
      where: the start of messages.
    """

    def __init__(self, arrays: Arrays, where: str) -> None:
        self.arrays = arrays
        self.where = where

    def all_below(self, name: str, stop: int, least: int = 0) -> None:
        """Checks all values of an array."""
        _check_array(self.where + name, self.arrays[name], stop, least)

    def below(self, name: str, some: slice, stop: int) -> None:
        """Checks some values of an array."""
        _check_array(self.where + name, self.arrays[name][some], stop, 0)

    def pointers(self, name: str, most: int, size: int | None = None) -> np.ndarray:
        """Checks pointers into an array of `most` entries, and returns them."""
        pointers = self.arrays[name]
        if size is not None and len(pointers) != size:
            raise part_error(f"{self.where}{name} has {len(pointers)} entries; expected {size}")
        self.ascending(name, pointers, most)
        return pointers

    def ascending(self, name: str, pointers: np.ndarray, most: int) -> None:
        """Checks that pointers begin at 0, ascend, and end at `most` at most."""
        if len(pointers) and (
            pointers[0] != 0 or pointers[-1] > most or (pointers[1:] < pointers[:-1]).any()
        ):
            raise part_error(
                f"{self.where}{name} runs from {pointers[0]} to {pointers[-1]}; expected pointers "
                f"that ascend from 0 to at most {most}"
            )


def _check_array(what: str, values: np.ndarray, stop: int, least: int) -> None:
    if not values.size:
        return
    # One pass: as unsigned integers, negative numbers are the largest.
    if least == 0 and values.dtype == np.int32 and values.flags.c_contiguous:
        largest: Any = values.view(np.uint32).max()
        if largest < stop:
            return
    _check_range(what, int(values.min()), int(values.max()), least, stop)


def _check_range(what: str, smallest: int, largest: int, least: int, stop: int) -> None:
    if smallest < least or largest >= stop:
        raise part_error(
            f"{what} holds indices from {smallest} to {largest}; expected {least} to {stop - 1}"
        )
