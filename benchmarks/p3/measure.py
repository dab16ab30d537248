"""Bytes that compiled programs send and hold, and counts without compilation."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxgraph as jg
from benchmarks.memory import temporary_bytes
from benchmarks.p3.systems import SYSTEMS, System, make_model, place
from jaxgraph.nn import SAGEConv
from jaxgraph.partition.assignment import Partition

__all__ = [
    "FIRST_LAYERS",
    "Cut",
    "Partitioning",
    "Point",
    "Step",
    "Transfer",
    "cut",
    "measure_steps",
    "measure_transfers",
    "with_features",
]

FIRST_LAYERS = tuple(
    system
    for system in SYSTEMS
    if system.name in ("p3", "aggregate first", "transform first", "cached", "sar")
)
"""Systems whose first layers send different bytes."""

TOLERANCE = 0.001


@dataclasses.dataclass(frozen=True)
class Point:
    """One point of the tables: a graph, its partition, the devices and the widths.

    Attributes:
      graph, partition: names.
      devices: number of devices.
      features, hidden: widths of the first layer.
    """

    graph: str
    partition: str
    devices: int
    features: int
    hidden: int


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Bytes that the first layer sends, per device.

    Attributes:
      point, system: the layer.
      forward, backward: bytes, except those of the sum of the parameters' gradients.
      is_compiled: whether a program was compiled for them; else they are rows times columns.
    """

    point: Point
    system: str
    forward: int
    backward: int
    is_compiled: bool

    @property
    def both(self) -> int:
        """Bytes of both directions."""
        return self.forward + self.backward


@dataclasses.dataclass(frozen=True)
class Step:
    """A compiled train step of two layers, per device.

    Attributes:
      point, system: the step.
      sent: bytes that leave a device.
      feature_bytes: bytes of node features, and of their aggregate where it is held.
      table_bytes: bytes of all other arrays of the graph, such as edges.
      temporary_bytes: bytes of the step, in addition to its arguments and results.
      work: columns times edges of the first layer's aggregation, for every device.
      compile_seconds: wall time.
    """

    point: Point
    system: str
    sent: int
    feature_bytes: int
    table_bytes: int
    temporary_bytes: int
    work: tuple[int, ...]
    compile_seconds: float

    @property
    def imbalance(self) -> float:
        """The most work of a device over the mean; 1 without work."""
        mean = sum(self.work) / len(self.work)
        return max(self.work) / mean if mean else 1.0


@dataclasses.dataclass(frozen=True)
class Partitioning:
    """Wall time of a partitioner, and the balance of its parts.

    Attributes:
      graph, partition, devices: the partition.
      seconds: time of the partitioner.
      edges: the most edges that end in a part, over the mean.
    """

    graph: str
    partition: str
    devices: int
    seconds: float
    edges: float


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """A graph in parts.

    Attributes:
      name, graph: the graph.
      parts: partition of its nodes.
      seconds: time of the partitioner.
      edges: int [parts], edges that end in each.
    """

    name: str
    graph: jg.Graph
    parts: Partition
    seconds: float
    edges: np.ndarray

    @property
    def summary(self) -> Partitioning:
        """Time and balance."""
        even = float(self.edges.max() / self.edges.mean())
        return Partitioning(self.name, self.parts.method, self.parts.num_parts, self.seconds, even)


def cut(name: str, graph: jg.Graph, devices: int, method: str) -> Cut:
    """Partitions a graph, and measures the time."""
    start = time.perf_counter()
    parts = jg.partition.partition(graph, devices, method=method, seed=0)
    seconds = time.perf_counter() - start
    edges = np.bincount(parts.assignment[graph.receivers], minlength=devices)
    return Cut(name, graph, parts, seconds, edges)


def with_features(graph: jg.Graph, features: int) -> jg.Graph:
    """The graph with features of another width, all 0: they are never read."""
    return dataclasses.replace(graph, nodes=np.zeros((graph.num_nodes, features), np.float32))


