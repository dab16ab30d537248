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
from jaxgraph.kinds import check_positive, kind_of
from jaxgraph.layout.sample_tables import SampleSizes
from jaxgraph.layout.shard_tables import PartSource
from jaxgraph.parallel import ShardedGraph, make_mesh, place
from jaxgraph.parallel.whole_graph import sharded_on_one
from jaxgraph.sampling.batches import Drawing, Maker, Usage, in_order
from jaxgraph.sampling.cache import with_cache
from jaxgraph.sampling.homes import Homes, homes_of
from jaxgraph.sampling.links import HEAD, LINK, Links, LinkSeeds, link_seeds
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
        or numbers by the names of relations, where a set that is not named is left out. Sets of its
        readout are not among them: all of their edges are taken. With a readout, []: layers compute
        the whole graph in every step, and a batch reads rows of it.
      sharded: the same graph on the devices of a mesh, of which features and labels are read; None:
        on JAX's default device. Each device then has its share of a batch. In mode "sar" or
        "domain" it fetches the rows of features from the devices that hold them. In mode "p3" it
        sends the first layer's edges to all devices, and these send it their shares of that layer's
        output.
      batch_size: seeds of a batch, of all devices together.
      nodes: int [seeds], the seeds; None: the training nodes. Of a `TypedGraph` they are of its
        target.
      links: the edges that are the seeds instead, of a graph of `jaxgraph.transforms.link_split`,
        and how negatives are drawn; None: seeds are nodes.
      replace: whether a neighbour may be drawn more than once.
      method: "neighbors", so many for each receiver; or "labor", which draws the same neighbours
        for many receivers, so many in expectation.
      weights: float [edges], by which edges are drawn; None: all alike. Of a `TypedGraph` by the
        name of the relation.
      seed: of the order and the draws, from 0 to 2**32 - 1.
      threads: that make batches ahead; None: a core fewer than there are, at most 4.
      cache_bytes: on several devices, bytes of each for a copy of the rows that are most often
        read, or text such as "1GB"; 0: none.
      like: a loader whose samples have the sizes that these are to have, such as that of another
        fold: the step that was compiled for it serves this one. None: the sizes are found by
        drawing some batches.

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
        links: Links | None = None,
        replace: bool = False,
        method: str = "neighbors",
        weights: Any = None,
        seed: int = 0,
        threads: int | None = None,
        cache_bytes: int | str = 0,
        like: Loader | None = None,
    ) -> None:
        check_positive("batch_size", batch_size)
        if threads is not None:
            check_positive("threads", threads)
        cache_bytes = bytes_of("cache_bytes", cache_bytes) if cache_bytes else 0
        source = source_of(graph)
        check_method(method, replace, weights)
        self.links = None if links is None else link_seeds(graph, links)
        self.draws = Draws(source.fanouts(fanouts), bool(replace), method)
        self.fanouts = np.asarray(fanouts).tolist()
        # With all neighbours, a node is in the sample of its graph alone, on one device.
        self._is_apart = all(x in (0, -1) for layer in self.draws.fanouts for x in layer)
        self._is_apart = self._is_apart and source.is_apart()
        if self.links is None:
            self.seeds = source.seeds(nodes)
        elif nodes is None:
            self.seeds = np.arange(len(self.links.pairs))
        else:
            raise ValueError("nodes, links: seeds are nodes or links; leave out one of them")
        self.batch_size, self.seed = int(batch_size), checked_seed("seed", seed)
        self.threads = threads or min(4, max((os.cpu_count() or 1) - 1, 1))
        neighbors = source.neighbors(weights)
        self.weights = [each.weights for each in neighbors]
        given = placed_on_one(graph) if sharded is None else sharded
        self.sharded = source.checked(given, fetches=bool(self.fanouts))
        homes = homes_of(self.sharded, source)
        if self.links is not None:
            homes[LINK] = _homes_of_links(self.links, source, homes)
        devices = self.sharded.num_parts
        self._free: queue.SimpleQueue[list[Sampler]] = queue.SimpleQueue()
        self._maker = Maker(
            sharded=self.sharded,
            neighbors=neighbors,
            draws=self.draws,
            ends=source.ends,
            homes=homes,
            edge_data=source.edge_data(neighbors),
            target=source.target,
            batch=most_seeds(self.batch_size, self.seeds, devices) * self._rows_of_seed,
            devices=devices,
            by_column=self.sharded.shards.columns is not None,
            given={} if self.links is None else {LINK: self.links.targets},
            reads_whole=not self.fanouts,
        )
        if cache_bytes:
            if self._maker.by_column:
                raise ValueError(
                    "cache_bytes: in mode 'p3' no device reads rows of features; leave it out, and "
                    "shard the graph with feature_budget=..., which lets devices hold more columns"
                )
            reads = {x: y for x, y in source.reads().items() if x not in self._maker.given}
            self._maker = with_cache(self._maker, reads, cache_bytes)
        of_epoch = self._epoch(epoch_key(self.seed, 0))
        needed = probed(self.seeds, self.batch_size, self.seed, of_epoch.needed)
        base = with_usual_room(_agreed(needed))
        base = base if like is None else _sizes_of(like, base)
        self._maker = dataclasses.replace(self._maker, base=base)

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

        Raises:
          ValueError: the epoch is no such number.
        """
        return self.batches_waited_for(checked_seed("epoch", epoch), lambda: False, Usage())

    def batches_waited_for(
        self, epoch: int, is_idle: Callable[[], bool], usage: Usage
    ) -> Iterator[ShardedGraph]:
        """As `batches`; `usage` counts, and the seconds waited for are those while `is_idle()`."""
        of_epoch = self._epoch(epoch_key(self.seed, epoch))
        ordered = shuffled(self.seeds, of_epoch.key)
        starts = range(0, len(ordered), self.batch_size)
        tasks = [ordered[start : start + self.batch_size] for start in starts]
        alone = jax.process_count() == 1

        def make(seeds: np.ndarray) -> Any:
            drawings = of_epoch.drawings(seeds)
            reads = self._maker.reads(drawings)
            return of_epoch.placed(drawings) if alone else drawings, reads

        for found, (remote, copied) in in_order(make, tasks, self.threads, is_idle, usage):
            usage.remote, usage.copied = usage.remote + remote, usage.copied + copied
            yield found if alone else of_epoch.placed(found)

    @property
    def has_cache(self) -> bool:
        """True where devices hold copies of rows of others."""
        return bool(self._maker.cache)

    @property
    def shares_nodes(self) -> bool:
        """True where several devices may compute rows of the same node."""
        return self.sharded.num_parts > 1 and bool(self.fanouts) and not self._is_apart

    def abstract_batch(self) -> ShardedGraph:
        """A batch of the usual sizes, as shapes."""
        return self._maker.abstract()

    @property
    def _rows_of_seed(self) -> int:
        """Rows of the target for each seed: a link has its negatives beside it."""
        return 1 if self.links is None else 1 + self.links.given.negatives

    def _epoch(self, key: int) -> _Epoch:
        """The draws of an epoch."""
        maker, links = self._maker, self.links
        if links is None:
            return _Epoch(maker, key, None, self._free)
        drawn = links.neighbors(key)
        of_each = zip(maker.ends, maker.neighbors, strict=True)
        neighbors = tuple(drawn.get(name, given) for (name, *_), given in of_each)
        maker = dataclasses.replace(maker, neighbors=neighbors)
        return _Epoch(maker, key, links, queue.SimpleQueue())


@dataclasses.dataclass(frozen=True, eq=False)
class _Epoch:
    """The draws of an epoch.

    Attributes:
      maker: makes samples.
      key: of all draws.
      links: those that are the seeds, or None.
      free: samplers of all devices of this process, which no thread uses.
    """

    maker: Maker
    key: int
    links: LinkSeeds | None
    free: queue.SimpleQueue[list[Sampler]]

    def drawings(self, seeds: np.ndarray) -> list[Drawing]:
        """Draws the samples of a batch."""
        local = [index for index, _ in self.maker.local_devices()]
        try:
            samplers = self.free.get_nowait()
        except queue.Empty:
            samplers = [self.maker.sampler() for _ in local]
        rows = seeds if self.links is None else self.links.with_negatives(seeds)
        of_devices = dict(zip(local, samplers, strict=True))
        return list(self.maker.drawings(of_devices, rows, self.key))

    def placed(self, drawings: list[Drawing]) -> ShardedGraph:
        """The graph with a batch."""
        sizes = self.maker.sizes_for(_agreed([each.needed for each in drawings]))
        found = self.maker.placed(drawings, sizes)
        self.free.put([each.sampler for each in drawings])
        return found

    def needed(self, seeds: np.ndarray, key: int) -> list[SampleSizes]:
        """The least sizes of the samples of a batch."""
        assert key == self.key
        drawings = self.drawings(seeds)
        self.free.put([each.sampler for each in drawings])
        return [each.needed for each in drawings]


def _agreed(needed: list[SampleSizes]) -> SampleSizes:
    """The sizes that all processes need."""
    joined = functools.reduce(SampleSizes.joined, needed)
    if jax.process_count() == 1:
        return joined
    from jax.experimental import multihost_utils

    most = np.asarray(multihost_utils.process_allgather(np.array(joined.numbers))).max(axis=0)
    return joined.of_numbers(most.tolist())


def _sizes_of(like: Any, ours: SampleSizes) -> SampleSizes:
    """The sizes of the samples of another loader, for those of this one."""
    theirs = like._maker.base if isinstance(like, Loader) else None
    if theirs is None or theirs.kind != ours.kind:
        what = kind_of(like) if theirs is None else "a loader of other samples"
        raise ValueError(
            f"like is {what}; expected a Loader of a graph with the same sets, on as many devices, "
            "with as many layers and the same batch_size"
        )
    return theirs


def placed_on_one(graph: Any) -> ShardedGraph:
    """The graph on JAX's default device."""
    if isinstance(graph, Graph | TypedGraph):
        return sharded_on_one(graph)
    return place(graph, make_mesh(1))


def _homes_of_links(links: LinkSeeds, source: Source, homes: Mapping[str, Homes]) -> Homes:
    """The links of an epoch, each where its head is."""
    heads = next(sender for name, sender, _ in source.ends if name == HEAD)
    return Homes(links.of_links(homes[heads].owner[links.pairs.heads]), None, 0)
