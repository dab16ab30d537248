"""Test accuracy on the citation graphs, trained with SAR on 4 parts, mean over seeds.

Public split, 200 epochs, the parameters of the lowest validation loss; the models are those of the
command line's recipes (Kipf and Welling, 2017; Velickovic et al., 2018), with activations of 32
and of 16 bits. A seed starts from the same parameters and drops the same in both.

    python -m benchmarks.accuracy --data-dir DIR
"""

from __future__ import annotations

import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

import optax
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from jaxgraph.cli.recipes import build_model, recipe


def run(
    sharded: jg.parallel.ShardedGraph,
    graph: jg.Graph,
    model_name: str,
    dtype: str,
    seeds: int,
    epochs: int,
) -> dict[str, Any]:
    """Trains one model from several seeds."""
    settings = recipe(model_name)
    # The same object for every seed, so that only the first compiles.
    optimizer = optax.chain(
        optax.add_decayed_weights(settings.weight_decay), optax.adam(settings.lr)
    )
    accuracies, epoch_seconds = [], []
    start = time.perf_counter()
    for seed in range(seeds):
        model = build_model(settings, graph, seed, dtype)
        history = jg.train.fit(model, sharded, optimizer, epochs=epochs, seed=seed)
        accuracies.append(float(jg.train.evaluate(model, sharded)["test"]["accuracy"]))
        epoch_seconds.append(statistics.median(history.epoch_seconds))
    return {
        "dataset": graph.name,
        "model": model_name,
        "dtype": dtype,
        "mean": 100 * statistics.mean(accuracies),
        "deviation": 100 * statistics.stdev(accuracies) if seeds > 1 else 0.0,
        "accuracies": accuracies,
        "median_epoch_seconds": statistics.median(epoch_seconds),
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Reads the command line, trains and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--datasets", nargs="+", default=["cora", "citeseer"])
    parser.add_argument("--models", nargs="+", default=["gcn", "gat"])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--mode", default="sar")
    arguments = parser.parse_args()
    jg.process.tune_process(num_devices=arguments.parts)
    jg.parallel.emulate_devices(arguments.parts)
    mesh = jg.parallel.make_mesh(arguments.parts)
    columns = ("graph", "model", "type", "test accuracy", "deviation", "median epoch", "seconds")
    table = Table(*columns)
    rows = []
    for name in arguments.datasets:
        graph = jg.datasets.load(name, data_dir=arguments.data_dir)
        parts = jg.partition.partition(graph, arguments.parts, method="metis", seed=0)
        sharded = {
            dtype: jg.parallel.shard(graph, parts, mesh, arguments.mode, node_dtype=dtype)
            for dtype in arguments.dtype
        }
        for model, dtype in product(arguments.models, arguments.dtype):
            row = run(sharded[dtype], graph, model, dtype, arguments.seeds, arguments.epochs)
            rows.append(row)
            table.add_row(
                name,
                model,
                dtype,
                f"{row['mean']:.2f}",
                f"{row['deviation']:.2f}",
                f"{1000 * row['median_epoch_seconds']:.1f} ms",
                f"{row['seconds']:.0f}",
            )
    Console(width=100).print(table)
    write_figures(arguments.json, rows)


if __name__ == "__main__":
    main()
