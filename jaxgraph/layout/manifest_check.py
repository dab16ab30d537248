"""Checks of a manifest that was read from a file: its entries fit each other.

A manifest that passes makes no array of another size than its parts need, and schedules no exchange
that its parts have no room for; the indices of the parts are checked by `index_check`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from jaxgraph.layout.manifest import (
    EDGE_DATA,
    EDGE_PREFIX,
    FEATURES,
    MODES,
    NODE_PREFIX,
    TOPOLOGIES,
    VALUES,
    ColumnSchedule,
    Manifest,
)
from jaxgraph.layout.row_lengths import EdgeLengths, RowLengths

__all__ = ["DTYPE", "check_manifest"]

DTYPE = re.compile(r"\|b1|\|[iu]1|<[iu][248]|<f[248]")
"""The dtypes of arrays on disk: little-endian numbers of at most 64 bits, and bools."""
_BY_SENDER = ("neighbors", "compressed_ptr", "compressed_rows", "compressed_starts", "edge_ids")
_NODES = ("node_ids", "node_mask", "in_degree", "missing_self_loop")
_FURTHER_NODES = ("nodes", "labels", "train_mask", "val_mask", "test_mask", "graph_ids")


def check_manifest(manifest: Manifest) -> None:
    """Checks that the entries of a manifest fit each other.

    Args:
      manifest: of a source in a folder; its types are right.

    Raises:
      ValueError: an entry is out of its range or does not fit another one; the message names it.
    """
    parts = manifest.num_parts
    _expect("mode", manifest.mode in MODES, manifest.mode, f"one of {', '.join(MODES)}")
    _expect("num_parts", parts >= 1, parts, "at least 1")
    _expect("node_rows", manifest.node_rows >= 1, manifest.node_rows, "at least 1")
    _expect("halo_unit", manifest.halo_unit >= 1, manifest.halo_unit, "at least 1")
    _expect(
        "boundary_rows",
        manifest.boundary_rows <= manifest.node_rows,
        manifest.boundary_rows,
        f"at most node_rows, {manifest.node_rows}",
    )
    for name in ("halo_units", "reach_units"):
        sizes = [len(row) for row in getattr(manifest, name)]
        fits = len(sizes) == parts and set(sizes) == {parts}
        _expect(name, fits, f"of rows of {sizes}", f"{parts} rows of {parts}")
        own = [row[part] for part, row in enumerate(getattr(manifest, name))]
        _expect(name, not any(own), f"{own} on its diagonal", "0: a part sends itself nothing")
    if manifest.mode == "domain":
        sums = sum(map(sum, manifest.reach_units))
        _expect("reach_units", not sums, "not 0", "0 in mode domain")
    _expect("counts", manifest.counts is not None, None, "the counts of one graph")
    _check_names(manifest)
    if manifest.columns is not None:
        _check_columns(manifest, manifest.columns)
    _check_lengths(manifest)
    _check_shapes(manifest)


def _expect(name: str, fits: bool, found: object, expected: str) -> None:
    if not fits:
        raise ValueError(f"manifest.{name} is {found}; expected {expected}")


def _check_names(manifest: Manifest) -> None:
    listed = [name for name, _, _ in manifest.shapes]
    _expect("shapes", listed == sorted(set(listed)), "not sorted by name", "each name once")
    names = set(listed)
    wanted, optional = set(_NODES) | set(_tables(manifest)), set(_FURTHER_NODES)
    if "edge_weight" in names:
        wanted.add("weighted_in_degree")
    if manifest.columns is not None:
        on_edges = names & set(EDGE_DATA)
        of_nodes = names & {*_NODES, "weighted_in_degree"}
        wanted |= {f"columns/{name}" for name in (*on_edges, *of_nodes, "offset")}
    if (manifest.features is None) == (VALUES in names) or {VALUES, "nodes"} <= names:
        raise ValueError("manifest.features does not fit the arrays of manifest.shapes")
    repeated = {f"{end}/repetition" for end in ("incoming", "outgoing")}
    if names & repeated:
        wanted |= repeated if manifest.has_outgoing else {"incoming/repetition"}
    if lacking := sorted(wanted - names):
        raise ValueError(f"manifest.shapes lacks {', '.join(lacking)}")
    unknown = names - wanted - optional - set(EDGE_DATA)
    unknown = [x for x in sorted(unknown) if not x.startswith((NODE_PREFIX, EDGE_PREFIX))]
    if unknown:
        raise ValueError(f"manifest.shapes lists the unknown {', '.join(unknown)}")


def _tables(manifest: Manifest) -> Iterator[str]:
    """The arrays of edges and halos that every part of such a manifest has."""
    yield from ("incoming/sender_ids", "incoming/sender_ptr")
    edges, halos = ["incoming"], []
    if manifest.num_parts > 1:
        halos = ["send"]
    if manifest.has_outgoing:
        yield from ("outgoing/receiver_ids", "outgoing/receiver_ptr")
        edges, halos = ["incoming", "outgoing"], ["send", "reach"]
    if manifest.columns is not None:
        edges.append("columns")
    if manifest.features is not None:
        edges.append(FEATURES)
        yield VALUES
    for name in edges:
        yield from (f"{name}/by_receiver/{field}" for field in _BY_SENDER[:-1])
        fields = _BY_SENDER[:-1] if name == FEATURES else _BY_SENDER
        yield from (f"{name}/by_sender/{field}" for field in fields)
    for name in halos:
        yield from (f"{name}/{field}" for field in ("rows", "ptr", "position"))


def _check_columns(manifest: Manifest, schedule: ColumnSchedule) -> None:
    _expect(
        "columns.topology",
        schedule.topology in TOPOLOGIES,
        schedule.topology,
        f"one of {', '.join(TOPOLOGIES)}",
    )
    groups, replicas = schedule.groups, schedule.replicas
    _expect(
        "columns.groups",
        groups >= 1 and groups * replicas == manifest.num_parts,
        f"{groups} of {replicas} replicas",
        f"{manifest.num_parts} together",
    )
    _expect(
        "columns.num_features",
        schedule.num_features >= groups,
        schedule.num_features,
        f"at least one for each of {groups} groups",
    )
    chunks = schedule.chunks
    fits = chunks >= 1 and manifest.node_rows % chunks == 0
    _expect("columns.chunks", fits, chunks, f"a divisor of {manifest.node_rows} rows")


def _check_lengths(manifest: Manifest) -> None:
    _expect("lengths", len(manifest.lengths) == 1, len(manifest.lengths), "those of one graph")
    parts, mode, schedule = manifest.num_parts, manifest.mode, manifest.columns
    groups = (parts, parts) if mode == "sar" else (1, 1)
    edges = manifest.counts.num_edges if manifest.counts is not None else None
    _check_edges("lengths[0]", manifest.lengths[0], parts, groups, edges)
    slices = parts
    if schedule is not None:
        slices = schedule.groups
        holders = schedule.replicas if schedule.topology == "replicated" else parts
        tables = holders * schedule.chunks
        _check_edges("columns.lengths", schedule.lengths, tables, (1, 1), edges)
    if manifest.features is not None:
        of_features = manifest.features.lengths
        _expect("features.lengths", len(of_features) == 1, len(of_features), "those of one graph")
        _check_edges("features.lengths[0]", of_features[0], slices, (1, 1), None)
        if schedule is not None:
            width = manifest.features.num_columns
            _expect("features.num_columns", width == schedule.width, width, f"{schedule.width}")


def _check_edges(
    name: str, lengths: EdgeLengths, tables: int, groups: tuple[int, int], edges: int | None
) -> None:
    exact = lengths.more == lengths.longer == 1
    _expect(name, exact, f"of factors {lengths.more} and {lengths.longer}", "1 for one graph")
    sums = [
        _checked_sum(f"{name}.{side}", getattr(lengths, side), tables, of_table)
        for side, of_table in zip(("by_receiver", "by_sender"), groups, strict=True)
    ]
    expected = sums[0] if edges is None else edges
    for side, found in zip(("by_receiver", "by_sender"), sums, strict=True):
        _expect(f"{name}.{side}", found == expected, f"of {found} edges", f"{expected} edges")


def _checked_sum(name: str, counts: RowLengths, tables: int, groups: int) -> int:
    """Checks one orientation, and returns its edges."""
    fits = counts.num_tables == tables and counts.groups_per_table == groups
    found = f"of {counts.num_tables} tables of {counts.groups_per_table} groups"
    _expect(name, fits, found, f"{tables} tables of {groups}")
    entries = {len(values) for values in (counts.groups, counts.lengths, counts.rows)}
    _expect(name, len(entries) == 1, f"of arrays of {sorted(entries)} entries", "equally many")
    if not len(counts.groups):
        return 0
    steps = np.diff(counts.groups)
    ascends = (steps >= 0).all() and counts.groups[-1] < tables * groups
    _expect(f"{name}.groups", bool(ascends), "not ascending", f"groups below {tables * groups}")
    falls = np.diff(counts.lengths)[steps == 0] < 0
    positive = counts.lengths.min() >= 1 and counts.rows.min() >= 1
    _expect(name, bool(falls.all() and positive), "not descending in a group", "lengths from 1")
    # Python's integers do not overflow.
    return sum(a * b for a, b in zip(counts.lengths.tolist(), counts.rows.tolist(), strict=True))


def _check_shapes(manifest: Manifest) -> None:
    rows, schedule = manifest.node_rows, manifest.columns
    all_rows, shapes = manifest.num_parts * rows, {}
    for name, shape, dtype in manifest.shapes:
        _expect(f"shapes[{name}]", DTYPE.fullmatch(dtype) is not None, dtype, "a plain dtype")
        shapes[name] = shape
        in_edges = name in EDGE_DATA or name.startswith(EDGE_PREFIX)
        if "/" in name or in_edges or (name == "nodes" and schedule is not None):
            continue
        fits = len(shape) >= 1 and shape[0] == rows
        _expect(f"shapes[{name}]", fits, list(shape), f"{rows} rows")
    exact: dict[str, tuple[int, ...]] = {
        f"{name}/position": (manifest.num_parts - 1, manifest.boundary_rows)
        for name in ("send", "reach")
        if f"{name}/rows" in shapes
    }
    exact |= {name: (rows,) for name in (*_NODES, "weighted_in_degree") if name in shapes}
    if manifest.mode == "domain":
        exact["incoming/sender_ids"] = (manifest.sender_rows,)
    if manifest.multilabel or "labels" in shapes:
        exact["labels"] = (rows, manifest.num_classes) if manifest.multilabel else (rows,)
    if schedule is not None:
        of_all = (f"columns/{name}" for name in (*_NODES, "weighted_in_degree"))
        exact |= {name: (all_rows,) for name in of_all if name in shapes}
        if "nodes" in shapes:
            exact["nodes"] = (all_rows, schedule.width)
    for name, shape in exact.items():
        found = shapes.get(name)
        _expect(f"shapes[{name}]", found == shape, found and list(found), f"{list(shape)}")
