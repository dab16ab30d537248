"""Mini-batches of a graph: seeds in a random order, and samples of their neighbourhoods."""

from __future__ import annotations

import dataclasses
import functools
import os
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.graph import Graph
from jaxgraph.kinds import check_positive
from jaxgraph.layout.sample_tables import SampleSizes
from jaxgraph.layout.shard_tables import PartSource
from jaxgraph.parallel import ShardedGraph, make_mesh, place, shard
from jaxgraph.parallel.spmd import on_host
from jaxgraph.parallel.whole_graph import sharded_on_one
from jaxgraph.sampling.batches import Drawing, Homes, Maker, Usage, in_order
from jaxgraph.sampling.cache import with_cache
from jaxgraph.sampling.neighbors import Draws, check_method
from jaxgraph.sampling.order import epoch_key, shuffled
from jaxgraph.sampling.sampler import Sampler
from jaxgraph.sampling.sources import Source, source_of
from jaxgraph.sampling.usual import most_seeds, probed, with_usual_room
from jaxgraph.seeds import checked_seed
from jaxgraph.typed_graph import TypedGraph


class Loader:
    """Mini-batches of a graph for `jaxgraph.train.fit`, and for training loops of one's own.

    An epoch goes through the seeds once, in an order of its own. A batch has, for each layer, edges
    drawn from those that end at the nodes that the layer computes. What is drawn depends on the
    seed, the epoch, the layer and the receiver alone: the same on any number of threads, devices
    and processes. Layers run on a batch as they are. A sum over the drawn edges is scaled to
    estimate the sum over all; degrees are those of the whole graph.

        loader = jg.sampling.Loader(graph, [15, 10, 5], batch_size=1024)
        history = jg.train.fit(model, loader, optax.adam(3e-3), epochs=10)

    Args:
      graph: the graph, or parts on disk (`jaxgraph.parallel.open_parts`), of which the edges are
        read. Or a `TypedGraph`.
      fanouts: the most neighbours of a node in each layer, the first layer first; -1: all. One for
        each layer that reads edges. Of a `TypedGraph` for each set of edges: one number for all,
        or numbers by the names of relations, where a set that is not named is left out.
      sharded: the same graph on the devices of a mesh; None: on JAX's default device. Each device
        then has its share of a batch. In mode "sar" or "domain" it fetches the rows of features
        from the devices that hold them. In mode "p3" it sends the first layer's edges to all
        devices, and these send it their shares of that layer's output.
      batch_size: seeds of a batch, of all devices together.
      nodes: int [seeds], the seeds; None: the training nodes. Of a `TypedGraph` they are of its
        target.
      replace: whether a neighbour may be drawn more than once.
      method: "neighbors", so many for each receiver; or "labor", which draws the same neighbours
        for many receivers, so many in expectation.
      weights: float [edges], by which edges are drawn; None: all alike. Of a `TypedGraph` by the
        name of the relation.
      seed: of the order and the draws, from 0 to 2**32 - 1.
      threads: that make batches ahead; None: a core fewer than there are, at most 4.
      cache_bytes: on several devices, bytes of each for a copy of the rows that are most often
        read, or text such as "1GB"; 0: none.

    Attributes:
      sharded: the sharded graph, for evaluation.
      fanouts: as given, a list.
      draws: how neighbours are drawn.
      seeds: int64 [seeds], all of an epoch, in the order of their ids.

    Raises:
      ValueError: an argument is of the wrong kind or out of range, nodes are outside of the graph,
        or the graph has none to begin from.

    References:
      Hamilton et al., "Inductive representation learning on large graphs", 2017. Balin and
      Çatalyürek, "Layer-neighbor sampling", 2023 (method "labor"). P3, section 3.4 (cache).
    """

    def __init__(
        self,
        graph: Graph | TypedGraph | PartSource,
        fanouts: Sequence[int | Mapping[str, int]],
        *,
        sharded: ShardedGraph | None = None,
        batch_size: int = 1024,
        nodes: Any = None,
        replace: bool = False,
        method: str = "neighbors",
        weights: Any = None,
        seed: int = 0,
        threads: int | None = None,
        cache_bytes: int | str = 0,
    ) -> None:
        check_positive("batch_size", batch_size)
        if threads is not None:
            check_positive("threads", threads)
        cache_bytes = bytes_of("cache_bytes", cache_bytes) if cache_bytes else 0
        source = source_of(graph)
        check_method(method, replace, weights)
        self.draws = Draws(source.fanouts(fanouts), bool(replace), method)
        self.fanouts = np.asarray(fanouts).tolist()
        self.seeds = source.seeds(nodes)
        self.batch_size, self.seed = int(batch_size), checked_seed("seed", seed)
        self.threads = threads or min(4, max((os.cpu_count() or 1) - 1, 1))
        neighbors = source.neighbors(weights)
        self.weights = [each.weights for each in neighbors]
        self.sharded = placed_on_one(graph) if sharded is None else source.checked(sharded)
        homes = {name: _homes(self.sharded, name) for name in source.sets}
        _check_edges(self.sharded, source, homes)
        devices = self.sharded.num_parts
        self._maker = Maker(
            sharded=self.sharded,
            neighbors=neighbors,
            draws=self.draws,
            ends=source.ends,
            homes=homes,
            edge_data=source.edge_data(neighbors),
            target=source.target,
            batch=most_seeds(self.batch_size, self.seeds, devices),
            devices=devices,
            by_column=self.sharded.shards.columns is not None,
        )
        self._free: queue.SimpleQueue[list[Sampler]] = queue.SimpleQueue()
        if cache_bytes:
            if self._maker.by_column:
                raise ValueError(
                    "cache_bytes: in mode 'p3' no device reads rows of features; leave it out, and "
                    "shard the graph with feature_budget=..., which lets devices hold more columns"
                )
            self._maker = with_cache(self._maker, source.reads(), cache_bytes)
        needed = probed(self.seeds, self.batch_size, self.seed, self._needed)
        self._maker = dataclasses.replace(self._maker, base=with_usual_room(_agreed(needed)))

    def __len__(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.seeds) // self.batch_size)

    def __repr__(self) -> str:
        return (
            f"Loader({len(self)} batches of {self.batch_size} of {len(self.seeds)} seeds, "
            f"fanouts={self.fanouts})"
        )

    def batches(self, epoch: int) -> Iterator[ShardedGraph]:
        """The batches of an epoch, for a function that `jaxgraph.parallel.spmd` runs.

        There, `shard.flow` has the neighbourhoods of the layers, and
        `shard.flow[0].senders.nodes` the features: `model(shard.flow, x, key=key, train=True)`.

        Args:
          epoch: number of the epoch, from 0.

        Returns:
          The sharded graph with the batch, again and again.
        """
        return self.batches_waited_for(epoch, lambda: False, Usage())

    def batches_waited_for(
        self, epoch: int, is_idle: Callable[[], bool], usage: Usage
    ) -> Iterator[ShardedGraph]:
        """As `batches`; `usage` counts, and the seconds waited for are those while `is_idle()`."""
        key = epoch_key(self.seed, epoch)
        ordered = shuffled(self.seeds, key)
        starts = range(0, len(ordered), self.batch_size)
        tasks = [ordered[start : start + self.batch_size] for start in starts]
        alone = jax.process_count() == 1

        def make(seeds: np.ndarray) -> Any:
            drawings = self._drawings(seeds, key)
            reads = self._maker.reads(drawings)
            return self._placed(drawings) if alone else drawings, reads

        for found, (remote, copied) in in_order(make, tasks, self.threads, is_idle, usage):
            usage.remote, usage.copied = usage.remote + remote, usage.copied + copied
            yield found if alone else self._placed(found)

    @property
    def has_cache(self) -> bool:
        """True where devices hold copies of rows of others."""
        return bool(self._maker.cache)

    def abstract_batch(self) -> ShardedGraph:
        """A batch of the usual sizes, as shapes."""
        return self._maker.abstract()

    def _drawings(self, seeds: np.ndarray, key: int) -> list[Drawing]:
        maker = self._maker
        local = [index for index, _ in maker.local_devices()]
        try:
            samplers = self._free.get_nowait()
        except queue.Empty:
            samplers = [maker.sampler() for _ in local]
        return list(maker.drawings(dict(zip(local, samplers, strict=True)), seeds, key))

    def _placed(self, drawings: list[Drawing]) -> ShardedGraph:
        sizes = self._maker.sizes_for(_agreed([each.needed for each in drawings]))
        found = self._maker.placed(drawings, sizes)
        self._free.put([each.sampler for each in drawings])
        return found

    def _needed(self, seeds: np.ndarray, key: int) -> list[SampleSizes]:
        """The least sizes of the samples of a batch."""
        drawings = self._drawings(seeds, key)
        self._free.put([each.sampler for each in drawings])
        return [each.needed for each in drawings]


