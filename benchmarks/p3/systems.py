"""The compared ways to run the first layer of GraphSAGE.

GraphSAGE is the model of P3's figures 10 and 15. The library chooses the order of aggregation and
transformation by cost; here both orders are written with P-TAGS, which run them as written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
from flax import nnx

import jaxgraph as jg
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.nn import SAGEConv
from jaxgraph.parallel import ptags
from jaxgraph.parallel.exchange import Route, halo_route
from jaxgraph.partition.assignment import Partition

__all__ = ["SYSTEMS", "AggregateFirst", "System", "TransformFirst", "make_model", "place"]

CLASSES = 40
Kernels = Mapping[str, jax.Array]
Rows = tuple[float, float]


class AggregateFirst(SAGEConv):
    """GraphSAGE that moves features: the baseline of P3's authors, in DGL and ROC."""

    @property
    def first_aggregation(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None: nothing is aggregated in advance."""
        return

    def __call__(
        self,
        shard: jg.parallel.Shard,
        x: jg.layers.Features,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """float [rows, out_features], from x [rows, in_features]."""
        rows, kernels = _given(x), self._kernels()
        neighbors = ptags.gather(ptags.scatter(shard, rows), "mean")
        return ptags.sync(ptags.transform(rows, neighbors, kernels, _map_both)) + self.bias[...]

    def _kernels(self) -> Kernels:
        return {"own": self.self_kernel[...], "neighbor": self.neighbor_kernel[...]}


class TransformFirst(AggregateFirst):
    """GraphSAGE that moves activations, at any width."""

    def __call__(
        self,
        shard: jg.parallel.Shard,
        x: jg.layers.Features,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """float [rows, out_features], from x [rows, in_features]."""
        rows, kernels = _given(x), self._kernels()
        sent = jg.layers.linear(shard, rows, kernels["neighbor"])
        neighbors = ptags.gather(ptags.scatter(shard, sent), "mean")
        means = ptags.sync(ptags.transform(sent, neighbors, (), _mean_alone))
        return jg.layers.linear(shard, rows, kernels["own"], self.bias[...]) + means


def _map_both(kernels: Kernels, x: jax.Array, mean: jax.Array) -> jax.Array:
    return x @ kernels["own"] + mean @ kernels["neighbor"]


def _mean_alone(kernels: tuple[()], x: jax.Array, mean: jax.Array) -> jax.Array:
    return mean


def _given(x: jg.layers.Features) -> jax.Array:
    return jg.layers.require_rows(jg.layers.plain_features(x), "an order written out")


@dataclasses.dataclass(frozen=True)
class System:
    """One way to run the first layer.

    Attributes:
      name: name in the tables.
      mode: the schedule of the layers after the first, and of the first where `chunks` is 0.
      chunks: chunks of P3's partial activations; 0: not mode "p3".
      topology: placement of P3's edges of the first layer.
      convolution: convolution of the first layer.
      is_cached: whether the first aggregation is computed once, before training.
    """

    name: str
    mode: str
    chunks: int = 0
    topology: str = "replicated"
    convolution: type[SAGEConv] = SAGEConv
    is_cached: bool = False

    def rows_sent(self, sharded: jg.parallel.ShardedGraph) -> Rows:
        """Rows that leave a device in the first layer, forward and (if any) backward."""
        manifest = sharded.manifest
        if self.is_cached and not self.chunks:
            return 0, 0
        if steps := self._ring(sharded):
            forward, backward = (sum(rows) / manifest.num_parts for rows in steps)
            return forward, backward
        rows = manifest.node_rows if self.chunks else manifest.halo_rows
        return (manifest.num_parts - 1) * rows, (manifest.num_parts - 1) * rows

    def rows_counted(self, sharded: jg.parallel.ShardedGraph) -> Rows:
        """The same rows as a compiled program counts them: every step of a ring as its largest."""
        if steps := self._ring(sharded):
            forward, backward = (len(rows) * max(rows) / sharded.num_parts for rows in steps)
            return forward, backward
        return self.rows_sent(sharded)

    def _ring(self, sharded: jg.parallel.ShardedGraph) -> tuple[list[int], list[int]] | None:
        """Rows that all devices send in each step, forward and backward, if there are steps."""
        if self.mode != "sar" or self.chunks:
            return None
        route = halo_route(sharded.shards)
        return _rows(route), _rows(route.answers())

    def widths_sent(self, features: int, hidden: int) -> tuple[int, int]:
        """Columns of the rows that are sent forward and backward.

        Features need no gradient, so a system that aggregates them sends nothing backward.
        """
        sends_features = self.convolution is AggregateFirst or (
            self.convolution is SAGEConv and not self.chunks and hidden > features
        )
        return (features, 0) if sends_features else (hidden, hidden)

    def columns_aggregated(self, features: int, hidden: int, devices: int) -> list[int]:
        """Columns that every device aggregates in the first layer, over all its edges."""
        if self.is_cached:
            return [0] * devices
        if self.chunks:
            fewer, more = divmod(features, devices)
            width = fewer + (more > 0)
            if hidden <= width:
                return [hidden] * devices
            return [fewer + (index < more) for index in range(devices)]
        return [self.widths_sent(features, hidden)[0]] * devices


def _rows(route: Route) -> list[int]:
    """Rows that travel in each step of a route, over all pairs of parts."""
    return [
        sum((segment.stop - segment.start) * len(segment.pairs) for segment in step)
        for step in route.steps
    ]


SYSTEMS = (
    System("p3", "domain", chunks=1),
    System("p3, 8 chunks", "domain", chunks=8),
    System("p3, 8 chunks, pushed", "domain", chunks=8, topology="pushed"),
    System("p3, cached", "domain", chunks=1, is_cached=True),
    System("p3, rest sar", "sar", chunks=1),
    System("p3, rest sar, 8 chunks", "sar", chunks=8),
    System("aggregate first", "domain", convolution=AggregateFirst),
    System("transform first", "domain", convolution=TransformFirst),
    System("cached", "domain", is_cached=True),
    System("sar", "sar"),
)
"""All systems; those with the same first layer send the same there."""


def make_model(system: System, features: int, hidden: int) -> jg.nn.GraphSAGE:
    """Two layers of GraphSAGE, the first as the system runs it."""
    rngs = nnx.Rngs(0)
    model = jg.nn.GraphSAGE(features, hidden, CLASSES, num_layers=2, rngs=rngs)
    if system.convolution is not SAGEConv:
        model.layers[0].convolution = system.convolution(features, hidden, rngs=rngs)
    return model


def place(
    system: System, graph: jg.Graph, parts: Partition, model: nnx.Module
) -> jg.parallel.ShardedGraph:
    """The shapes of a graph as a system holds it, on one device per part."""
    request = None
    if system.chunks:
        request = ColumnRequest(topology=system.topology, chunks=system.chunks)
    manifest = tabulate(graph, parts, system.mode, columns=request).manifest
    mesh = jg.parallel.make_mesh(parts.num_parts)
    sharded = jg.parallel.place(jg.parallel.AbstractSource(manifest), mesh)
    return jg.train.aggregate_once(model, sharded) if system.is_cached else sharded
