"""Traffic of the first layer under mode "p3", domain and SAR.

The first layer of GraphSAGE, the model of P3's figures 10 and 15, runs under P3, under `domain` in
both orders (aggregate first moves features, transform first moves activations), under `domain` with
the first aggregation computed once, and under `sar`; on hash and METIS partitions of a generated
graph like ogbn-arxiv, and of Coauthor-CS with its 6,805 features, where its folder is given. The
generated graph is smaller than ogbn-arxiv, to save time. It has the same degrees and nearly the
same traffic ratios (at full size, P3's to transform first is a twentieth to an eighth higher).
Nothing runs: the figures are those of programs compiled for emulated devices. A step of aggregate
first sends the features twice, since models recompute their layers in the backward.

    python -m benchmarks.p3 --data-dir DIR
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from benchmarks.generated import OGBN_ARXIV, generate
from jaxgraph.layers.dense import require_rows
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.nn import SAGEConv
from jaxgraph.parallel import ptags
from jaxgraph.parallel.feature_protocol import Features, plain_features
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.partition.assignment import Partition
from jaxgraph.train.aggregates import aggregate_once

CLASSES = 40
WIDTHS = ((512, 32), (100, 512))
"""Features and hidden features, of the paper's figures 10 and 15."""
METHODS = ("hash", "metis")
COAUTHOR_DEVICES, COAUTHOR_HIDDEN = [8, 16], 16
# The code does not run, so it need not be fast; collectives and buffers are chosen earlier.
NO_CODE = "--xla_backend_optimization_level=0"
Kernels = Mapping[str, jax.Array]