def _agreed(needed: list[SampleSizes]) -> SampleSizes:
    """The sizes that all processes need."""
    joined = functools.reduce(SampleSizes.joined, needed)
    if jax.process_count() == 1:
        return joined
    from jax.experimental import multihost_utils

    most = np.asarray(multihost_utils.process_allgather(np.array(joined.numbers))).max(axis=0)
    return joined.of_numbers(most.tolist())


def placed_on_one(graph: Any) -> ShardedGraph:
    """The graph on JAX's default device."""
    if isinstance(graph, Graph):
        return sharded_on_one(graph)
    if isinstance(graph, TypedGraph):
        return shard(graph, None, make_mesh(1))
    return place(graph, make_mesh(1))


def _homes(sharded: ShardedGraph, name: str) -> Homes:
    """Where the rows of a set of nodes are."""
    table = sharded.shards.tables[name]
    ids, mask = on_host(table.node_ids, table.node_mask)
    owner, row = np.nonzero(mask)
    found = np.empty((2, len(owner)), np.int32)
    found[:, ids[owner, row]] = owner, row
    return Homes(found[0], found[1], ids.shape[1])


def _check_edges(sharded: ShardedGraph, source: Source, homes: Mapping[str, Homes]) -> None:
    """Refuses a sharded graph of the same nodes with other edges: degrees tell most apart."""
    for (name, _, receiver), edges in zip(source.ends, source.edges, strict=True):
        (found,) = on_host(sharded.shards.edge_arrays[name].at_receivers.in_degree)
        home = homes[receiver]
        degrees = np.bincount(edges.receivers, minlength=len(home.owner))
        if not np.array_equal(found[home.owner, home.row], degrees):
            raise ValueError(
                "sharded has other edges than the graph: some nodes have other degrees; shard the "
                "graph that is given, after all transforms"
            )
