"""A graph split over the devices of a mesh, and its parts placed there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxgraph.kinds import kind_of
from jaxgraph.layout.manifest import Counts, Manifest, Padding
from jaxgraph.layout.placed import placed_part, placed_shapes
from jaxgraph.layout.shard_tables import PartSource
from jaxgraph.layout.typed_manifest import CountsOfSets, TypedManifest
from jaxgraph.ops.usable import usable_implementation
from jaxgraph.other_names import NAMES_OF_GRAPH, no_attribute
from jaxgraph.parallel.assembly import assemble
from jaxgraph.parallel.column_placement import mesh_of_columns
from jaxgraph.parallel.exchange import rows_sent
from jaxgraph.parallel.mesh import check_mesh
from jaxgraph.parallel.named_data import storing_named
from jaxgraph.parallel.representation import representation
from jaxgraph.parallel.shard import EDGES, NODES, Shard
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
        return self.shards.manifest.counted(self.counts)

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

    def nodes_of(self, table: str) -> int:
        """Nodes of a table of the whole graph."""
        counts = self._known_counts()
        is_typed = isinstance(counts, CountsOfSets)
        return counts.of_tables[table] if is_typed else counts.num_nodes

    if not TYPE_CHECKING:  # it would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            remedy = None
            if hasattr(Shard, name) or name in NAMES_OF_GRAPH:
                remedy = (
                    "its data is on several devices. jaxgraph.train.predict(model, sharded) runs a "
                    "model; a function that jaxgraph.parallel.spmd runs gets the shard of each "
                    "device, as in spmd(lambda model, shard: model(shard, shard.nodes), "
                    "outputs='rows')(model, sharded)"
                )
            raise no_attribute("a ShardedGraph", name, remedy)

    def padding(self) -> Padding:
        """The rows and slots that are needed, and those allocated or sent with padding."""
        shards, counts, manifest = self.shards, self._known_counts(), self.shards.manifest
        tables, relations, exchanges = [manifest], [EDGES], {NODES: manifest}
        if isinstance(manifest, TypedManifest):
            known, relations = dict(manifest.tables), shards.given("relation")
            tables = [known[name] for name in shards.given("table")]
            known, ends = dict(manifest.relations), dict(manifest.ends)
            exchanges = {ends[name].exchange: known[name] for name in relations}
        edges = [shards.edge_arrays[name].incoming.by_receiver.neighbors for name in relations]
        sent = [_halo_rows_sent(x, shards.exchanges[name].hosts) for name, x in exchanges.items()]
        return Padding(
            nodes=counts.num_nodes,
            node_rows=manifest.num_parts * sum(each.node_rows for each in tables),
            edges=counts.num_edges,
            edge_slots=manifest.num_parts * sum(each.shape[-1] for each in edges),
            halo_rows_needed=counts.halo_rows_needed,
            halo_rows_sent=sum(sent),
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
        manifest = storing_features(manifest, floating_type(node_dtype))
    degrees = jax.dtypes.canonicalize_dtype(np.float64)
    manifest = manifest.each(lambda each: storing_named(storing_degrees(each, degrees)))
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
    shared = manifest.each(lambda each: dataclasses.replace(each, counts=None))
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


def floating_type(dtype: Any) -> np.dtype:
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


def storing_degrees(manifest: Manifest, dtype: np.dtype) -> Manifest:
    """Sets the type of the sums of weights, which tables hold in float64."""
    for name in manifest.array_shapes():
        if name.rpartition("/")[2] == "weighted_in_degree":
            manifest = manifest.storing(name, dtype)
    return manifest


def storing_features(manifest: Any, dtype: np.dtype) -> Any:
    """Sets the type of the features of all nodes that have some."""
    if isinstance(manifest, Manifest):
        return manifest.storing(manifest.feature_array, dtype)
    if not any(each.feature_array in each.array_shapes() for each in manifest.members.values()):
        raise ValueError(f"no set of nodes has features to hold as {dtype}; leave the dtype out")
    return manifest.each(
        lambda each: (
            each.storing(each.feature_array, dtype)
            if each.feature_array in each.array_shapes()
            else each
        )
    )


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