class AggregateFirst(SAGEConv):
    """GraphSAGE that moves features: the baseline of P3's authors, in DGL and ROC.

    The library chooses the order by cost; P-TAGS run it as it is written.
    """

    @property
    def first_aggregation(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None: nothing is aggregated in advance."""
        return

    def __call__(
        self,
        shard: jg.parallel.Shard,
        x: Features,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """float [rows, out_features], from x [rows, in_features]."""
        kernels = {"own": self.self_kernel[...], "neighbor": self.neighbor_kernel[...]}
        rows = require_rows(plain_features(x), "an order written out")
        return self._ordered(shard, rows, kernels)

    def _ordered(self, shard: jg.parallel.Shard, rows: jax.Array, kernels: Kernels) -> jax.Array:
        neighbors = ptags.gather(ptags.scatter(shard, rows), "mean")
        return ptags.sync(ptags.transform(rows, neighbors, kernels, _map_both)) + self.bias[...]


class TransformFirst(AggregateFirst):
    """GraphSAGE that moves activations, at any width."""

    def _ordered(self, shard: jg.parallel.Shard, rows: jax.Array, kernels: Kernels) -> jax.Array:
        sent = jg.layers.linear(shard, rows, kernels["neighbor"])
        neighbors = ptags.gather(ptags.scatter(shard, sent), "mean")
        means = ptags.sync(ptags.transform(sent, neighbors, (), _mean_alone))
        return jg.layers.linear(shard, rows, kernels["own"], self.bias[...]) + means


def _map_both(kernels: Kernels, x: jax.Array, mean: jax.Array) -> jax.Array:
    return x @ kernels["own"] + mean @ kernels["neighbor"]


def _mean_alone(kernels: tuple[()], x: jax.Array, mean: jax.Array) -> jax.Array:
    return mean


@dataclasses.dataclass(frozen=True)
class System:
    """One way to run the first layer.

    Attributes:
      name: name in the table.
      mode: the schedule.
      is_p3: whether the first layer runs under P3.
      convolution: convolution of the first layer.
      is_cached: whether the first aggregation is computed once, before training.
    """

    name: str
    mode: str = "domain"
    is_p3: bool = False
    convolution: type[SAGEConv] = SAGEConv
    is_cached: bool = False


SYSTEMS = (
    System("p3", is_p3=True),
    System("aggregate first", convolution=AggregateFirst),
    System("transform first", convolution=TransformFirst),
    System("cached", is_cached=True),
    System("sar", mode="sar"),
)


def make_model(system: System, features: int, hidden: int) -> jg.nn.GraphSAGE:
    """Two layers of GraphSAGE, the first as the system runs it."""
    rngs = nnx.Rngs(0)
    model = jg.nn.GraphSAGE(features, hidden, CLASSES, num_layers=2, rngs=rngs)
    if system.convolution is not SAGEConv:
        model.layers[0].convolution = system.convolution(features, hidden, rngs=rngs)
    return model


def first_layer(
    system: System, graph: jg.Graph, parts: Partition, features: int, hidden: int
) -> tuple[SAGEConv, jg.parallel.ShardedGraph]:
    """The first layer of a system, and the shapes of the graph as it holds it."""
    model = make_model(system, features, hidden)
    # They are never read.
    zeros = np.zeros((graph.num_nodes, features), np.float32)
    request = ColumnRequest(chunks=1) if system.is_p3 else None
    manifest = tabulate(graph.replace(nodes=zeros), parts, system.mode, columns=request).manifest
    mesh = jg.parallel.make_mesh(parts.num_parts)
    sharded = jg.parallel.place(AbstractSource(manifest), mesh)
    convolution = model.layers[0].convolution
    assert isinstance(convolution, SAGEConv)
    return convolution, aggregate_once(model, sharded) if system.is_cached else sharded


def measure(
    name: str, graph: jg.Graph, parts: Partition, features: int, hidden: int
) -> dict[str, Any]:
    """MB that the first layer of every system sends, forward and backward together."""
    found: dict[str, Any] = {"graph": name, "partition": parts.method, "devices": parts.num_parts}
    found |= {"features": features, "hidden": hidden}
    for system in SYSTEMS:
        layer, sharded = first_layer(system, graph, parts, features, hidden)
        found[system.name] = layer_bytes(layer, sharded) / 1e6
    return found


def layer_bytes(convolution: nnx.Module, sharded: jg.parallel.ShardedGraph) -> int:
    """Bytes that leave a device in a layer alone, except sums of the parameters' gradients."""
    graphdef, params = nnx.split(convolution)

    def energy(params: nnx.State, shard: jg.parallel.Shard) -> jax.Array:
        y = nnx.merge(graphdef, params)(shard, shard.nodes)
        return shard.sum(jnp.sum(shard.mask_rows(y) ** 2))

    program = jg.parallel.spmd(energy)
    sent = jg.analysis.traffic(jax.jit(jax.grad(program)).lower(params, sharded).compile())
    return sum(size for collective, size in sent.items() if collective != "all-reduce")


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("JAXGRAPH_DATA"))
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--scale", type=int, default=8, help="1/scale of ogbn-arxiv's nodes")
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {NO_CODE}"
    jg.parallel.emulate_devices(max(*options.devices, *COAUTHOR_DEVICES))
    like_arxiv = generate(OGBN_ARXIV, scale=options.scale)
    wanted: list[tuple[Any, ...]] = [("like arxiv", like_arxiv, options.devices, WIDTHS)]
    if options.data_dir is not None:
        graph = jg.datasets.load("coauthor-cs", data_dir=options.data_dir)
        widths = ((graph.num_features, COAUTHOR_HIDDEN),)
        wanted.append(("coauthor-cs", graph, COAUTHOR_DEVICES, widths))
    rows = []
    for name, graph, device_counts, widths in wanted:
        for method in METHODS:
            for devices in device_counts:
                parts = jg.partition.partition(graph, devices, method=method, seed=0)
                rows += [measure(name, graph, parts, *width) for width in widths]
    report("MB that the first layer sends, per device and step", rows, options.json)


if __name__ == "__main__":
    main()
