"""Epochs of GCN on sparse features, beside dense ones and PyTorch Geometric's, and their memory.

Two layers of 64 on a data set whose features are mostly zeros, without dropout and with it. One
process measures; rounds alternate between all programs, and medians are printed. Dense features are
aggregated once where `fit` does so.

    python -m benchmarks.sparse_features --data-dir DIR --peer-python PYTHON

`PYTHON` is an interpreter that imports `torch` and `torch_geometric`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import scipy.sparse as sp
from flax import nnx

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from jaxgraph.train.aggregates import aggregate_once

PEER = Path(__file__).parent / "peers" / "pyg_sparse_features.py"
Run = Callable[[], float]
"""One epoch; its seconds."""


def placed(graph: jg.Graph) -> jg.parallel.ShardedGraph:
    """The graph on one device."""
    return jg.parallel.shard(graph, None, jg.parallel.make_mesh(1))


def feature_bytes(sharded: jg.parallel.ShardedGraph) -> int:
    """Bytes of all arrays of the features on the device."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(sharded.shards.nodes))


def epochs(graph: jg.Graph, sharded: jg.parallel.ShardedGraph, hidden: int, dropout: float) -> Run:
    """A compiled epoch of training."""
    model = jg.nn.GCN(
        graph.num_features, hidden, graph.num_classes, dropout=dropout, rngs=nnx.Rngs(0)
    )
    is_sparse = isinstance(sharded.shards.nodes, jg.parallel.SparseFeatures)
    if not dropout and not is_sparse:
        sharded = aggregate_once(model, sharded)
    optimizer = optax.adam(0.01)
    step = jg.train.compile_train_step(model, sharded, optimizer)
    state, key = jg.train.initial_state(model, sharded, optimizer), jax.random.key(0)

    def run() -> float:
        nonlocal state
        start = time.perf_counter()
        state, loss = step(state, sharded, key)
        jax.block_until_ready((state, loss))
        return time.perf_counter() - start

    return run


@contextmanager
def peer(python: Path, graph: jg.Graph, hidden: int) -> Iterator[Callable[[float, str], float]]:
    """A process with PyTorch Geometric: `(dropout, "dense" or "sparse") -> seconds` of an epoch."""
    matrix = sp.csr_array(graph.nodes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.npz")
        np.savez(
            path,
            senders=graph.senders,
            receivers=graph.receivers,
            data=matrix.data,
            indices=matrix.indices,
            indptr=matrix.indptr,
            shape=np.asarray(matrix.shape),
            labels=np.asarray(graph.labels),
            mask=np.asarray(graph.train_mask),
        )
        command = [str(python), "-W", "ignore", str(PEER), str(path), str(hidden)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            asked, answers = process.stdin, process.stdout

            def epoch(dropout: float, features: str) -> float:
                asked.write(json.dumps([dropout, features]) + "\n")
                asked.flush()
                return float(answers.readline())

            yield epoch


def medians(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """The median seconds of each, after one round that does not count."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for each in range(rounds + 1):
        for name, run in runs.items():
            seconds = run()
            if each:
                found[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def compare(
    graph: jg.Graph, dropouts: Sequence[float], rounds: int, hidden: int, python: Path | None
) -> list[dict[str, Any]]:
    """Times all programs, those of a peer's interpreter too, on a graph with sparse features."""
    assert isinstance(graph.nodes, sp.csr_array)
    dense = graph.replace(nodes=graph.nodes.toarray())
    graphs = {"sparse": (graph, placed(graph)), "dense": (dense, placed(dense))}
    rows = []
    for dropout in dropouts:
        runs = {name: epochs(*pair, hidden, dropout) for name, pair in graphs.items()}
        if python is None:
            seconds = medians(runs, rounds)
        else:
            with peer(python, graph, hidden) as epoch:
                others = {f"PyG, {x}": partial(epoch, dropout, x) for x in ("dense", "sparse")}
                seconds = medians(runs | others, rounds)
        row: dict[str, Any] = {"dropout": dropout}
        for name, each in seconds.items():
            row |= {f"{name}, ms": 1e3 * each, f"{name}, times": each / seconds["sparse"]}
        for name, (_, sharded) in graphs.items():
            row[f"{name}, MB"] = feature_bytes(sharded) / 1e6
        rows.append(row)
    return rows


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--peer-python", type=Path, help="an interpreter with torch_geometric")
    parser.add_argument("--dataset", default="coauthor-cs")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    graph = jg.datasets.load(options.dataset, data_dir=options.data_dir)
    graph = graph.replace(nodes=sp.csr_array(graph.nodes))
    arguments = (options.dropout, options.rounds, options.hidden, options.peer_python)
    report(f"Epochs of GCN on {options.dataset}", compare(graph, *arguments), options.json)


if __name__ == "__main__":
    main()
