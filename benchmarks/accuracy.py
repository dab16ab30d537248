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
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import optax
import scipy.sparse as sp

import jaxgraph as jg
from benchmarks.command_line import make_parser, report, write_figures
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


def run(graphs: Sequence[jg.Graph], settings: Recipe, dtype: str) -> dict[str, Any]:
    """Trains jaxgraph's model once for each graph; the index of a graph is the seed."""
    # One object for all seeds, so that only the first one compiles.
    optimizer = optax.chain(
        optax.add_decayed_weights(settings.weight_decay), optax.adam(settings.lr)
    )
    mesh = jg.parallel.make_mesh(1)
    accuracies = []
    for seed, graph in enumerate(graphs):
        sharded = jg.parallel.shard(graph, None, mesh, node_dtype=dtype)
        model = build_model(settings, facts_of(graph), seed, dtype)
        jg.train.fit(
            model,
            sharded,
            optimizer,
            epochs=settings.epochs,
            seed=seed,
            patience=settings.patience or None,
        )
        accuracies.append(float(jg.train.evaluate(model, sharded)["test"]["accuracy"]))
    return _spread(accuracies)


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
    return _spread([json.loads(line)["accuracy"] for line in result.stdout.splitlines()])


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


def main() -> None:
    """Reads the command line, trains and prints."""
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
    options = parser.parse_args()
    jg.process.tune_process()
    rows = []
    for name in options.datasets:
        read = splits(name, options.data_dir, options.seeds)
        for model in options.models:
            settings = recipe(name, model)
            if options.epochs is not None:
                settings = replace(settings, epochs=options.epochs)
            # One object where the splits are equal, as the features are copied for each object.
            ready = {id(graph): prepared(settings, graph) for graph in read}
            graphs = [ready[id(graph)] for graph in read]
            peer: dict[str, Any] = {}
            if options.peer_python and model in PEER_MODELS:
                found = run_peer(options.peer_python, graphs, settings)
                peer = {f"PyG_{key}": value for key, value in found.items()}
            for dtype in options.dtype:
                names = {"dataset": name, "model": model, "dtype": dtype}
                rows.append(names | run(graphs, settings, dtype) | peer)
                write_figures(options.json, rows)
                print(rows[-1], flush=True)
    report("Test accuracy in percent", rows, options.json)


if __name__ == "__main__":
    main()
