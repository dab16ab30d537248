"""Measurements between epochs, and moves to a better partition that they lead to."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph, kind_of
from jaxgraph.layers.aggregated import AggregatedFeatures, plain_features
from jaxgraph.parallel import ShardedGraph, SparseFeatures
from jaxgraph.parallel.neighborhood import is_graph
from jaxgraph.partition import Partition
from jaxgraph.planner.cost.features import Access
from jaxgraph.planner.cost.linear_model import Sample
from jaxgraph.planner.cost.moves import (
    Proposal,
    better_partition,
    groups_of,
    move_to,
    partition_of,
)
from jaxgraph.planner.cost.online import OnlineProfile
from jaxgraph.planner.cost.profiling import check_profiled
from jaxgraph.train.aggregates import first_aggregation
from jaxgraph.train.arguments import checked_count
from jaxgraph.train.history import EpochRecord, Measured, Move, SlowestPart

SHARE = 0.02
"""The greatest share of the training time that measurements take."""
PAUSE = 4
"""The most windows that are measured between two epochs."""
Moved = TypeVar("Moved")


def watch_of(
    model: Any,
    sharded: Any,
    source: Any,
    measure_every: Any,
    repartition: Any,
    *,
    aggregate_once: bool,
) -> Callable[..., Watch]:
    """Checks a request of `fit` to measure; returns `(sharded, seconds, earlier) -> Watch`."""
    if repartition not in (None, "auto"):
        raise ValueError(f"repartition is {repartition!r}; expected 'auto', or None: never")
    wanted = "repartition='auto'" if repartition else "measure_every"
    every = 1 if measure_every is None else checked_count("measure_every", measure_every)
    source = sharded if source is None and is_graph(sharded) else source
    if is_graph(sharded) and source is not sharded:
        raise ValueError("source is another graph than the one to train on; leave source out")
    if source is None:
        raise ValueError(
            f"{wanted} needs the graph that was sharded, whose parts it describes: "
            "fit(..., source=graph)"
        )
    check_graph(source, "fit(..., source=graph)")
    if not is_graph(sharded) and not isinstance(sharded, ShardedGraph):
        raise ValueError(f"{wanted} needs one graph; got {kind_of(sharded)}")
    check_profiled(model, source)
    first = first_aggregation(model)
    is_once = aggregate_once and first is not None and first.in_training
    if len(model.layers) == 1 and (is_once or not isinstance(source.nodes, np.ndarray)):
        raise ValueError(
            f"{wanted}: the only layer of the model reads sparse features or aggregates once "
            "for all epochs, which is not measured; make the features dense, or pass "
            "aggregate_once=False"
        )
    if isinstance(sharded, ShardedGraph):
        _check_placed(sharded, wanted)
        with _own_transfers():
            _check_same_graph(source, sharded)
    return partial(Watch, model, source, every, repartition == "auto")


class Watch:
    """Measures between the epochs of one run, and moves it.

    Args:
      model: the model.
      source: the graph that was sharded.
      every: measure after every so many epochs.
      may_move: whether to move to a better partition.
      sharded: the graph on which it trains, aggregated once or not.
      seconds: how long it took to aggregate and to compile the epoch.
      earlier: samples of the run before it was resumed, as `dataclasses.asdict` makes them.
    """

    def __init__(
        self,
        model: Any,
        source: Graph,
        every: int,
        may_move: bool,
        sharded: ShardedGraph,
        seconds: float,
        earlier: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._model, self._source, self._every, self._may_move = model, source, every, may_move
        self._spent = self._compiled = self._searched = 0.0
        self._windows = 0
        self._earlier = _samples(earlier)
        self._tried: list[Partition] = []
        self._moves: list[Move] = []
        self._since = 0
        self._begin(sharded, seconds)

    def _begin(self, sharded: ShardedGraph, seconds: float) -> None:
        self._sharded = sharded
        layers = range(_first_measured(self._model, sharded), len(self._model.layers))
        with _own_transfers():
            self._partition = partition_of(sharded)
            of_graph = (self._source, sharded, self._partition)
            self._profile = OnlineProfile(self._model, *of_graph, layers)
        self._compiled += self._profile.compile_seconds
        self._move_seconds = sharded.seconds + seconds + self._profile.compile_seconds
        self._next_search = 1

    def after(
        self,
        records: Sequence[EpochRecord],
        epochs: int,
        move: Callable[[ShardedGraph], tuple[Moved, ShardedGraph, float]],
    ) -> Moved | None:
        """Measures after an epoch, and moves where that is predicted to pay."""
        if epochs == 0 or len(records) % self._every:
            return None
        self._measure(sum(record.seconds for record in records))
        wanted = self._may_move and self._partition.num_parts > 1
        if not wanted or self._profile.rounds < self._next_search:
            return None
        self._next_search = 2 * self._profile.rounds
        proposal = self._searched_for(records[self._since :], epochs)
        if proposal is None:
            return None
        started = time.perf_counter()
        samples, predicted = self._profile.samples(), self._move_seconds
        left_behind = self._partition
        run, sharded, seconds = move(move_to(self._source, proposal.partition, self._sharded))
        self._begin(sharded, seconds)
        self._earlier += samples
        self._tried.append(left_behind)
        self._since = len(records)
        self._moves.append(
            Move(
                epoch=records[-1].epoch,
                partition=proposal.partition,
                predicted_gain=proposal.gain,
                predicted_seconds=predicted,
                seconds=time.perf_counter() - started,
            )
        )
        return run

    def slowest_part(self) -> SlowestPart | None:
        """Returns the slowest part so far; None until every part has been measured."""
        seconds = self._profile.part_seconds()
        if not seconds:
            return None
        part = max(range(len(seconds)), key=seconds.__getitem__)
        return SlowestPart(part, seconds[part])

    def samples(self) -> tuple[Sample, ...]:
        """The samples so far."""
        return (*self._earlier, *self._profile.samples())

    def measured(self, records: Sequence[EpochRecord]) -> Measured:
        """Returns what has been measured in the epochs of these records."""
        return Measured(
            samples=self.samples(),
            windows=self._windows,
            seconds=self._spent,
            share=self._spent / max(sum(record.seconds for record in records), 1e-9),
            compile_seconds=self._compiled,
            search_seconds=self._searched,
            moves=with_measured_gains(self._moves, records),
        )

    def _measure(self, trained: float) -> None:
        for _ in range(PAUSE):
            if self._spent + self._profile.longest_seconds > SHARE * trained:
                return
            with _own_transfers():
                self._spent += self._profile.take()
            self._windows += 1

    def _searched_for(self, records: Sequence[EpochRecord], epochs: int) -> Proposal | None:
        started = time.perf_counter()
        proposal = better_partition(
            self._source,
            self._partition,
            self._profile.models(self._earlier),
            groups=groups_of(self._sharded),
            epoch_seconds=statistics.median(record.seconds for record in records),
            epochs=epochs,
            move_seconds=self._move_seconds,
            others=self._tried,
        )
        self._searched += time.perf_counter() - started
        return proposal


def _samples(fields: Sequence[Mapping[str, Any]]) -> list[Sample]:
    return [Sample(**{**each, "access": Access(**each["access"])}) for each in fields]


def _own_transfers() -> Any:
    """Allows transfers that measurements make, whatever a caller forbids for the epochs."""
    return jax.transfer_guard("allow")


def with_measured_gains(moves: Sequence[Move], records: Sequence[EpochRecord]) -> tuple[Move, ...]:
    """Compares the median epoch before each move with that after it, up to the next one."""
    ends = [move.epoch for move in moves]
    found = []
    for index, move in enumerate(moves):
        first = ends[index - 1] if index else 0
        last = ends[index + 1] if index + 1 < len(ends) else records[-1].epoch
        before = [r.seconds for r in records if first < r.epoch <= move.epoch]
        after = [r.seconds for r in records if move.epoch < r.epoch <= last]
        gain = statistics.median(before) - statistics.median(after) if after else None
        found.append(dataclasses.replace(move, measured_gain=gain))
    return tuple(found)


def _first_measured(model: Any, sharded: ShardedGraph) -> int:
    """1 where steps read the first layer's aggregate, and no neighbours, or sparse features."""
    first, nodes = first_aggregation(model), sharded.shards.nodes
    if isinstance(plain_features(nodes), SparseFeatures):
        return 1
    return int(isinstance(nodes, AggregatedFeatures) and first is not None and first.in_training)


