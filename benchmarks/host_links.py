"""Bytes that a step sends inside and between hosts, on a mesh of one axis and on hosts x devices.

Two hosts of 4 devices train 3 layers of width 64 (GAT 4 heads of 16), in mode "sar". A mesh of one
axis visits parts around a ring, hosts x devices those of the own host first. A step of the ring
crosses hosts if any pair of devices does: it then takes as long as the slower link. Nothing runs:
the figures are those of the compiled training steps.

    python -m benchmarks.host_links
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import optax
from flax import nnx
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel.exchange import halo_route

HOSTS, PER_HOST, NODES = 2, 4, 16_384


@dataclasses.dataclass(frozen=True)
class Row:
    """One compiled step.

    Attributes:
      model, partitioner, prefetch: of the compiled program.
      mesh: "1 axis" or "hosts x devices".
      inside, between: bytes that leave a device, to its own host and to the other.
      steps, crossing: visits to other parts, and those that cross hosts.
      temporary: bytes of a device beside arguments and results.
    """

    model: str
    partitioner: str
    prefetch: bool
    mesh: str
    inside: int
    between: int
    steps: int
    crossing: int
    temporary: int


def make_model(name: str, features: int, classes: int) -> nnx.Module:
    """The 3-layer model of the given name."""
    shared = {"num_layers": 3, "dropout": 0.5, "norm": "batch", "rngs": nnx.Rngs(0)}
    if name == "gcn":
        return jg.nn.GCN(features, 64, classes, **shared)
    return jg.nn.GAT(features, 16, classes, num_heads=4, **shared)


def measure(models: list[str], partitioners: list[str], prefetch: bool) -> Iterator[Row]:
    """Compiles every combination."""
    count = HOSTS * PER_HOST
    graph = jg.datasets.load(
        "sbm", num_nodes=NODES, degree=16, num_features=64, num_classes=16, seed=0
    )
    for partitioner in partitioners:
        parts = jg.partition.partition(graph, count, method=partitioner, seed=0)
        source = jg.parallel.AbstractSource(tabulate(graph, parts, "sar").manifest)
        for hosts in (1, HOSTS):
            mesh = jg.parallel.make_mesh(count, hosts=hosts)
            sharded = jg.parallel.place(source, mesh, prefetch=prefetch)
            for name in models:
                model = make_model(name, graph.num_features, graph.num_classes)
                step = jg.train.compile_train_step(model, sharded, optax.adam(1e-2))
                yield _row(name, partitioner, hosts, sharded, step)


def _row(
    name: str,
    partitioner: str,
    hosts: int,
    sharded: jg.parallel.ShardedGraph,
    step: jax.stages.Compiled,
) -> Row:
    sent = jg.analysis.traffic_by_link(step, PER_HOST)
    route = halo_route(sharded.shards)
    pairs = [{pair for segment in each for pair in segment.pairs} for each in route.steps]
    crossing = sum(any(a // PER_HOST != b // PER_HOST for a, b in each) for each in pairs)
    memory = step.memory_analysis()
    assert memory is not None
    return Row(
        name,
        partitioner,
        sharded.shards.prefetch,
        "1 axis" if hosts == 1 else "hosts x devices",
        sum(sent.inside.values()),
        sum(sent.between.values()),
        len(route.steps),
        crossing,
        memory.temp_size_in_bytes,
    )


def show(rows: list[Row]) -> None:
    """Prints the table."""
    table = Table(title="Bytes that leave a device in a training step, 2 hosts of 4 devices")
    for column in dataclasses.fields(Row):
        table.add_column(column.name, justify="right")
    for row in rows:
        texts = (f"{x:,}" if type(x) is int else str(x) for x in dataclasses.astuple(row))
        table.add_row(*texts)
    Console(width=130).print(table)


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["gcn", "gat"])
    parser.add_argument("--partitioners", nargs="+", default=["hash", "metis"])
    parser.add_argument("--prefetch", action="store_true", help="fetch one part ahead")
    options = parser.parse_args()
    jg.parallel.emulate_devices(HOSTS * PER_HOST)
    rows = list(measure(options.models, options.partitioners, options.prefetch))
    show(rows)
    write_figures(options.json, [dataclasses.asdict(row) for row in rows])


if __name__ == "__main__":
    main()
