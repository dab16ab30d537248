"""The samples of batches as arrays of the devices, made by threads ahead of the training."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.layout.sample_tables import (
    COLUMN_ROWS,
    COUNTS,
    NODE_IDS,
    SampleSizes,
    edges_prefix,
    empty_words,
)
from jaxgraph.parallel import ShardedGraph
from jaxgraph.parallel.samples import Sample, with_sample
from jaxgraph.sampling.homes import Homes, Requests, fill
from jaxgraph.sampling.neighbors import Drawn, Draws, Neighbors
from jaxgraph.sampling.order import of_devices
from jaxgraph.sampling.sampler import Sampler

GROWTH = 1.08
"""Ratio of the sizes of a sample that a step is compiled for: padding is about that."""
_POLL_SECONDS = 0.002


@dataclasses.dataclass(frozen=True)
class Drawing:
    """The sample of a device, drawn and not written yet.

    Attributes:
      sampler: holds it.
      drawn: its sizes.
      requests: of each set of nodes.
      needed: the least sizes of a sample that holds it.
    """

    sampler: Sampler
    drawn: Drawn
    requests: tuple[Requests, ...]
    needed: SampleSizes


@dataclasses.dataclass
class Usage:
    """Counts of an epoch: the waits of who consumes batches, and the reads of devices.

    Attributes:
      waited: seconds in which it was idle.
      remote: rows of features, of other devices, that batches read; of columns their slices.
      copied: how many of these the device had a copy of.
    """

    waited: float = 0.0
    remote: int = 0
    copied: int = 0

    @property
    def share_copied(self) -> float | None:
        """Share of what other devices hold that was read from a copy; None: all was here."""
        return self.copied / self.remote if self.remote else None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Drawer:
    """Draws the samples of a graph for some devices.

    Attributes:
      neighbors: its edges by receiver, of each set.
      draws: how they are drawn.
      ends: as of `SampleSizes`.
      homes: where the rows of each set of nodes are.
      target: number of the set of the seeds.
      batch: the most seeds of a device.
      devices: of all processes.
      by_column: whether devices hold columns of the features of all nodes.
    """

    neighbors: tuple[Neighbors, ...]
    draws: Draws
    ends: tuple[tuple[str, str, str], ...]
    homes: Mapping[str, Homes]
    target: int
    batch: int
    devices: int
    by_column: bool

    def sampler(self) -> Sampler:
        """A sampler for one thread."""
        sets = list(self.homes)
        ends = tuple(
            (sets.index(sender), sets.index(receiver)) for _, sender, receiver in self.ends
        )
        nodes = [len(homes.owner) for homes in self.homes.values()]
        return Sampler(self.neighbors, self.draws, ends, nodes, self.target)

    def drawings(
        self, samplers: Mapping[int, Sampler], seeds: np.ndarray, key: int
    ) -> Iterator[Drawing]:
        """Draws the samples of the devices that there are samplers for, each of its own seeds."""
        owner = list(self.homes.values())[self.target].owner
        of_each = of_devices(seeds, owner, self.devices)
        for device, sampler in samplers.items():
            yield self._drawing(sampler, of_each[device].astype(np.int32), device, key)

    def _drawing(self, sampler: Sampler, seeds: np.ndarray, device: int, key: int) -> Drawing:
        drawn, requests = sampler.draw(seeds, key), []
        for number, homes in enumerate(self.homes.values()):
            ids = np.empty(drawn.nodes[0][number], np.int32)
            sampler.node_ids(number, ids)
            held = drawn.nodes[1][number] if self.by_column else None
            requests.append(homes.requests(ids, device, self.devices, held))
        asked = tuple(max(int(x.counts.max(initial=0)), self.devices > 1) for x in requests)
        rows = [tuple(max(count, 1) for count in table) for table in drawn.nodes]
        rows[-1] = tuple(self.batch if n == self.target else 1 for n in range(len(requests)))
        edges = tuple(tuple(max(count, 1) for count in layer) for layer in drawn.edges)
        sets, of = tuple(self.homes), (self.devices, asked, self.by_column)
        needed = SampleSizes(sets, self.ends, tuple(rows), edges, *of)
        return Drawing(sampler, drawn, tuple(requests), needed)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Maker(Drawer):
    """Makes the samples of a sharded graph.

    Attributes:
      sharded: the graph.
      edge_data: arrays [edges, ...] of the edges of each set, by name.
      base: sizes that hold a usual sample.
      cache: rows that every device holds.
      given: arrays [nodes] that a batch brings, by name, of sets that have no rows to fetch.
      reads_whole: as of `Sample`.
    """

    sharded: ShardedGraph
    edge_data: tuple[Mapping[str, np.ndarray], ...]
    base: SampleSizes | None = None
    cache: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    given: Mapping[str, Mapping[str, np.ndarray]] = dataclasses.field(default_factory=dict)
    reads_whole: bool = False

    def sizes_for(self, needed: SampleSizes) -> SampleSizes:
        """The smallest sizes of a ladder that hold a sample."""
        assert self.base is not None
        factor = 1.0
        while not (sizes := self.base.with_room(factor)).holds(needed):
            factor *= GROWTH
        return sizes

    def reads(self, drawings: Sequence[Drawing]) -> tuple[int, int]:
        """The rows of other devices that samples read, and those of which there are copies."""
        requests = [each for drawing in drawings for each in drawing.requests]
        columns = self.sharded.shards.manifest.columns
        if columns is None:
            copied = sum(each.copied for each in requests)
            return copied + sum(len(each.order) for each in requests), copied
        rows = sum(len(each.ids) for each in requests)
        # Of as many slices as there are devices, each holds one of its own and perhaps copies.
        return rows * (self.devices - 1), rows * (columns.replicas - 1)

    def local_devices(self) -> list[tuple[int, Any]]:
        """The devices of this process, with their numbers."""
        found = enumerate(self.sharded.mesh.devices.flat)
        own = jax.process_index()
        return [(index, device) for index, device in found if device.process_index == own]

    def placed(self, drawings: Sequence[Drawing], sizes: SampleSizes) -> ShardedGraph:
        """The graph with the samples of this process on its devices."""
        words = list(empty_words(len(drawings), sizes))
        written = [self._written(*each, sizes) for each in zip(drawings, words, strict=True)]
        # Leaves are the rows of each device.
        data, given = jax.tree.map(lambda *rows: self.on_devices(rows), *written)
        return self._with(self.on_devices(words), data, given, sizes)

    def _with(self, words: Any, data: Any, given: Any, sizes: SampleSizes) -> ShardedGraph:
        """The graph with samples."""
        sample = Sample(words, data, self.cache, given, sizes, reads_whole=self.reads_whole)
        return with_sample(self.sharded, sample)

    def _written(self, drawing: Drawing, words: np.ndarray, sizes: SampleSizes) -> Any:
        """Writes a sample into a buffer; returns the data of its edges, and the arrays `given`."""
        views, sampler = sizes.views(words), drawing.sampler
        views[COUNTS][...] = drawing.drawn.nodes
        for number, (name, homes) in enumerate(self.homes.items()):
            requests = drawing.requests[number]
            requests.write(views, name, homes.rows + homes.cache_rows)
            if self.by_column:
                assert homes.row is not None
                rows = homes.owner[requests.ids] * homes.rows + homes.row[requests.ids]
                fill(views[name + COLUMN_ROWS], rows)
        data = []
        for layer in range(len(sizes.edges)):
            of_layer = []
            for number, ((name, *_), given) in enumerate(
                zip(self.ends, self.edge_data, strict=True)
            ):
                own = edges_prefix(layer, name)
                found = {x.removeprefix(own): y for x, y in views.items() if x.startswith(own)}
                if given:
                    found["edges"] = np.empty(len(found["by_receiver/neighbors"]), np.int32)
                sampler.write(layer, number, sizes.block(layer, number), found)
                of_layer.append({x: values[found["edges"]] for x, values in given.items()})
            data.append(tuple(of_layer))
        given = {
            name: {x: values[views[name + NODE_IDS]] for x, values in arrays.items()}
            for name, arrays in self.given.items()
        }
        return tuple(data), given

    def on_devices(self, local: Sequence[np.ndarray]) -> jax.Array:
        """An array [devices, ...] of the devices' own."""
        spec = NamedSharding(self.sharded.mesh, PartitionSpec(self.sharded.axis))
        devices = [device for _, device in self.local_devices()]
        rows = [jax.device_put(x[None], y) for x, y in zip(local, devices, strict=True)]
        shape = (self.devices, *local[0].shape)
        return jax.make_array_from_single_device_arrays(shape, spec, rows)

    def abstract(self) -> ShardedGraph:
        """The graph with a sample of the usual sizes, as shapes."""
        assert self.base is not None
        sizes = self.base.with_room(1.0)
        shapes = sizes.shapes()
        spec = NamedSharding(self.sharded.mesh, PartitionSpec(self.sharded.axis))

        def shape(entries: tuple[int, ...], dtype: Any) -> Any:
            dtype = jax.dtypes.canonicalize_dtype(dtype)
            return jax.ShapeDtypeStruct((self.devices, *entries), dtype, sharding=spec)

        def data(layer: int, name: str, given: Mapping[str, np.ndarray]) -> dict[str, Any]:
            _, slots = shapes[edges_prefix(layer, name) + "by_receiver/neighbors"]
            return {x: shape((*slots, *y.shape[1:]), y.dtype) for x, y in given.items()}

        layers = tuple(
            tuple(
                data(layer, name, given)
                for (name, *_), given in zip(self.ends, self.edge_data, strict=True)
            )
            for layer in range(len(sizes.edges))
        )
        given = {
            name: {x: shape(shapes[name + NODE_IDS][1], y.dtype) for x, y in arrays.items()}
            for name, arrays in self.given.items()
        }
        words: Any = shape((sizes.words,), np.int32)
        return self._with(words, layers, given, sizes)


def in_order(
    make: Callable[[Any], Any],
    tasks: Sequence[Any],
    threads: int,
    is_idle: Callable[[], bool],
    usage: Usage,
) -> Iterator[Any]:
    """The results of tasks in their order, made by threads, a few of them ahead.

    The seconds that pass in waiting while `is_idle()` are added to those of `usage`.
    """
    pool = ThreadPoolExecutor(threads, "samples")
    ahead: deque[Future[Any]] = deque()
    try:
        for task in tasks:
            ahead.append(pool.submit(make, task))
            if len(ahead) <= threads + 1:
                continue
            yield _taken(ahead.popleft(), is_idle, usage)
        while ahead:
            yield _taken(ahead.popleft(), is_idle, usage)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _taken(future: Future[Any], is_idle: Callable[[], bool], usage: Usage) -> Any:
    while not future.done():
        started, was_idle = time.perf_counter(), is_idle()
        wait([future], _POLL_SECONDS)
        if was_idle:
            usage.waited += time.perf_counter() - started
    return future.result()
