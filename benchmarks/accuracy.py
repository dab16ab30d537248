"""Test accuracy of the command line's recipes, mean over seeds, compared with PyTorch Geometric's.

Each model trains by its recipe, from the same splits in both libraries: the public ones, or those
that the seeds draw. The accuracy is that of the parameters with the lowest validation loss.

    python -m benchmarks.accuracy --data-dir DIR --peer-python PYTHON

`PYTHON` is an interpreter that imports `torch` and `torch_geometric`; without it jaxgraph runs
alone. With `--dtype bfloat16 float32`, a seed gives both types the same initial parameters and
dropout masks.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import optax
import scipy.sparse as sp
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from jaxgraph.cli.recipes import Recipe, build_model, prepared, recipe
from jaxgraph.datasets.gnn_benchmark import NAMES, draw_split
from jaxgraph.graph_facts import facts_of

PEER = Path(__file__).parent / "peers" / "pyg_accuracy.py"
PEER_MODELS = ("gcn", "sage", "gat")


def splits(name: str, data_dir: Path | None, seeds: int) -> list[jg.Graph]:
    """A graph with its split for each seed, drawn where the data set has no split."""
    graph = jg.datasets.load(name, data_dir=data_dir)
    if name not in NAMES:
        return [graph] * seeds
    return [draw_split(graph, seed) for seed in range(seeds)]


def run(
    graphs: Sequence[jg.Graph], settings: Recipe, dtype: str, parts: int, mode: str
) -> dict[str, Any]:
    """Trains jaxgraph's model once for each graph; the index of a graph is the seed."""
    # One object for all seeds, so that only the first one compiles.
    optimizer = optax.chain(
        optax.add_decayed_weights(settings.weight_decay), optax.adam(settings.lr)
    )
    mesh = jg.parallel.make_mesh(parts)
    partition = jg.partition.partition(graphs[0], parts, method="metis", seed=0)
    accuracies, epochs, epoch_seconds = [], [], []
    start = time.perf_counter()
    for seed, graph in enumerate(graphs):
        sharded = jg.parallel.shard(graph, partition, mesh, mode, node_dtype=dtype)
        model = build_model(settings, facts_of(graph), seed, dtype)
        history = jg.train.fit(
            model,
            sharded,
            optimizer,
            epochs=settings.epochs,
            seed=seed,
            patience=settings.patience or None,
        )
        accuracies.append(float(jg.train.evaluate(model, sharded)["test"]["accuracy"]))
        epochs.append(len(history.epoch_seconds))
        epoch_seconds.append(statistics.median(history.epoch_seconds))
    return {
        **_spread(accuracies),
        "epochs": epochs,
        "median_epoch_seconds": statistics.median(epoch_seconds),
        "seconds": time.perf_counter() - start,
    }


def run_peer(python: Path, graphs: Sequence[jg.Graph], settings: Recipe) -> dict[str, Any]:
    """Trains PyTorch Geometric's model on the same graphs, in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        graph_path, settings_path = Path(folder, "graph.npz"), Path(folder, "settings.json")
        _write_graph(graph_path, graphs)
        settings_path.write_text(json.dumps(asdict(settings)))
        result = subprocess.run(
            [str(python), "-W", "ignore", str(PEER), str(graph_path), str(settings_path)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return {
        **_spread([row["accuracy"] for row in rows]),
        "epochs": [row["epochs"] for row in rows],
        "seconds": sum(row["seconds"] for row in rows),
    }


def _write_graph(path: Path, graphs: Sequence[jg.Graph]) -> None:
    graph = graphs[0]
    assert graph.nodes is not None and graph.labels is not None
    features = sp.coo_array(graph.nodes)
    masks = [[each.train_mask, each.val_mask, each.test_mask] for each in graphs]
    np.savez(
        path,
        senders=graph.senders,
        receivers=graph.receivers,
        rows=features.row,
        columns=features.col,
        values=features.data,
        shape=np.asarray(features.shape),
        labels=graph.labels,
        masks=np.array(masks),
    )


def _spread(accuracies: list[float]) -> dict[str, Any]:
    return {
        "mean": 100 * statistics.mean(accuracies),
        "deviation": 100 * statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
        "accuracies": accuracies,
    }


def _shown(figures: dict[str, Any] | None) -> str:
    return "" if figures is None else f"{figures['mean']:.2f} ({figures['deviation']:.2f})"


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    columns = ("graph", "model", "type", "jaxgraph", "PyG", "difference", "epoch", "seconds")
    table = Table(*columns, title="Test accuracy in percent, mean (deviation)")
    for row in rows:
        own, peer = row["jaxgraph"], row["pyg"]
        table.add_row(
            row["dataset"],
            row["model"],
            row["dtype"],
            _shown(own),
            _shown(peer),
            "" if peer is None else f"{own['mean'] - peer['mean']:+.2f}",
            f"{1000 * own['median_epoch_seconds']:.1f} ms",
            f"{own['seconds']:.0f}",
        )
    return table


def _parser() -> ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--peer-python", type=Path, help="an interpreter with torch_geometric")
    parser.add_argument(
        "--datasets", nargs="+", default=["cora", "citeseer", "amazon-photo", "coauthor-cs"]
    )
    parser.add_argument("--models", nargs="+", default=PEER_MODELS)
    parser.add_argument("--dtype", nargs="+", default=["float32"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="instead of the recipe's")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--mode", default="sar")
    return parser


def main() -> None:
    """Reads the command line, trains and prints."""
    options = _parser().parse_args()
    jg.process.tune_process(num_devices=options.parts)
    jg.parallel.emulate_devices(options.parts)
    console, rows = Console(width=100), []
    for name in options.datasets:
        read = splits(name, options.data_dir, options.seeds)
        for model in options.models:
            settings = recipe(name, model)
            if options.epochs is not None:
                settings = replace(settings, epochs=options.epochs)
            # One object where the splits are equal, as the features are copied for each object.
            ready = {id(graph): prepared(settings, graph) for graph in read}
            graphs = [ready[id(graph)] for graph in read]
            python: Path | None = options.peer_python if model in PEER_MODELS else None
            peer = None if python is None else run_peer(python, graphs, settings)
            for dtype in options.dtype:
                own = run(graphs, settings, dtype, options.parts, options.mode)
                rows.append(
                    {
                        "dataset": name,
                        "model": model,
                        "dtype": dtype,
                        "settings": asdict(settings),
                        "jaxgraph": own,
                        "pyg": peer,
                    }
                )
                console.print(f"{name} {model} {dtype}: {_shown(own)}; PyG: {_shown(peer)}")
                write_figures(options.json, rows)
    console.print(_table(rows))


if __name__ == "__main__":
    main()
