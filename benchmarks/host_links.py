"""Bytes that a step sends inside and between hosts, on a mesh of one axis and on hosts x devices.

Two hosts of 4 devices train 3 layers of width 64 (GAT 4 heads of 16), in mode "sar". A mesh of one
axis visits parts around a ring, hosts x devices those of the own host first. A step of the ring
crosses hosts if any pair of devices does: it then takes as long as the slower link. Nothing runs:
the figures are those of the compiled training steps.

    python -m benchmarks.host_links
"""

from __future__ import annotations

from typing import Any

import optax

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from benchmarks.generated import make_model
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel.sharded_graph import AbstractSource

HOSTS, PER_HOST, NODES = 2, 4, 16_384


def measure(model_name: str, partitioner: str, hosts: int) -> dict[str, Any]:
    """Compiles a step on a mesh of hosts, or of one axis."""
    count = HOSTS * PER_HOST
    graph = jg.datasets.load(
        "sbm", num_nodes=NODES, degree=16, num_features=64, num_classes=16, seed=0
    )
    parts = jg.partition.partition(graph, count, method=partitioner, seed=0)
    source = AbstractSource(tabulate(graph, parts, "sar").manifest)
    sharded = jg.parallel.place(source, jg.parallel.make_mesh(count, hosts=hosts))
    model = make_model(model_name, graph.num_features, 64, graph.num_classes)
    step = jg.train.compile_train_step(model, sharded, optax.adam(1e-2))
    sent = jg.analysis.traffic_by_link(step, PER_HOST)
    route = sharded.shards.exchange.halo_route()
    pairs = [{pair for segment in each for pair in segment.pairs} for each in route.steps]
    return {
        "model": model_name,
        "partitioner": partitioner,
        "mesh": "1 axis" if hosts == 1 else "hosts x devices",
        "inside": sum(sent.inside.values()),
        "between": sum(sent.between.values()),
        "steps": len(route.steps),
        "crossing": sum(any(a // PER_HOST != b // PER_HOST for a, b in each) for each in pairs),
    }


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["gcn", "gat"])
    parser.add_argument("--partitioners", nargs="+", default=["hash", "metis"])
    options = parser.parse_args()
    jg.parallel.emulate_devices(HOSTS * PER_HOST)
    rows = [
        measure(model, partitioner, hosts)
        for partitioner in options.partitioners
        for hosts in (1, HOSTS)
        for model in options.models
    ]
    report("Bytes that leave a device in a train step, 2 hosts of 4 devices", rows, options.json)


if __name__ == "__main__":
    main()
