"""Checks every index of a part once on the host: kernels access memory at indices unchecked.

A source of parts may be a folder or another program. Arrays derived from those that its manifest
lists need no check.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxgraph.layout.manifest import Arrays, Manifest
from jaxgraph.layout.schema import SIDES, EdgeSet, orientations


def part_error(fault: str) -> ValueError:
    """Makes the error of a part whose arrays do not fit its manifest, with the remedy."""
    return ValueError(
        f"{fault}. The parts were damaged, or are not those of this manifest: make them again from "
        "the graph, with jaxgraph.parallel.shard(graph, partition, mesh), or correct what "
        "part(index) of your own source returns"
    )


def check_indices(arrays: Arrays, manifest: Manifest, index: int) -> None:
    """Checks every index of a part."""
    where, fields = f"part {index}: ", manifest.fields
    for name, field in sorted(fields.items()):
        if field.stop is not None:
            _check_below(where + name, arrays[name], field.stop, field.least)
    for name, field in fields.items():
        if field.points_into is not None:
            _check_pointers(where + name, arrays[name], len(arrays[field.points_into]))
    for edges, side, prefix in orientations(manifest.edge_sets.values()):
        (other,) = set(SIDES) - {side}
        for tables in tables_of(arrays, edges, side):
            _check_orientation(tables, where + prefix, edges.table(side), edges.table(other))


def tables_of(arrays: Arrays, edges: EdgeSet, side: str) -> list[Arrays]:
    """The tables of an orientation by their own names; those of edges on columns for each chunk."""
    start = f"{edges.prefixes[side]}/"
    found = {name.removeprefix(start): x for name, x in arrays.items() if name.startswith(start)}
    if edges.chunks is None:
        return [found]
    return [{name: x[chunk] for name, x in found.items()} for chunk in range(edges.chunks)]


def _check_orientation(
    tables: Arrays, what: str, own: tuple[int, int], other: tuple[int, int]
) -> None:
    pointers, rows, starts = (tables[f"compressed_{name}"] for name in ("ptr", "rows", "starts"))
    _check_pointers(f"{what}/compressed_ptr", pointers, min(len(rows), len(starts) - 1))
    starts = starts[: pointers[-1] + 1]
    _check_pointers(f"{what}/compressed_starts", starts, len(tables["neighbors"]))
    splits = {"compressed_rows": (pointers[1], own), "neighbors": (starts[pointers[1]], other)}
    for name, (split, table) in splits.items():
        # Vector loads extend past the last edge and the last row, into the padding.
        values = tables[name]
        for some, stop in zip((values[:split], values[split:]), table, strict=True):
            _check_below(f"{what}/{name}", some, max(stop, 1), 0)
    if "edge_ids" in tables:
        _check_below(f"{what}/edge_ids", tables["edge_ids"], max(int(starts[-1]), 1), 0)


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
