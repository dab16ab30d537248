"""Overlap of the transfer of one partition with the aggregation of another, on 8 H200 GPUs.

Compiled only. Without `prefetch` every permute is done before anything else starts. With it, the
permute of the next partition starts before the loop that aggregates the current one, and is done
after it.

    python -m benchmarks.overlap          # needs pip install 'jaxgraph[cuda]', and no GPU
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.memory import FEATURES, make_model, temporary_bytes
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.planner.targets import find_target

NODES, DEGREE = 32_768, 8


def abstract_graph(devices: int, *, prefetch: bool) -> jg.parallel.ShardedGraph:
    """A random graph of `NODES` nodes, cut by hash, on H200s that are not present."""
    graph = jg.datasets.load(
        "random", num_nodes=NODES, degree=DEGREE, num_features=FEATURES, seed=0
    )
    parts = jg.partition.partition(graph, devices, method="hash", seed=0)
    source = jg.parallel.AbstractSource(tabulate(graph, parts, "sar").manifest)
    return jg.parallel.place(
        source, find_target(f"h200x{devices}").mesh(emulate=False), prefetch=prefetch
    )


def compile_aggregation(sharded: jg.parallel.ShardedGraph) -> jax.stages.Compiled:
    """Compiles one sum over the neighbours: nothing but the schedule."""
    replicated = NamedSharding(sharded.mesh, PartitionSpec())
    kernel = jax.ShapeDtypeStruct((FEATURES, FEATURES), jnp.float32, sharding=replicated)

    def total(kernel: jax.Array, shard: jg.parallel.Shard) -> jax.Array:
        assert isinstance(shard.nodes, jax.Array)
        sums = jg.parallel.propagate(
            shard, lambda sender, receiver, edge: sender, shard.nodes @ kernel
        )
        return shard.sum(jnp.sum(shard.mask_rows(sums)))

    return jg.parallel.spmd(total).lower(kernel, sharded).compile()


def main() -> None:
    """Compiles and prints the operations between the start and the end of every permute."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--models", nargs="+", default=["sage", "gat", "gatv2"])
    arguments = parser.parse_args()
    table = Table(
        title=f"Permutes under which an aggregation runs, {arguments.devices} H200s, compiled only"
    )
    for column in ("program", "prefetch", "permutes", "overlapped", "temporary MB", "compile s"):
        table.add_column(column, justify="right")
    for name in ("aggregation", *arguments.models):
        for prefetch in (False, True):
            sharded = abstract_graph(arguments.devices, prefetch=prefetch)
            start = time.perf_counter()
            if name == "aggregation":
                compiled = compile_aggregation(sharded)
            else:
                compiled = jg.train.compile_train_step(make_model(name), sharded, optax.adam(1e-2))
            seconds = time.perf_counter() - start
            permutes = jg.analysis.overlapped(compiled)
            hidden = sum(permute.loops_between > 0 for permute in permutes)
            megabytes = temporary_bytes(compiled) / 1e6
            table.add_row(
                name,
                str(prefetch),
                str(len(permutes)),
                str(hidden),
                f"{megabytes:.1f}",
                f"{seconds:.1f}",
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
