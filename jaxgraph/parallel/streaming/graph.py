"""A graph whose parts wait on the host, and visit the devices one after another."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxgraph.layout.placed import listed_part, placed_part, placed_shapes
from jaxgraph.layout.shard_tables import PartSource
from jaxgraph.parallel.assembly import assemble
from jaxgraph.parallel.sharded_graph import AbstractSource, ShardedGraph, check_devices, on_mesh
from jaxgraph.parallel.spmd import in_order
from jaxgraph.parallel.streaming.exchange import Exchange, Listed
from jaxgraph.parallel.streaming.feeding import Threads
from jaxgraph.parallel.streaming.part import StreamedPart
from jaxgraph.parallel.streaming.programs import types_of
from jaxgraph.parallel.streaming.store import FileStore, MemoryStore
from jaxgraph.parallel.streaming.transfer_time import share_of_whole
from pallas_kernels.pytrees import pytree

Pytree = Any
_EXCHANGED = ("send/rows", "send/ptr", "reach/rows", "reach/ptr")
"""The arrays that a schedule of transfers is made from."""
_FUNCTIONS = 8
"""Functions of a graph whose programs are held."""


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The overlap of transfers and work in a loop over the parts.

    Attributes:
      in_flight: programs that may be unfinished.
      ahead: loads that may wait.
      order: of the backward, "rows" or "columns"; None: the one that moves
        fewer bytes of other parts' rows.
      whole_from: parts of whose rows this share or more is needed are sent whole, not packed; None:
        the share from which that takes less time, measured.
    """

    in_flight: int = 2
    ahead: int = 2
    order: str | None = None
    whole_from: float | None = None


@pytree
class PartOnDevice:
    """The arrays of a part that a program uses.

    Attributes:
      arrays: some leaves of the part.
      places: their numbers.
      host: the parts of the graph.
    """

    arrays: tuple[jax.Array, ...]
    places: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    host: HostParts = dataclasses.field(metadata={"static": True})

    def part(self) -> StreamedPart:
        """The part, in the program; leaves that it does not use are zeros."""
        known = dict(zip(self.places, self.arrays, strict=True))
        leaves, structure = jax.tree.flatten(self.host.like)
        return structure.unflatten(
            known[i] if i in known else jnp.zeros(leaf.shape, leaf.dtype)
            for i, leaf in enumerate(leaves)
        )


