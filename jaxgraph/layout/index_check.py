"""Checks every index of a part once on the host: kernels access memory at indices unchecked.

A source of parts may be a folder or another program. Arrays derived from those that its manifest
lists need no check.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxgraph.layout.manifest import Arrays, Manifest


def part_error(fault: str) -> ValueError:
    """Makes the error of a part whose arrays do not fit its manifest, with the remedy."""
    return ValueError(
        f"{fault}. The parts were damaged, or are not those of this manifest: make them again from "
        "the graph, with jaxgraph.parallel.shard(graph, partition, mesh), or correct what "
        "part(index) of your own source returns"
    )


def check_indices(arrays: Arrays, manifest: Manifest, index: int) -> None:
    """Checks every index of a part."""
    where, rows, counts = f"part {index}: ", manifest.node_rows, manifest.counts
    nodes = 2**31 if counts is None else counts.num_nodes
    stops = {"node_ids": nodes, "columns/node_ids": nodes, "reach/rows": rows}
    stops["send/rows"] = manifest.own_sender_rows
    # A device reads a row of a message even where none arrives.
    sent, answered = max(manifest.halo_rows, 1), max(manifest.reach_rows, 1)
    stops |= {"send/position": sent, "reach/position": answered}
    if manifest.columns is not None:
        stops["columns/offset"] = manifest.columns.num_features + 1
    if manifest.num_edge_types:
        stops["edge_type"] = manifest.num_edge_types
    if not manifest.multilabel:
        stops["labels"] = manifest.num_classes
    for name in sorted(stops.keys() & arrays.keys()):
        least = -1 if name == "labels" or name.endswith("/position") else 0
        _check_below(where + name, arrays[name], stops[name], least)
    for name, most in {
        "send/ptr": "send/rows",
        "reach/ptr": "reach/rows",
        "incoming/sender_ptr": "incoming/sender_ids",
        "outgoing/receiver_ptr": "outgoing/receiver_ids",
    }.items():
        if name in arrays:
            _check_pointers(where + name, arrays[name], len(arrays[most]))
    leaving = {"outgoing/by_receiver": answered, "outgoing/by_sender": manifest.own_sender_rows}
    others = {"incoming/by_sender": sent, "outgoing/by_receiver": answered}
    for name in arrays:
        if name.endswith("by_receiver/neighbors"):
            edges = name.removesuffix("/by_receiver/neighbors")
            ends = (f"{edges}/by_receiver", f"{edges}/by_sender")
            tables = []
            for end in ends:
                first = leaving.get(end)
                first = manifest.table_rows(end) if first is None else first
                tables.append((first, others.get(end, first)))
            _check_edges(arrays, where, ends, tables)


def _check_edges(
    arrays: Arrays, where: str, ends: tuple[str, str], tables: list[tuple[int, int]]
) -> None:
    """Checks both orientations; `tables` counts the rows of the first group's and of the others."""
    for end, (own, other) in zip(ends, (tables, tables[::-1]), strict=True):
        names = [name for name in arrays if name.startswith(f"{end}/")]
        # Edges among columns have a leading axis of chunks.
        chunks = [np.atleast_2d(arrays[name]) for name in names]
        for values in zip(*chunks, strict=True):
            _check_orientation(dict(zip(names, values, strict=True)), where, end, own, other)


def _check_orientation(
    arrays: Arrays, where: str, end: str, own: tuple[int, int], other: tuple[int, int]
) -> None:
    names = {
        name: f"{end}/{name}"
        for name in ("neighbors", "compressed_ptr", "compressed_rows", "compressed_starts")
    }
    neighbors, pointers, rows, starts = (arrays[name] for name in names.values())
    _check_pointers(where + names["compressed_ptr"], pointers, min(len(rows), len(starts) - 1))
    starts = starts[: pointers[-1] + 1]
    _check_pointers(where + names["compressed_starts"], starts, len(neighbors))
    first = pointers[1]
    for name, values, split, table in (
        ("compressed_rows", rows, first, own),
        ("neighbors", neighbors, starts[first], other),
    ):
        # Vector loads extend past the last edge and the last row, into the padding.
        for some, stop in zip((values[:split], values[split:]), table, strict=True):
            _check_below(where + names[name], some, max(stop, 1), 0)
    if f"{end}/edge_ids" in arrays:
        edges = max(int(starts[-1]), 1)
        _check_below(f"{where}{end}/edge_ids", arrays[f"{end}/edge_ids"], edges, 0)


def _check_pointers(what: str, pointers: np.ndarray, most: int) -> None:
    if len(pointers) and (
        pointers[0] != 0 or pointers[-1] > most or (pointers[1:] < pointers[:-1]).any()
    ):
        raise part_error(
            f"{what} runs from {pointers[0]} to {pointers[-1]}; expected pointers that ascend from "
            f"0 to at most {most}"
        )


def _check_below(what: str, values: np.ndarray, stop: int, least: int) -> None:
    if not values.size:
        return
    # One pass: as unsigned integers, negative numbers are the largest.
    if least == 0 and values.dtype == np.int32 and values.flags.c_contiguous:
        largest: Any = values.view(np.uint32).max()
        if largest < stop:
            return
    if values.min() < least or values.max() >= stop:
        raise part_error(
            f"{what} holds indices from {values.min()} to {values.max()}; expected {least} to "
            f"{stop - 1}"
        )
