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
    ASKED,
    COUNTS,
    NODE_IDS,
    PLACES,
    SampleSizes,
    empty_words,
    layer_prefix,
)
from jaxgraph.parallel import ShardedGraph
from jaxgraph.parallel.samples import Sample, with_sample
from jaxgraph.sampling.draw import Draws
from jaxgraph.sampling.native import Sampler
from jaxgraph.sampling.neighbors import Neighbors

GROWTH = 1.08
"""Ratio of the sizes of a sample that a step is compiled for: padding is at most that."""
_POLL_SECONDS = 0.002


@dataclasses.dataclass(frozen=True)
class Homes:
    """Where the rows of the nodes are.

    Attributes:
      owner: int32 [nodes], the device of each.
      row: int32 [nodes], its row there.
      rows: of each device.
      cached: int32 [nodes], the row in the cache, -1: none; or None: there is no cache.
      cache_rows: rows of the cache.
    """

    owner: np.ndarray
    row: np.ndarray
    rows: int
    cached: np.ndarray | None = None
    cache_rows: int = 0

    def requests(self, ids: np.ndarray, device: int, devices: int) -> Requests:
        """The rows of some nodes, as a device reads them."""
        if devices == 1:
            none = np.zeros(0, np.int64)
            return Requests(self.row[ids], none, none, none)
        owner, places = self.owner[ids], self.row[ids].astype(np.int64)
        remote = owner != device
        if self.cached is not None:
            found = self.cached[ids]
            is_cached = remote & (found >= 0)
            places[is_cached] = self.rows + found[is_cached]
            remote &= ~is_cached
        which = np.flatnonzero(remote)
        order = which[np.argsort(owner[which], kind="stable")]
        counts = np.bincount(owner[order], minlength=devices)
        return Requests(places, order, counts, places[order])


@dataclasses.dataclass(frozen=True)
class Requests:
    """The rows of some nodes, as a device reads them.

    Attributes:
      places: int64 [nodes], own and cached rows; of others the row on its device.
      order: int [remote], the nodes that other devices hold, by device.
      counts: int [devices], how many of each.
      wanted: int64 [remote], their rows there.
    """

    places: np.ndarray
    order: np.ndarray
    counts: np.ndarray
    wanted: np.ndarray

    def write(self, out: Mapping[str, np.ndarray], first: int) -> None:
        """Fills the arrays of a sample; rows of other devices are numbered from `first` on."""
        places = self.places
        if ASKED in out:
            room = out[ASKED].shape[1]
            device = np.repeat(np.arange(len(self.counts)), self.counts)
            before = np.cumsum(self.counts) - self.counts
            slot = np.arange(len(device)) - before[device]
            out[ASKED][...] = 0
            out[ASKED][device, slot] = self.wanted
            places[self.order] = first + device * room + slot
        out[PLACES][: len(places)] = places
        out[PLACES][len(places) :] = 0


@dataclasses.dataclass(frozen=True)
class Drawing:
    """What was drawn for a device, and waits to be written."""

    sampler: Sampler
    nodes: tuple[int, ...]
    requests: Requests
    needed: SampleSizes

    def write(
        self, sizes: SampleSizes, words: np.ndarray, first: int, *, with_edges: bool
    ) -> list[np.ndarray]:
        """Writes the sample into a buffer; returns the edge of every slot of each layer, if asked.

        Rows of other devices are numbered from `first` on.
        """
        views = sizes.views(words)
        self.sampler.node_ids(views[NODE_IDS])
        views[COUNTS][...] = self.nodes
        self.requests.write(views, first)
        edges = []
        for layer in range(len(sizes.edges)):
            own = layer_prefix(layer)
            found = {x.removeprefix(own): y for x, y in views.items() if x.startswith(own)}
            if with_edges:
                found["edges"] = np.empty(len(found["receivers"]), np.int32)
                edges.append(found["edges"])
            self.sampler.write(layer, sizes.block(layer), found)
        return edges


