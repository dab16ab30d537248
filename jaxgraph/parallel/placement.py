"""Parts of a graph placed on the devices of a mesh."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jax.sharding import Mesh

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph, kind_of
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.merged_parts import merge_partition, merge_parts
from jaxgraph.layout.part_sizes import PartSizes, sized_tables
from jaxgraph.layout.shard_tables import PartSource, tabulate
from jaxgraph.layout.typed_manifest import TypedManifest
from jaxgraph.parallel.column_placement import column_request
from jaxgraph.parallel.named_data import check_held, storing_given
from jaxgraph.parallel.sharded_graph import (
    ShardedGraph,
    check_devices,
    floating_type,
    on_mesh,
    storing_degrees,
)
from jaxgraph.parallel.streaming.graph import streamed_graph
from jaxgraph.parallel.typed_placement import refuse_merging, refuse_streaming, tabulated
from jaxgraph.partition.assignment import Partition
from jaxgraph.typed_graph import TypedGraph


class Planned(Protocol):
    """A plan that says how a graph is to be split."""

    def shard_options(self) -> dict[str, Any]:
        """mode, prefetch, rest, topology and chunks, as `shard` takes them."""
        ...


def shard(
    graph: Graph | TypedGraph,
    partition: Partition | Mapping[str, Partition] | None,
    mesh: Mesh,
    mode: str = "sar",
    *,
    prefetch: bool = False,
    pad_to: ShardedGraph | Manifest | PartSizes | None = None,
    implementation: str | None = None,
    node_dtype: Any = None,
    rest: str | None = None,
    topology: str | None = None,
    chunks: int | None = None,
    feature_budget: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    plan: Planned | None = None,
    message_flow: int | None = None,
) -> ShardedGraph:
    """Splits a graph over the devices of a mesh.

    Args:
      graph: the graph. Modes of a `jaxgraph.TypedGraph` are "sar" and "domain".
      partition: a part for every node, with as many parts as the mesh has devices, or a multiple:
        consecutive parts are then merged. A `TypedGraph` needs a partition for each set, by its
        name, with one part for each device. None: one part, on a mesh of one device.
      mesh: a mesh with one axis, or of hosts and their devices, as `make_mesh(hosts=...)` makes
        it: mode "sar" then visits the parts of the own host first.
      mode: the schedule: "sar" fetches one remote part at a time and saves none, "domain" exchanges
        all halos at once and saves what autodiff saves, "p3" splits features by column: the first
        layer moves activations, never features, and the other layers run by `rest`; "stream" keeps
        all parts on the host, and each device has one at a time: a multiple of its devices, and
        graphs larger than they are.
      prefetch: in mode "sar", also as `rest`, fetch the next part while the current one is
        aggregated.
      pad_to: a sharded graph, or the result of `common_shapes`, whose shapes the result takes on,
        so that compiled programs fit both. If it has no padding, only a graph with as many nodes
        fits. A graph without its labels or masks gets them: no label, and masks of no node. Or
        `PartSizes`, from which all shapes follow: they need no graph that is known before.
      implementation: what reduces messages: "mosaic_gpu", "cpu" or "xla"; None: the fastest that
        the mesh's devices can run. Your own messages use it where they are element-wise and summed
        or averaged; all others use "xla".
      node_dtype: floating type in which devices hold node features, such as that of the model that
        reads them; None: that of the graph, or of `pad_to`.
      rest: in mode "p3", the schedule after the first layer, "domain" (None) or "sar".
      topology: in mode "p3", where the edges of the first layer are: "replicated" (None), on every
        device, or "pushed", each on one device, which sends it when needed.
      chunks: in mode "p3", number of chunks of the rows of a part; partial activations of all nodes
        are computed and reduced chunk by chunk. None: 1.
      feature_budget: in mode "p3", bytes of feature columns and edges for the first layer that a
        device may hold. Features are cut into as few slices as fit, each on several devices: the
        graph's mesh then has two axes. None: a slice for every device.
      folder: in mode "stream", where parts and activations wait, in files without names that end
        with the process; None: the host's memory.
      plan: a plan of `jaxgraph.planner.choose`, which says mode, prefetch, rest, topology and
        chunks; none of them is given with it.
      message_flow: the number of layers of a model that read edges. Training then computes in each
        of them only the rows that the loss of a training node needs, and evaluation, where that is
        cheaper for both together, those of all splits; loss, gradients and metrics stay the same.
        Devices also hold the edges that each layer needs. In modes "sar" and "domain". None:
        layers compute all nodes, as inference always does.

    Returns:
      The sharded graph.

    Raises:
      ValueError: the partition does not fit the graph or the mesh, the mode or the implementation
        is unknown, the graph does not fit into `pad_to`, it has no features to hold in
        `node_dtype`, an option does not belong to the mode, features cannot be split by column
        as asked, or message flow spares less than 5% of an epoch's work on edges.
      NotImplementedError: the implementation named cannot be used here.

    References:
      Mode "sar": SAR, section 3.2; message flow: its appendix B. Mode "p3": P3, sections 3.1, 3.2
      and 3.4. Mode "stream": NeuGraph, sections 3.1 and 3.3.
    """
    started = time.perf_counter()
    if plan is not None:
        given = {"prefetch": prefetch or None, "rest": rest, "topology": topology}
        given |= {"chunks": chunks, "feature_budget": feature_budget}
        settled = [name for name, value in given.items() if value is not None]
        if settled or mode != "sar":
            raise ValueError(
                f"{', '.join(settled) or 'mode'}: said by the plan; leave it out, or leave out plan"
            )
        options = plan.shard_options()
        mode, prefetch = options["mode"], options["prefetch"]
        rest, topology, chunks = (options[name] for name in ("rest", "topology", "chunks"))
    if isinstance(graph, TypedGraph) or message_flow is not None:
        given = {"rest": rest, "topology": topology, "chunks": chunks, "pad_to": pad_to}
        given |= {"feature_budget": feature_budget, "folder": folder}
        return dataclasses.replace(
            place(
                tabulated(graph, partition, mode, given, message_flow),
                mesh,
                prefetch=prefetch,
                implementation=implementation,
                node_dtype=node_dtype,
            ),
            seconds=time.perf_counter() - started,
        )
    streams = mode == "stream"
    if streams:
        _check_stream_options(prefetch=prefetch, pad_to=pad_to)
    _check_folder(mode, folder)
    columns, schedule = column_request(
        "sar" if streams else mode,
        {"rest": rest, "topology": topology, "chunks": chunks, "feature_budget": feature_budget},
        None if node_dtype is None else floating_type(node_dtype),
        has_target=pad_to is not None,
    )
    check_graph(graph, "shard(graph, partition, mesh)")
    if partition is None:
        partition = Partition(np.zeros(graph.num_nodes, np.int32), 1, "whole")
    if isinstance(partition, Partition) and not streams:
        check_devices(mesh, partition.num_parts, may_merge=columns is None)
        partition = merge_partition(partition, mesh.size)
    target = pad_to.manifest if isinstance(pad_to, ShardedGraph) else pad_to
    if not isinstance(target, Manifest | PartSizes | None):
        raise ValueError(
            f"pad_to is of type {type(target).__name__}; expected a sharded graph, the result of "
            "jaxgraph.parallel.common_shapes, or jaxgraph.parallel.PartSizes(...)"
        )
    if isinstance(target, Manifest):
        held = target.array_shapes().get(target.feature_array)
        if held is not None and graph.nodes is not None:
            node_dtype = held[1] if node_dtype is None else node_dtype
            target = target.storing(target.feature_array, graph.nodes.dtype)
        target = storing_degrees(target, np.dtype(np.float64))
        target = storing_given(target, graph)
    check_held(graph)
    parts: Any = partition
    if isinstance(target, PartSizes):
        tables = sized_tables(graph, parts, schedule, target)
    else:
        tables = tabulate(graph, parts, schedule, target, columns=columns)
    placed = place(
        tables,
        mesh,
        mode,
        prefetch=prefetch,
        implementation=implementation,
        node_dtype=node_dtype,
        folder=folder,
    )
    return dataclasses.replace(placed, seconds=time.perf_counter() - started)


def place(
    source: PartSource,
    mesh: Mesh,
    mode: str | None = None,
    *,
    prefetch: bool = False,
    implementation: str | None = None,
    node_dtype: Any = None,
    folder: str | os.PathLike[str] | None = None,
) -> ShardedGraph:
    """Places the parts of a source on the devices of a mesh; a process reads only its own parts.

    Where there are fewer devices, consecutive parts are merged: every process reads all parts, one
    after the other, and none holds the whole graph.

    Args:
      source: a manifest and `part(i)`, the arrays of one part. With `AbstractSource` nothing is
        read and the leaves are `jax.ShapeDtypeStruct`: enough to compile a step.
      mesh: a mesh as for `shard`; it may span processes.
      mode: the schedule that the source was made for ("p3" where features are split by column), to
        check it; None: any. Or "stream", for a source made for "sar".
      prefetch, implementation, node_dtype, folder: as for `shard`.

    Returns:
      The sharded graph.

    Raises:
      ValueError: the mesh or the mode does not fit the source, a part does not fit its manifest or
        has an index outside of its table, the implementation is unknown, or there are no features
        to hold in `node_dtype`.
      NotImplementedError: the implementation named cannot be used here.
    """
    started = time.perf_counter()
    if not isinstance(prefetch, bool | np.bool_):
        raise ValueError(f"prefetch is {prefetch!r}; expected True or False")
    kinds = Manifest, TypedManifest
    if not isinstance(getattr(source, "manifest", None), kinds) or not hasattr(source, "part"):
        raise ValueError(
            f"place(source, mesh): got {kind_of(source)} for the source; expected a source of "
            "parts, with a manifest and part(index). A Graph is placed by "
            "jaxgraph.parallel.shard(graph, partition, mesh)"
        )
    manifest = source.manifest
    _check_folder(mode, folder)
    if mode == "stream":
        refuse_streaming(manifest)
        _check_stream_options(prefetch=prefetch, pad_to=None)
        return streamed_graph(
            source, mesh, folder=folder, implementation=implementation, node_dtype=node_dtype
        )
    check_devices(mesh, manifest.num_parts, may_merge=manifest.columns is None)
    made_for = manifest.mode if manifest.columns is None else "p3"
    if mode is not None and mode != made_for:
        raise ValueError(f"mode is {mode!r}, but the source was made for mode {made_for!r}")
    if prefetch and manifest.mode != "sar":
        name = "mode" if manifest.columns is None else "rest"
        raise ValueError(f"prefetch=True needs {name}='sar'; {name} is {manifest.mode!r}")
    if manifest.num_parts > mesh.size:
        refuse_merging(manifest, mesh.size)
        source = merge_parts(source, mesh.size)
    placed = on_mesh(
        source, mesh, prefetch=prefetch, implementation=implementation, node_dtype=node_dtype
    )
    return dataclasses.replace(placed, seconds=time.perf_counter() - started)


def _check_stream_options(*, prefetch: bool, pad_to: Any) -> None:
    given = {"prefetch=True": prefetch, "pad_to": pad_to is not None}
    refused = [name for name, is_given in given.items() if is_given]
    if refused:
        raise ValueError(
            f"{', '.join(refused)}: not for mode='stream', whose loop loads the next rows by "
            "itself, and which runs one graph; leave it out"
        )


def _check_folder(mode: str | None, folder: Any) -> None:
    if folder is None:
        return
    if mode != "stream":
        raise ValueError(
            f"folder: for mode='stream' only, whose parts wait there; mode is {mode!r}"
        )
    if not Path(folder).is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(
            f"folder is {os.fspath(folder)!r}; expected a folder that exists and can be written "
            "to, with room for the graph and its activations"
        )
