"""Seconds to compile a train step (forward, backward, Adam), by model, devices and kernels.

The graph has the shapes of the arxiv-size one of `benchmarks.cpu` and is cut by hash. The models
have 3 layers of the widths of `benchmarks.cpu`, batch normalisation and dropout. Nothing runs, and
no compilation cache is read: the figures are the cost of a new model. One device has one shard,
several devices have one each under the schedule sar.

Wall seconds are too high where other programs use the same cores, CPU seconds where a compilation
uses several cores.

    python -m benchmarks.compile_time
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import optax
from flax import nnx

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from benchmarks.generated import OGBN_ARXIV
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel.sharded_graph import AbstractSource

SHAPE = OGBN_ARXIV
LAYERS = 3
WIDTHS = {"GCN": 128, "GraphSAGE": 256, "GIN": 128, "DeepGCN": 128, "GAT": 32, "GATv2": 32}
"""Width of hidden layers by model; per head, of which attention has four."""


def make_model(name: str) -> nnx.Module:
    """The model of the given name, of `LAYERS` layers."""
    options: dict[str, Any] = {"num_heads": 4} if name.startswith("GAT") else {}
    return getattr(jg.nn, name)(
        SHAPE.num_features,
        WIDTHS[name],
        SHAPE.num_classes,
        num_layers=LAYERS,
        dropout=0.5,
        norm="batch",
        rngs=nnx.Rngs(0),
        **options,
    )


def abstract_graphs(
    device_counts: Sequence[int], implementations: Sequence[str]
) -> Iterator[jg.parallel.ShardedGraph]:
    """The graph on `devices` devices, for every implementation; shapes without data."""
    graph = jg.datasets.load(
        "random",
        num_nodes=SHAPE.num_nodes,
        degree=SHAPE.num_edges / SHAPE.num_nodes,
        num_features=SHAPE.num_features,
        num_classes=SHAPE.num_classes,
        seed=0,
    )
    for devices in device_counts:
        parts = jg.partition.partition(graph, devices, method="hash", seed=0)
        source = AbstractSource(tabulate(graph, parts, "sar").manifest)
        mesh = jg.parallel.make_mesh(devices)
        for implementation in implementations:
            yield jg.parallel.place(source, mesh, "sar", implementation=implementation)


def measure(
    models: Sequence[str],
    device_counts: Sequence[int],
    implementations: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """Compiles every combination without a cache."""
    for sharded in abstract_graphs(device_counts, implementations):
        for name in models:
            model = make_model(name)
            jax.clear_caches()
            wall, cpu = time.perf_counter(), time.process_time()
            jg.train.compile_train_step(model, sharded, optax.adam(1e-2))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            yield {
                "model": name,
                "devices": sharded.num_parts,
                "kernels": sharded.shards.incoming.implementation,
                "wall_seconds": wall,
                "cpu_seconds": cpu,
            }


def main() -> None:
    """Reads the command line, compiles and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--implementations", nargs="+", default=["cpu", "xla"])
    arguments = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    jg.parallel.emulate_devices(max(arguments.devices))
    rows = measure(arguments.models, arguments.devices, arguments.implementations)
    report("Seconds to compile a train step", rows, arguments.json)


if __name__ == "__main__":
    main()