@dataclasses.dataclass(frozen=True, eq=False)
class Maker:
    """Makes the samples of a sharded graph.

    Attributes:
      sharded: the graph.
      neighbors: its edges by receiver.
      draws: how they are drawn.
      homes: where rows are.
      edge_data: arrays [edges, ...] of the graph's edges, by name.
      batch: the most seeds of a device.
      base: sizes that hold a usual sample.
      cache: rows that every device holds, or None.
    """

    sharded: ShardedGraph
    neighbors: Neighbors
    draws: Draws
    homes: Homes
    edge_data: Mapping[str, np.ndarray]
    batch: int
    base: SampleSizes | None = None
    cache: Any = None

    def drawing(self, sampler: Sampler, seeds: np.ndarray, device: int, key: int) -> Drawing:
        """Draws the sample of a device."""
        drawn = sampler.draw(seeds, key)
        ids = np.empty(drawn.nodes[0], np.int32)
        sampler.node_ids(ids)
        requests = self.homes.requests(ids, device, self.devices)
        asked = 0 if self.devices == 1 else max(int(requests.counts.max(initial=0)), 1)
        rows = tuple(max(count, 1) for count in drawn.nodes[:-1])
        needed = SampleSizes((*rows, self.batch), drawn.edges, self.devices, asked)
        return Drawing(sampler, drawn.nodes, requests, needed)

    @property
    def devices(self) -> int:
        """Devices of all processes."""
        return self.sharded.num_parts

    def sizes_for(self, needed: SampleSizes) -> SampleSizes:
        """The smallest sizes of a ladder that hold a sample."""
        assert self.base is not None
        factor = 1.0
        while not (sizes := self.base.with_room(factor)).holds(needed):
            factor *= GROWTH
        return sizes

    def local_devices(self) -> list[tuple[int, Any]]:
        """The devices of this process, with their numbers."""
        found = enumerate(self.sharded.mesh.devices.flat)
        own = jax.process_index()
        return [(index, device) for index, device in found if device.process_index == own]

    def placed(self, drawings: Sequence[Drawing], sizes: SampleSizes) -> ShardedGraph:
        """The graph with the samples of this process on its devices."""
        words = empty_words(len(drawings), sizes)
        data: list[dict[str, list[np.ndarray]]] = [{} for _ in sizes.edges]
        for drawing, own in zip(drawings, words, strict=True):
            first = self.homes.rows + self.homes.cache_rows
            edges = drawing.write(sizes, own, first, with_edges=bool(self.edge_data))
            for of_layer, chosen in zip(data, edges, strict=False):
                for name, values in self.edge_data.items():
                    of_layer.setdefault(name, []).append(values[chosen])
        sample = Sample(
            self.on_devices(list(words)),
            tuple({name: self.on_devices(x) for name, x in layer.items()} for layer in data),
            self.cache,
            sizes,
        )
        return with_sample(self.sharded, sample)

    def on_devices(self, local: list[np.ndarray]) -> jax.Array:
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
        spec = NamedSharding(self.sharded.mesh, PartitionSpec(self.sharded.axis))

        def shape(entries: tuple[int, ...], dtype: Any) -> Any:
            dtype = jax.dtypes.canonicalize_dtype(dtype)
            return jax.ShapeDtypeStruct((self.devices, *entries), dtype, sharding=spec)

        shapes = sizes.shapes()
        data = tuple(
            {
                name: shape(
                    (*shapes[layer_prefix(x) + "receivers"][1], *values.shape[1:]), values.dtype
                )
                for name, values in self.edge_data.items()
            }
            for x in range(len(sizes.edges))
        )
        sample = Sample(shape((sizes.words,), np.int32), data, self.cache, sizes)
        return with_sample(self.sharded, sample)


def in_order(
    make: Callable[[Any], Any],
    tasks: Sequence[Any],
    threads: int,
    is_idle: Callable[[], bool] | None = None,
    idle: list[float] | None = None,
) -> Iterator[Any]:
    """The results of tasks in their order, made by threads, a few of them ahead.

    The seconds that pass in waiting while `is_idle()` are added to `idle`.
    """
    pool, left = ThreadPoolExecutor(threads, "samples"), iter(tasks)
    ahead: deque[Future[Any]] = deque()
    try:
        for task in left:
            ahead.append(pool.submit(make, task))
            if len(ahead) <= threads + 1:
                continue
            yield _taken(ahead.popleft(), is_idle, idle)
        while ahead:
            yield _taken(ahead.popleft(), is_idle, idle)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _taken(
    future: Future[Any], is_idle: Callable[[], bool] | None, idle: list[float] | None
) -> Any:
    while is_idle is not None and idle is not None and not future.done():
        started, was_idle = time.perf_counter(), is_idle()
        wait([future], _POLL_SECONDS)
        if was_idle:
            idle.append(time.perf_counter() - started)
    return future.result()