def measure_transfers(
    made: Cut, widths: Iterable[tuple[int, int]], compiled: Iterable[tuple[int, int]]
) -> Iterator[Transfer]:
    """Measures the bytes that the first layer of every system sends.

    Args:
      made: the graph in parts.
      widths: (features, hidden) of the layer.
      compiled: the widths at which the program is compiled; it must send rows times columns.

    Yields:
      One entry for each system and width.

    Raises:
      RuntimeError: a program does not send rows times columns.
    """
    widths, compiled = tuple(widths), frozenset(compiled)
    for system in FIRST_LAYERS:
        sharded = _first_layer(system, made, *widths[0])[1]
        rows, rows_counted = system.rows_sent(sharded), system.rows_counted(sharded)
        for features, hidden in widths:
            columns = system.widths_sent(features, hidden)
            if is_compiled := (features, hidden) in compiled:
                counted = _layer_bytes(*_first_layer(system, made, features, hidden))
                _check(system, made, counted, _bytes(rows_counted, columns))
            sent = _bytes(rows, columns)
            yield Transfer(_point(made, features, hidden), system.name, *sent, is_compiled)


def _bytes(rows: tuple[float, float], columns: tuple[int, int]) -> tuple[int, int]:
    """Bytes of float32 rows, forward and backward."""
    return round(4 * rows[0] * columns[0]), round(4 * rows[1] * columns[1])


def _first_layer(
    system: System, made: Cut, features: int, hidden: int
) -> tuple[SAGEConv, jg.parallel.ShardedGraph]:
    model = make_model(system, features, hidden)
    sharded = place(system, with_features(made.graph, features), made.parts, model)
    convolution = model.layers[0].convolution
    assert isinstance(convolution, SAGEConv)
    return convolution, sharded


def _point(made: Cut, features: int, hidden: int) -> Point:
    return Point(made.name, made.parts.method, made.parts.num_parts, features, hidden)


def _check(system: System, made: Cut, counted: Sequence[int], expected: Sequence[int]) -> None:
    for found, wanted in zip(counted, expected, strict=True):
        if abs(found - wanted) > TOLERANCE * wanted:
            raise RuntimeError(
                f"{system.name} on {made.name}, {made.parts.num_parts} devices, "
                f"{made.parts.method}: the compiled layer sends {tuple(counted)} bytes forward and "
                f"backward, rows times columns are {tuple(expected)}"
            )


def _layer_bytes(convolution: nnx.Module, sharded: jg.parallel.ShardedGraph) -> tuple[int, int]:
    """Bytes that leave a device in a layer alone, forward and backward."""
    graphdef, params = nnx.split(convolution)

    def energy(params: nnx.State, shard: jg.parallel.Shard) -> jax.Array:
        y = nnx.merge(graphdef, params)(shard, shard.nodes)
        return shard.sum(jnp.sum(shard.mask_rows(y) ** 2))

    program = jg.parallel.spmd(energy)
    forward = _moved(program.lower(params, sharded).compile())
    both = _moved(jax.jit(jax.grad(program)).lower(params, sharded).compile())
    return forward, both - forward


def _moved(compiled: jax.stages.Compiled) -> int:
    """Bytes that a program sends, except for sums of scalars and of the parameters' gradients."""
    sent = jg.analysis.traffic(compiled)
    return sum(size for collective, size in sent.items() if collective != "all-reduce")


def measure_steps(made: Cut, features: int, hidden: int) -> Iterator[Step]:
    """The train step of every system."""
    graph = (
        made.graph if made.graph.num_features == features else with_features(made.graph, features)
    )
    for system in SYSTEMS:
        model = make_model(system, features, hidden)
        sharded = place(system, graph, made.parts, model)
        start = time.perf_counter()
        compiled = jg.train.compile_train_step(model, sharded, optax.adam(1e-2))
        seconds = time.perf_counter() - start
        feature_bytes = _bytes_per_device(sharded.shards.nodes, sharded.num_parts)
        yield Step(
            _point(made, features, hidden),
            system.name,
            sum(jg.analysis.traffic(compiled).values()),
            feature_bytes,
            _bytes_per_device(sharded.shards, sharded.num_parts) - feature_bytes,
            temporary_bytes(compiled),
            _work(system, made, features, hidden),
            seconds,
        )


def _bytes_per_device(tree: Any, devices: int) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) // devices


def _work(system: System, made: Cut, features: int, hidden: int) -> tuple[int, ...]:
    devices = made.parts.num_parts
    columns = system.columns_aggregated(features, hidden, devices)
    total = int(made.edges.sum())
    edges = [total] * devices if system.chunks else made.edges.tolist()
    return tuple(width * count for width, count in zip(columns, edges, strict=True))