@dataclasses.dataclass
class Moved:
    """The bytes that were moved so far.

    Attributes:
      sent: from the host to the device.
      returned: from the device to the host.
    """

    sent: int = 0
    returned: int = 0
    _before: int = 0
    _of_epoch: int = 0

    def begin_epoch(self, size: int) -> None:
        """Says that an epoch begins, and the bytes that it moves."""
        self._before, self._of_epoch = self.sent + self.returned, size

    def share_of_epoch(self) -> float:
        """The share of the present epoch that is done, from 0 to 1."""
        moved = self.sent + self.returned - self._before
        return min(moved / self._of_epoch, 1.0) if self._of_epoch else 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class HostParts:
    """The parts of a graph on the host, all of the same shapes.

    Attributes:
      store: their arrays.
      keys: the key in the store of each leaf of a part.
      like: a part of shapes.
      senders, receivers: the rows that others aggregate, and those that have edges from others.
      devices: how many parts are on devices at one time: those of a *turn*.
      local: the numbers of those of them whose devices are of this process.
      pipeline: the overlap of transfers and work.
      moved: counts bytes.
      threads: those that load and write.
    """

    store: MemoryStore
    keys: tuple[Hashable, ...]
    like: StreamedPart
    senders: Exchange
    receivers: Exchange
    devices: int
    local: tuple[int, ...]
    pipeline: Pipeline = Pipeline()
    moved: Moved = dataclasses.field(default_factory=Moved)
    threads: Threads = dataclasses.field(default_factory=Threads)
    _cache: OrderedDict[Any, Any] = dataclasses.field(default_factory=OrderedDict)

    @property
    def turns(self) -> range:
        """The turns: turn t has the parts t D ... (t + 1) D - 1 of D devices."""
        return range(self.like.num_parts // self.devices)

    @property
    def own(self) -> list[int]:
        """The parts whose devices are of this process."""
        return [part for turn in self.turns for part in self.of_turn(turn)]

    def of_turn(self, turn: int) -> list[int]:
        """The parts of a turn whose devices are of this process."""
        return [turn * self.devices + number for number in self.local]

    @property
    def numbers(self) -> Any:
        """A part of the numbers of its leaves."""
        leaves, structure = jax.tree.flatten(self.like)
        return structure.unflatten(range(len(leaves)))

    def leaf(self, number: int, index: int) -> np.ndarray:
        """One array of a part."""
        return self.store.get(self.keys[number], index)

    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids of this process's nodes, int64 [nodes], and where they are among its parts' rows."""
        found = [
            np.stack([self.leaf(number, part) for part in self.own]).reshape(-1)
            for number in (self.numbers.node_ids, self.numbers.node_mask)
        ]
        (rows,) = np.nonzero(found[1])
        return found[0][rows].astype(np.int64), rows

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """The result of `make`, made once for a key; the last few are held."""
        if key in self._cache:
            self._cache.move_to_end(key)
        else:
            self._cache[key] = make()
            while len(self._cache) > _FUNCTIONS:
                self._cache.popitem(last=False)
        return self._cache[key]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class StreamedGraph(ShardedGraph):
    """A graph whose parts wait on the host.

    `shards` has shapes instead of arrays. As a pytree it has no leaves.

    Attributes:
      host: its parts; None inside `jax.jit`.
    """

    host: HostParts | None = None

    is_streamed: ClassVar[bool] = True

    @property
    def parts(self) -> HostParts:
        """The parts."""
        assert self.host is not None
        return self.host

    def on_devices(self) -> ShardedGraph:
        """Shapes of the graph in mode "sar", with a device for each part, for tracing."""
        parts, names = self.num_parts, self.mesh.axis_names
        *hosts, devices = self.mesh.devices.shape
        sizes = (*hosts, devices * parts // self.mesh.size)
        mesh: Any = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
        of_parts = lambda leaf: jax.ShapeDtypeStruct((parts, *leaf.shape[1:]), leaf.dtype)  # noqa: E731
        return ShardedGraph(jax.tree.map(of_parts, self.shards), mesh, self.counts)

    def gather_rows(self, of_parts: np.ndarray) -> np.ndarray:
        """Brings rows [own parts, rows, ...] into the graph's order, in every process."""
        ids, places = self.parts.nodes()
        rows = of_parts.reshape(-1, *of_parts.shape[2:])[places]
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            # Of all processes, which have different numbers of nodes.
            missing = int(multihost_utils.process_allgather(np.array(len(ids))).max()) - len(ids)
            padded = (
                np.pad(ids.astype(np.int32), (0, missing), constant_values=-1),
                np.pad(rows, ((0, missing), *((0, 0),) * (rows.ndim - 1))),
            )
            found, of_nodes = multihost_utils.process_allgather(padded, tiled=True)
            ids, rows = found[found >= 0].astype(np.int64), of_nodes[found >= 0]
        return in_order(ids, rows, self.num_nodes)

    def with_table(
        self,
        types: Callable[[Any], Mapping[str, Any]],
        keys: Callable[[Any], Mapping[str, Any]],
    ) -> StreamedGraph:
        """The graph with other fields of its table of nodes, which wait in the same store."""
        host, shards = self.parts, self.shards
        like: Any = host.like.with_table(**types(host.like.table()))
        keyed = jax.tree.unflatten(jax.tree.structure(host.like), host.keys)
        keyed = keyed.with_table(**keys(keyed.table()))
        found = {"keys": tuple(jax.tree.leaves(keyed)), "like": like, "_cache": OrderedDict()}
        return dataclasses.replace(
            self,
            shards=shards.with_table(**types(shards.table())),
            host=dataclasses.replace(host, **found),
        )


def _outline(graph: StreamedGraph) -> tuple[tuple[()], Any]:
    leaves, structure = jax.tree.flatten(graph.shards)
    return (), (tuple(leaves), structure, graph.mesh)


def _of_outline(outline: Any, _: Any) -> StreamedGraph:
    leaves, structure, mesh = outline
    return StreamedGraph(structure.unflatten(leaves), mesh)


jax.tree_util.register_pytree_node(StreamedGraph, _outline, _of_outline)


def streamed_graph(
    source: PartSource,
    mesh: Mesh,
    *,
    folder: str | os.PathLike[str] | None = None,
    outlined: bool = False,
    implementation: str | None = None,
    node_dtype: Any = None,
    pipeline: Pipeline | None = None,
) -> StreamedGraph:
    """Makes the parts of a source ready to be streamed.

    Outlined, they are shapes, which can be rehearsed and not run.
    """
    _check(source)
    started = time.perf_counter()
    check_devices(mesh, source.manifest.num_parts)
    # Shapes of one part on each device.
    abstract = on_mesh(
        AbstractSource(source.manifest),
        mesh,
        implementation=implementation,
        node_dtype=node_dtype,
    )
    manifest = abstract.shards.manifest
    store = MemoryStore() if folder is None else FileStore(folder)
    devices, local = mesh.size, _local_devices(mesh, everywhere=outlined)
    pipeline = pipeline or Pipeline()
    whole_from = pipeline.whole_from
    whole_from = share_of_whole(mesh) if whole_from is None else whole_from
    assert source.manifest.counts is not None
    count: Any = np.int32(source.manifest.counts.num_nodes)
    own = [p for p in range(manifest.num_parts) if p % devices in local]
    like, listed = None, {"send": {}, "receive": {}}
    for index in own:
        part = _part(source, abstract, index, count, outlined=outlined)
        if not outlined:
            for number, leaf in enumerate(jax.tree.leaves(part)):
                store.put(number, index, np.asarray(leaf))
        like = types_of(part)
        relation = part.relation()
        for name, table in (("send", relation.exchange.send), ("receive", relation.arrays.reach)):
            if table is not None:
                listed[name][index] = Listed(np.array(table.rows), np.array(table.ptr))
    assert like is not None
    senders, receivers = (
        Exchange(_of_all(listed[name], own), sign, devices, manifest.node_rows, most, whole_from)
        for name, sign, most in (
            ("send", 1, manifest.halo_rows),
            ("receive", -1, manifest.reach_rows),
        )
    )
    keys = tuple(range(len(jax.tree.leaves(like))))
    host = HostParts(store, keys, like, senders, receivers, devices, local, pipeline)
    seconds = time.perf_counter() - started
    return StreamedGraph(abstract.shards, mesh, abstract.counts, seconds, host)


def _part(
    source: PartSource, abstract: ShardedGraph, index: int, count: Any, *, outlined: bool
) -> StreamedPart:
    """One part, with its arrays; outlined, with the rows that it exchanges alone."""
    manifest, mesh = abstract.shards.manifest, abstract.mesh
    chosen = abstract.shards.implementation
    shapes = placed_shapes(manifest, chosen)
    if outlined:
        listed = tuple(each for each in manifest.shapes if each[0] in _EXCHANGED)
        exchanged = dataclasses.replace(manifest, shapes=listed)
        arrays = {name: empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
        arrays |= listed_part(source, exchanged, index, shapes)
    else:
        arrays = placed_part(source, manifest, index, chosen)
    arrays = {name: arrays[name].reshape(shapes[name][0]) for name in shapes}
    shard = assemble(arrays, manifest, mesh.axis_names[-1], False, chosen)
    return StreamedPart.of(shard, count)


def _of_all(listed: dict[int, Listed], own: list[int]) -> tuple[Listed, ...]:
    """The rows of all parts, in order, of which a process has those of its own."""
    if jax.process_count() > 1 and listed:
        from jax.experimental import multihost_utils

        arrays = (np.array(own), *map(np.stack, zip(*listed.values(), strict=True)))
        own, rows, ptr = multihost_utils.process_allgather(arrays, tiled=True)
        listed = {
            int(part): Listed(*of_part) for part, *of_part in zip(own, rows, ptr, strict=True)
        }
    return tuple(listed[part] for part in sorted(listed))


def _local_devices(mesh: Mesh, *, everywhere: bool) -> tuple[int, ...]:
    """The numbers of the devices of this process, or all."""
    mine = jax.process_index()
    devices = enumerate(mesh.devices.flat)
    return tuple(at for at, each in devices if everywhere or each.process_index == mine)


def _check(source: PartSource) -> None:
    if source.manifest.mode != "sar" or source.manifest.columns is not None:
        made_for = "p3" if source.manifest.columns is not None else source.manifest.mode
        raise ValueError(
            f"mode='stream' takes parts that were made for mode 'sar', and these are for "
            f"{made_for!r}; write others with mode='sar'"
        )


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array without memory, for programs that do not read it."""
    return np.broadcast_to(np.zeros((), dtype), shape)
