"""Mini-batches of a graph: seeds in a random order, and samples of their neighbourhoods."""

from __future__ import annotations

import dataclasses
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_positive, kind_of
from jaxgraph.layout.sample_tables import SampleSizes, empty_words, joined_sizes
from jaxgraph.parallel import ShardedGraph
from jaxgraph.parallel.samples import cache_of
from jaxgraph.parallel.spmd import on_host
from jaxgraph.parallel.whole_graph import sharded_on_one
from jaxgraph.sampling.batches import Drawing, Homes, Maker, in_order
from jaxgraph.sampling.draw import Draws
from jaxgraph.sampling.native import Sampler, sampler_of
from jaxgraph.sampling.neighbors import neighbors_of
from jaxgraph.sampling.order import epoch_key, of_devices, shuffled
from jaxgraph.seeds import checked_seed

_PROBES = 8
"""Batches from which the usual sizes of a sample are found."""
_ROOM = 1.04


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
      graph: the graph; what a batch reads of nodes and edges stays on the devices and the host.
      fanouts: the most neighbours of each layer, the first layer first; -1: all. One for each layer
        that reads edges.
      sharded: the same graph on the devices of a mesh, in mode "sar" or "domain"; None: on JAX's
        default device. Each device then has its share of a batch, and fetches rows from the
        devices that hold them.
      batch_size: seeds of a batch, of all devices together.
      nodes: int [seeds], the seeds; None: the training nodes.
      replace: whether a neighbour may be drawn more than once.
      method: "neighbors", so many for each receiver; or "labor", which draws the same neighbours
        for many receivers, so many in expectation.
      weights: float [edges], by which edges are drawn; None: all alike.
      seed: of the order and the draws, from 0 to 2**32 - 1.
      threads: that make batches ahead; None: a core fewer than there are, at most 4.
      cache_bytes: on several devices, bytes of each for a copy of the rows that are most often
        read; 0: none.

    Attributes:
      sharded: the sharded graph, for evaluation.
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
        graph: Graph,
        fanouts: Sequence[int],
        *,
        sharded: ShardedGraph | None = None,
        batch_size: int = 1024,
        nodes: Any = None,
        replace: bool = False,
        method: str = "neighbors",
        weights: Any = None,
        seed: int = 0,
        threads: int | None = None,
        cache_bytes: int = 0,
    ) -> None:
        if not isinstance(graph, Graph):
            raise ValueError(f"graph is {kind_of(graph)}; expected a jaxgraph.Graph")
        check_positive("batch_size", batch_size)
        self.draws = Draws(_checked_fanouts(fanouts), bool(replace), method)
        self.sharded = sharded_on_one(graph) if sharded is None else _checked(sharded, graph)
        self.batch_size, self.seed = int(batch_size), checked_seed("seed", seed)
        if threads is not None:
            check_positive("threads", threads)
        self.threads = threads or min(4, max((os.cpu_count() or 1) - 1, 1))
        self.seeds = _checked_seeds(graph, nodes)
        weights = None if weights is None else _checked_weights(weights, graph.num_edges)
        neighbors = neighbors_of(graph.num_nodes, graph.senders, graph.receivers, weights)
        data = {
            name: x
            for name in ("edges", "edge_weight", "edge_type")
            if (x := getattr(graph, name)) is not None
        }
        homes = _homes(self.sharded)
        per_device = -(-min(self.batch_size, len(self.seeds)) // self.sharded.num_parts)
        maker = Maker(
            self.sharded, neighbors, self.draws, homes, {**data, **graph.edge_data}, per_device
        )
        self.weights = neighbors.weights
        self._free: queue.SimpleQueue[list[Sampler]] = queue.SimpleQueue()
        self._maker = maker
        if cache_bytes:
            self._maker = _with_cache(maker, graph.out_degrees(), cache_bytes)
        self._maker = dataclasses.replace(self._maker, base=self._probed())

    def __len__(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.seeds) // self.batch_size)

    def __repr__(self) -> str:
        return (
            f"Loader({len(self)} batches of {self.batch_size} of {len(self.seeds)} seeds, "
            f"fanouts={list(self.draws.fanouts)})"
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
        return self.batches_waited_for(epoch, None, [])

    def batches_waited_for(
        self, epoch: int, is_idle: Callable[[], bool] | None, idle: list[float]
    ) -> Iterator[ShardedGraph]:
        """As `batches`; the seconds waited for while `is_idle()` are added to `idle`."""
        key = epoch_key(self.seed, epoch)
        ordered = shuffled(self.seeds, key)
        starts = range(0, len(ordered), self.batch_size)
        tasks = [ordered[start : start + self.batch_size] for start in starts]
        alone = jax.process_count() == 1

        def make(seeds: np.ndarray) -> Any:
            drawings = self._drawings(seeds, key)
            return self._placed(drawings) if alone else drawings

        for found in in_order(make, tasks, self.threads, is_idle, idle):
            yield found if alone else self._placed(found)

    def abstract_batch(self) -> ShardedGraph:
        """A batch of the usual sizes, as shapes."""
        return self._maker.abstract()

    def _drawings(self, seeds: np.ndarray, key: int) -> list[Drawing]:
        maker = self._maker
        local = maker.local_devices()
        try:
            samplers = self._free.get_nowait()
        except queue.Empty:
            samplers = [sampler_of(maker.neighbors, maker.draws) for _ in local]
        of_each = of_devices(seeds, maker.homes.owner, maker.devices)
        return [
            maker.drawing(sampler, of_each[index].astype(np.int32), index, key)
            for sampler, (index, _) in zip(samplers, local, strict=True)
        ]

    def _placed(self, drawings: list[Drawing]) -> ShardedGraph:
        sizes = self._maker.sizes_for(_agreed([each.needed for each in drawings]))
        found = self._maker.placed(drawings, sizes)
        self._free.put([each.sampler for each in drawings])
        return found

    def _probed(self) -> SampleSizes:
        """Sizes that hold the samples of some batches, with some room."""
        key = epoch_key(self.seed, 0)
        ordered, found = shuffled(self.seeds, key), []
        for start in range(0, len(ordered), self.batch_size)[:_PROBES]:
            drawings = self._drawings(ordered[start : start + self.batch_size], key)
            found += [each.needed for each in drawings]
            self._free.put([each.sampler for each in drawings])
        return _agreed(found).with_room(_ROOM)


def _agreed(needed: list[SampleSizes]) -> SampleSizes:
    """The sizes that all processes need."""
    joined = joined_sizes(needed)
    if jax.process_count() == 1:
        return joined
    from jax.experimental import multihost_utils

    own = np.array([*joined.rows, *joined.edges, joined.asked])
    most = np.asarray(multihost_utils.process_allgather(own)).max(axis=0).tolist()
    split = len(joined.rows)
    rows, edges = tuple(most[:split]), tuple(most[split:-1])
    return dataclasses.replace(joined, rows=rows, edges=edges, asked=most[-1])


def _homes(sharded: ShardedGraph) -> Homes:
    """Where the rows of a sharded graph are."""
    table = sharded.shards.table()
    ids, mask = on_host(table.node_ids, table.node_mask)
    owner, row = np.nonzero(mask)
    found = np.empty((2, len(owner)), np.int32)
    found[:, ids[owner, row]] = owner, row
    return Homes(found[0], found[1], ids.shape[1])


def _with_cache(maker: Maker, reads: np.ndarray, cache_bytes: int) -> Maker:
    """The maker with a copy of the rows that are read most on each device."""
    table = maker.sharded.shards.table()
    nbytes = sum(leaf.nbytes // leaf.shape[1] // leaf.shape[0] for leaf in jax.tree.leaves(table))
    count = min(int(cache_bytes) // max(nbytes, 1), len(reads))
    if not count or maker.devices == 1:
        return maker
    hot = np.argsort(-reads, kind="stable")[:count].astype(np.int32)
    local, homes = maker.local_devices(), maker.homes
    requests = [homes.requests(hot, index, maker.devices) for index, _ in local]
    asked = int(np.bincount(homes.owner[hot]).max())
    sizes = SampleSizes((count,), (), maker.devices, asked)
    words = empty_words(len(local), sizes)
    for request, own in zip(requests, words, strict=True):
        views = sizes.views(own)
        views["node_ids"][...], views["counts"][...] = hot, count
        request.write(views, homes.rows)
    cache = cache_of(maker.sharded, maker.on_devices(list(words)), sizes)
    cached = np.full(len(reads), -1, np.int32)
    cached[hot] = np.arange(count)
    homes = dataclasses.replace(homes, cached=cached, cache_rows=count)
    return dataclasses.replace(maker, homes=homes, cache=cache)


def _checked_fanouts(fanouts: Any) -> tuple[int, ...]:
    given = list(fanouts) if isinstance(fanouts, Sequence | np.ndarray) else []
    is_count = [isinstance(x, int | np.integer) and not isinstance(x, bool) for x in given]
    if not given or not all(is_count) or any(x < 1 and x != -1 for x in given):
        raise ValueError(
            f"fanouts is {fanouts!r}; expected the most neighbours of each layer, such as "
            "[15, 10, 5], where -1 stands for all"
        )
    return tuple(map(int, given))


def _checked(sharded: Any, graph: Graph) -> ShardedGraph:
    if not isinstance(sharded, ShardedGraph):
        raise ValueError(
            f"sharded is {kind_of(sharded)}; expected the result of jaxgraph.parallel.shard(graph, "
            "partition, mesh)"
        )
    if sharded.num_nodes != graph.num_nodes:
        raise ValueError(
            f"sharded has {sharded.num_nodes} nodes, and graph {graph.num_nodes}; shard the graph "
            "that is given"
        )
    return sharded


def _checked_seeds(graph: Graph, nodes: Any) -> np.ndarray:
    if nodes is None:
        if graph.train_mask is None or not graph.train_mask.any():
            raise ValueError(
                "the graph has no training nodes to begin from; give Graph train_mask=..., draw "
                "one with jaxgraph.transforms.random_split, or give the loader nodes=..."
            )
        return np.flatnonzero(graph.train_mask)
    found = np.asarray(nodes)
    if found.ndim != 1 or not len(found) or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(
            f"nodes has shape {list(found.shape)} and type {found.dtype}; expected integers [seeds]"
        )
    if found.min() < 0 or found.max() >= graph.num_nodes:
        raise ValueError(
            f"nodes holds {found.min()} to {found.max()}; expected nodes of the graph, 0 to "
            f"{graph.num_nodes - 1}"
        )
    unique = np.unique(found)
    if len(unique) != len(found):
        raise ValueError(
            f"nodes holds {len(found) - len(unique)} nodes more than once; expected each once"
        )
    return unique


def _checked_weights(weights: Any, num_edges: int) -> np.ndarray:
    found = np.asarray(weights, np.float32)
    if found.shape != (num_edges,) or not np.isfinite(found).all() or (found < 0).any():
        raise ValueError(
            f"weights has shape {list(found.shape)}; expected finite numbers [{num_edges}], 0 or "
            "more, one for each edge"
        )
    return found