def _check_placed(sharded: ShardedGraph, wanted: str) -> None:
    if sharded.is_streamed:
        raise ValueError(
            f"{wanted}: not for a graph in mode 'stream', which visits the device part by part; "
            "leave it out, or shard the graph in mode 'domain' or 'sar'"
        )
    if sharded.shards.columns is not None:
        raise ValueError(
            f"{wanted}: the graph is in mode 'p3', whose layers are not measured; shard it with "
            "mode='domain' or 'sar'"
        )
    if not sharded.shards.node_ids.is_fully_addressable:
        raise ValueError(
            f"{wanted}: the graph has parts in {jax.process_count()} processes; expected all of "
            "them in this one"
        )


def _check_same_graph(source: Graph, sharded: ShardedGraph) -> None:
    """Compares sizes, degrees, labels, masks and the first column of the features."""
    counts, shards = sharded.counts, sharded.shards
    if counts is None:
        raise ValueError(
            "the sharded graph has lost its counts in jax.jit or jax.tree.map; pass what "
            "jaxgraph.parallel.shard returned"
        )
    sizes = (counts.num_nodes, counts.num_edges), (source.num_nodes, source.num_edges)
    wrong = "" if sizes[0] == sizes[1] else "numbers of nodes and edges"
    if not wrong:
        mask = np.asarray(shards.node_mask)
        ids = np.asarray(shards.node_ids)[mask]
        names = ("labels", "train_mask", "val_mask", "test_mask")
        pairs = {name: (getattr(shards, name), getattr(source, name)) for name in names}
        pairs["in-degrees"] = (shards.in_degree, source.in_degrees())
        x = plain_features(shards.nodes)
        if isinstance(x, jax.Array) and isinstance(source.nodes, np.ndarray):
            column = np.asarray(source.nodes[:, :1], jnp.dtype(x.dtype))
            pairs["features"] = (x[..., :1], column)
        for name, (held, given) in pairs.items():
            if held is None and given is None:
                continue
            # A graph without labels or masks may have taken those of no node from another.
            if held is None or (given is not None and _differ(np.asarray(held)[mask], given[ids])):
                wrong = name
    if wrong:
        raise ValueError(
            f"source is another graph than the sharded one: they differ in {wrong}; pass the graph "
            "that jaxgraph.parallel.shard was given"
        )


def _differ(held: np.ndarray, given: np.ndarray) -> bool:
    return not np.array_equal(held, given.astype(held.dtype), equal_nan=held.dtype.kind == "f")
