"""Parts of a graph placed on the devices of a mesh."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph, kind_of
from jaxgraph.layout.manifest import Counts, Manifest, Padding
from jaxgraph.layout.merged_parts import merge_partition, merge_parts
from jaxgraph.layout.placed import placed_part, placed_shapes
from jaxgraph.layout.shard_tables import PartSource, tabulate
from jaxgraph.ops.usable import usable_implementation
from jaxgraph.other_names import NAMES_OF_GRAPH, no_attribute
from jaxgraph.parallel.assembly import assemble
from jaxgraph.parallel.column_placement import column_request, mesh_of_columns
from jaxgraph.parallel.exchange import rows_sent
from jaxgraph.parallel.mesh import check_mesh
from jaxgraph.parallel.named_data import check_held, storing_given, storing_named
from jaxgraph.parallel.representation import representation
from jaxgraph.parallel.shard import Shard
from jaxgraph.partition.assignment import Partition
from pallas_kernels.pytrees import pytree


@pytree
class ShardedGraph:
    """A graph split over the devices of a mesh; its leaves are global arrays [devices, ...].

    Attributes:
      shards: the shards of all devices, stacked along a leading axis that the mesh splits.
      mesh: the mesh.
      counts: sizes of the graph. No part of the pytree, so that a function compiled for one graph
        runs on another of the same shapes; None after `jax.jit` or `jax.tree.map`.
      seconds: the time that splitting and placing it took; 0 after these.
    """

    shards: Shard
    mesh: Mesh = dataclasses.field(metadata={"static": True})
    counts: Counts | None = dataclasses.field(default=None, metadata={"dropped": True})
    seconds: float = dataclasses.field(default=0.0, metadata={"dropped": True})

    is_streamed: ClassVar[bool] = False
    """True where the parts wait on the host, and `shards` has shapes instead of arrays."""

    def __repr__(self) -> str:
        return representation(self)

    @property
    def manifest(self) -> Manifest:
        """Padded shapes, and counts where they are known."""
        return dataclasses.replace(self.shards.manifest, counts=self.counts)

    @property
    def axis(self) -> str | tuple[str, ...]:
        """Name of the mesh axis over which the graph is split, or names of several."""
        return self.shards.axis

    @property
    def num_parts(self) -> int:
        """Number of shards."""
        return self.shards.manifest.num_parts

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        return self._known_counts().num_nodes

    if not TYPE_CHECKING:  # it would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            remedy = None
            if name in Shard.__dataclass_fields__ or name in NAMES_OF_GRAPH:
                remedy = (
                    "its data is on several devices. jaxgraph.train.predict(model, sharded) runs a "
                    "model; a function that jaxgraph.parallel.spmd runs gets the shard of each "
                    "device, as in spmd(lambda model, shard: model(shard, shard.nodes), "
                    "outputs='rows')(model, sharded)"
                )
            raise no_attribute("a ShardedGraph", name, remedy)

    def padding(self) -> Padding:
        """The rows and slots that are needed, and those allocated or sent with padding."""
        manifest, counts = self.shards.manifest, self._known_counts()
        slots = self.shards.incoming.by_receiver.neighbors.shape[-1]
        return Padding(
            nodes=counts.num_nodes,
            node_rows=manifest.num_parts * manifest.node_rows,
            edges=counts.num_edges,
            edge_slots=manifest.num_parts * slots,
            halo_rows_needed=counts.halo_rows_needed,
            halo_rows_sent=_halo_rows_sent(manifest, self.shards.hosts),
        )

    def _known_counts(self) -> Counts:
        if self.counts is None:
            raise ValueError(
                "the counts of a sharded graph are lost inside jax.jit and jax.tree.map, where one "
                "program serves graphs of any size; ask the graph that jaxgraph.parallel.shard "
                "returned, or under spmd shard.num_nodes"
            )
        return self.counts


def _halo_rows_sent(manifest: Manifest, hosts: int) -> int:
    if manifest.mode == "domain":
        return manifest.num_parts * (manifest.num_parts - 1) * manifest.halo_rows
    return rows_sent(manifest.halo_units, manifest.halo_unit, hosts)


class Planned(Protocol):
    """A plan that says how a graph is to be split."""

    def shard_options(self) -> dict[str, Any]:
        """mode, prefetch, rest, topology and chunks, as `shard` takes them."""
        ...


def shard(
    graph: Graph,
    partition: Partition | None,
    mesh: Mesh,
    mode: str = "sar",
    *,
    prefetch: bool = False,
    pad_to: ShardedGraph | Manifest | None = None,
    implementation: str | None = None,
    node_dtype: Any = None,
    rest: str | None = None,
    topology: str | None = None,
    chunks: int | None = None,
    feature_budget: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    plan: Planned | None = None,
) -> ShardedGraph:
    """Splits a graph over the devices of a mesh.

    Args:
      graph: the graph.
      partition: a part for every node, with as many parts as the mesh has devices, or a multiple:
        consecutive parts are then merged. None: one part, on a mesh of one device.
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
        fits. A graph without its labels or masks gets them: no label, and masks of no node.
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

    Returns:
      The sharded graph.

    Raises:
      ValueError: the partition does not fit the graph or the mesh, the mode or the implementation
        is unknown, the graph does not fit into `pad_to`, it has no features to hold in
        `node_dtype`, an option does not belong to the mode, or features cannot be split by column
        as asked.
      NotImplementedError: the implementation named cannot be used here.

    References:
      Mode "sar": SAR, section 3.2. Mode "p3": P3, sections 3.1, 3.2 and 3.4. Mode "stream":
      NeuGraph, sections 3.1 and 3.3.
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
    streams = mode == "stream"
    if streams:
        _check_stream_options(prefetch=prefetch, pad_to=pad_to)
    _check_folder(mode, folder)
    columns, schedule = column_request(
        "sar" if streams else mode,
        {"rest": rest, "topology": topology, "chunks": chunks, "feature_budget": feature_budget},
        None if node_dtype is None else _floating(node_dtype),
        has_target=pad_to is not None,
    )
    check_graph(graph, "shard(graph, partition, mesh)")
    if partition is None:
        partition = Partition(np.zeros(graph.num_nodes, np.int32), 1, "whole")
    if isinstance(partition, Partition) and not streams:
        check_devices(mesh, partition.num_parts, may_merge=columns is None)
        partition = merge_partition(partition, mesh.size)
    target = pad_to.manifest if isinstance(pad_to, ShardedGraph) else pad_to
    if not isinstance(target, Manifest | None):
        raise ValueError(
            f"pad_to is of type {type(target).__name__}; expected a sharded graph or the result "
            "of jaxgraph.parallel.common_shapes"
        )
    if target is not None and graph.nodes is not None:
        held = target.array_shapes().get(target.feature_array)
        if held is not None:
            node_dtype = held[1] if node_dtype is None else node_dtype
            target = target.storing(target.feature_array, graph.nodes.dtype)
    if target is not None:
        target = _storing_degrees(target, np.dtype(np.float64))
        target = storing_given(target, graph)
    check_held(graph)
    placed = place(
        tabulate(graph, partition, schedule, target, columns=columns),
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
    if not isinstance(getattr(source, "manifest", None), Manifest) or not hasattr(source, "part"):
        raise ValueError(
            f"place(source, mesh): got {kind_of(source)} for the source; expected a source of "
            "parts, with a manifest and part(index). A Graph is placed by "
            "jaxgraph.parallel.shard(graph, partition, mesh)"
        )
    manifest = source.manifest
    _check_folder(mode, folder)
    if mode == "stream":
        _check_stream_options(prefetch=prefetch, pad_to=None)
        # A local import: a streamed graph is a sharded one.
        from jaxgraph.parallel.streaming.graph import streamed_graph

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
        source = merge_parts(source, mesh.size)
    placed = on_mesh(
        source, mesh, prefetch=prefetch, implementation=implementation, node_dtype=node_dtype
    )
    return dataclasses.replace(placed, seconds=time.perf_counter() - started)


def on_mesh(
    source: PartSource,
    mesh: Mesh,
    *,
    prefetch: bool = False,
    implementation: str | None = None,
    node_dtype: Any = None,
) -> ShardedGraph:
    """Places a part of a source on each device of a mesh; see `place`."""
    manifest = source.manifest
    implementation = usable_implementation(implementation, mesh.devices.flat[0])
    if node_dtype is not None:
        manifest = manifest.storing(manifest.feature_array, _floating(node_dtype))
    manifest = _storing_degrees(manifest, jax.dtypes.canonicalize_dtype(np.float64))
    manifest = storing_named(manifest)
    hosts = mesh.devices.shape[0] if mesh.devices.ndim == 2 else 1
    if manifest.columns is not None:
        mesh = mesh_of_columns(mesh, manifest.columns)
    axis = mesh.axis_names[0] if len(mesh.axis_names) == 1 else tuple(mesh.axis_names)
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    if isinstance(source, AbstractSource):
        arrays = {
            name: jax.ShapeDtypeStruct((mesh.size, *shape), dtype, sharding=sharding)
            for name, (shape, dtype) in placed_shapes(manifest, implementation).items()
        }
    else:
        arrays = _placed_arrays(source, manifest, mesh, sharding, implementation)
    shared = dataclasses.replace(manifest, counts=None)
    shards = assemble(arrays, shared, axis, prefetch, implementation, hosts)
    return ShardedGraph(shards, mesh, manifest.counts)


def check_sharded(value: Any, function: str, *, may_stream: bool = False) -> None:
    """Raises ValueError unless a value is a sharded graph."""
    if not isinstance(value, ShardedGraph):
        raise ValueError(
            f"{function}: got {kind_of(value)} for the sharded graph; expected the result of "
            "jaxgraph.parallel.shard(graph, partition, mesh), where partition may be None on a "
            "mesh of one device, jaxgraph.parallel.make_mesh(1)"
        )
    if value.is_streamed and not may_stream:
        raise ValueError(
            f"{function}: the graph is in mode 'stream', and its parts wait on the host, not on "
            "devices; shard it in mode 'sar' or 'domain', or use fit, evaluate, predict and "
            "loss_and_grad of jaxgraph.train"
        )


@dataclasses.dataclass(frozen=True)
class AbstractSource:
    """A source without data, to compile a step without the graph."""

    manifest: Manifest

    def part(self, index: int) -> Mapping[str, np.ndarray]:
        """Raises: there is nothing to read."""
        raise ValueError(f"an abstract source holds no data (part {index} was asked for)")


def check_devices(mesh: Mesh, num_parts: int, *, may_merge: bool = True) -> None:
    """Raises ValueError unless a mesh has a device for each part, or for each run of parts."""
    check_mesh(mesh)
    if len(mesh.axis_names) not in (1, 2):
        raise ValueError(
            f"the mesh has axes {mesh.axis_names}; expected one axis, or hosts and their devices: "
            "jaxgraph.parallel.make_mesh"
        )
    if num_parts % mesh.size or (num_parts > mesh.size and not may_merge):
        expected = "or a multiple" if may_merge else "which holds columns of its own in mode 'p3'"
        raise ValueError(
            f"the graph has {num_parts} part(s) and the mesh {mesh.size} device(s); expected one "
            f"part per device, {expected}: jaxgraph.partition.partition(graph, {mesh.size}), or "
            f"jaxgraph.parallel.make_mesh({num_parts})"
        )


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


def _floating(dtype: Any) -> np.dtype:
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise ValueError(
            f"node_dtype is {dtype!r}; expected a floating type, such as jnp.bfloat16, or None"
        )
    if jax.dtypes.canonicalize_dtype(found) != found:
        raise ValueError(
            f"node_dtype is {found}, which JAX holds in 32 bits unless "
            "jax.config.update('jax_enable_x64', True) is called first"
        )
    return found


def _storing_degrees(manifest: Manifest, dtype: np.dtype) -> Manifest:
    """Sets the type of the sums of weights, which tables hold in float64."""
    shapes = manifest.array_shapes()
    for name in ("weighted_in_degree", "columns/weighted_in_degree"):
        manifest = manifest.storing(name, dtype) if name in shapes else manifest
    return manifest


def _on_device(values: np.ndarray, device: Any) -> jax.Array:
    return jax.block_until_ready(jax.device_put(values, device))


def _placed_arrays(
    source: PartSource,
    manifest: Manifest,
    mesh: Mesh,
    sharding: NamedSharding,
    implementation: str,
) -> dict[str, jax.Array]:
    shapes = placed_shapes(manifest, implementation)
    pieces: dict[str, list[jax.Array]] = {name: [] for name in shapes}
    for index, device in enumerate(mesh.devices.flat):
        if device.process_index != jax.process_index():
            continue
        # Device by device: the host frees the arrays of one before it makes those of the next.
        part = placed_part(source, manifest, index, implementation)
        for name, (shape, _) in shapes.items():
            # Array by array: the host never holds a part twice.
            pieces[name].append(_on_device(part.pop(name).reshape(1, *shape), device))
    return {
        name: jax.make_array_from_single_device_arrays(
            (mesh.size, *shape), sharding, pieces[name], dtype=dtype
        )
        for name, (shape, dtype) in shapes.items()
    }
