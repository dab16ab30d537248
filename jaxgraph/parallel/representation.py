"""The `repr` of a sharded graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax

from jaxgraph.layout.schema import EDGE_DATA
from jaxgraph.layout.typed_manifest import TypedManifest
from jaxgraph.parallel.feature_protocol import plain_features, plain_of

_MASKS = ("train_mask", "val_mask", "test_mask")


def representation(sharded: Any) -> str:
    """Describes a sharded graph in at most ten lines; computes nothing."""
    manifest, shards = sharded.shards.manifest, sharded.shards
    if isinstance(manifest, TypedManifest):
        return _typed(sharded, manifest)
    graph, streamed = "of unknown size", sharded.is_streamed
    # Of a streamed graph, `shards` has the shapes of one part on each device.
    size = _bytes_per_device(shards) * (manifest.num_parts if streamed else 1)
    if sharded.counts is not None:
        graph = f"num_nodes={sharded.counts.num_nodes}, num_edges={sharded.counts.num_edges}"
    mode = manifest.mode if manifest.columns is None else "p3"
    mode = "stream" if streamed else mode
    rest = "" if manifest.columns is None else f", rest={manifest.mode!r}"
    first = f"ShardedGraph({graph}, mode={mode!r}{rest}, num_parts={manifest.num_parts})"
    rows = {
        "devices": f"{sharded.mesh.size} x {sharded.mesh.devices.flat[0].platform}, "
        f"axis {sharded.axis!r}, {manifest.node_rows} rows per part, "
        f"kernels {shards.implementation!r}",
        "features": _features(shards.nodes),
        "labels": _labels(sharded),
        "masks": ", ".join(name for name in _MASKS if getattr(shards, name) is not None),
        "edges": _arrays({name: getattr(shards, name) for name in EDGE_DATA}),
        "node_data": _arrays(shards.node_data),
        "edge_data": _arrays(shards.edge_data),
        "memory": f"{size / 2**20:,.2f} MiB {'on the host' if streamed else 'per device'}",
    }
    return "\n".join([first, *(f"  {name:<9} {text}" for name, text in rows.items() if text)])


def _typed(sharded: Any, manifest: TypedManifest) -> str:
    """Describes a graph of several tables and relations, a line for each."""
    shards, counts, lines = sharded.shards, sharded.counts, []
    size = (
        f"num_nodes={counts.num_nodes}, num_edges={counts.num_edges}"
        if counts
        else "of unknown size"
    )
    for name, member in manifest.tables:
        if name in manifest.derived:
            continue
        table = shards.tables[name]
        arrays = {"labels": table.labels, **{mask: getattr(table, mask) for mask in _MASKS}}
        data = _arrays(arrays | dict(table.node_data))
        lines.append(f"{name}: {member.node_rows} rows per part, features {_features(table.nodes)}")
        lines[-1] += f", {data}" if data else ""
    for name, ends in manifest.ends:
        if name in manifest.derived:
            continue
        edges = shards.edge_arrays[name]
        data = _arrays({each: getattr(edges, each) for each in EDGE_DATA} | dict(edges.edge_data))
        lines.append(f"{name}: {ends.senders} -> {ends.receivers}" + (f", {data}" if data else ""))
    if manifest.flow is not None:
        layers, splits = len(manifest.flow.relations), ", ".join(manifest.flow.splits)
        lines.append(f"message flow of {layers} layers, to the nodes of {splits}")
    lines.append(f"memory    {_bytes_per_device(shards) / 2**20:,.2f} MiB per device")
    first = f"ShardedGraph({size}, mode={manifest.mode!r}, num_parts={manifest.num_parts})"
    return "\n  ".join([first, *lines])


def _features(nodes: Any) -> str:
    """Describes the width and type of the features, in rows or columns."""
    if nodes is None:
        return "none"
    features = plain_of(nodes)
    text = f"{features.width} x {features.dtype}"
    if features.is_sparse:
        return f"{text}, non-zeros alone"
    if features.is_split:
        return f"{text}, {features.columns} columns per device"
    return text if nodes is plain_features(nodes) else f"{text} ({type(nodes).__name__})"


def _labels(sharded: Any) -> str:
    if sharded.shards.labels is None:
        return ""
    manifest = sharded.shards.manifest
    return f"{manifest.num_classes} {'labels per node' if manifest.multilabel else 'classes'}"


def _arrays(arrays: Mapping[str, Any]) -> str:
    """Names, types, and the shapes of a row or slot."""
    found = []
    for name, array in arrays.items():
        if array is not None:
            shape = list(getattr(array, "shape", ()))[2:]
            text = f"{name} {getattr(array, 'dtype', type(array).__name__)}"
            found.append(f"{text} {shape}" if shape else text)
    return ", ".join(found)


def _bytes_per_device(shards: Any) -> int:
    """Of all arrays, whose first axis is one of devices."""
    leaves = [leaf for leaf in jax.tree.leaves(shards) if getattr(leaf, "shape", ())]
    return sum(math.prod(leaf.shape[1:]) * leaf.dtype.itemsize for leaf in leaves)
