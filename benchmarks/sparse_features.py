"""Epochs of GCN on sparse features, beside dense ones and PyTorch Geometric's, and their memory.

Two layers of 64 on a data set whose features are mostly zeros, without dropout and with it. One
process measures; rounds alternate between all programs, and medians are printed. Dense features are
aggregated once where `fit` does so.

    python -m benchmarks.sparse_features --data-dir DIR --peer-python PYTHON

`PYTHON` is an interpreter that imports `torch` and `torch_geometric`. With `--shares`, features are
random instead, of as many columns, and such shares of them are not zero.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from argparse import ArgumentParser
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
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures

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
        sharded = jg.train.aggregate_once(model, sharded)
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
    """Times all programs on a graph with sparse features.

    Args:
      graph: the graph.
      dropouts: rates of dropout.
      rounds: epochs of each program.
      hidden: width of the first layer.
      python: with PyTorch Geometric, or None.

    Returns:
      For each rate the median seconds by program, and the bytes of the features.
    """
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
        rows.append(
            {
                "graph": repr(graph),
                "dropout": dropout,
                "seconds": seconds,
                "bytes": {name: feature_bytes(sharded) for name, (_, sharded) in graphs.items()},
            }
        )
    return rows


def with_share(graph: jg.Graph, share: float) -> jg.Graph:
    """The graph with random features of 1, so many of which are not 0."""
    rng, columns = np.random.default_rng(0), graph.num_features
    counts = rng.binomial(columns, share, graph.num_nodes)
    chosen = [rng.choice(columns, count, replace=False, shuffle=False) for count in counts]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices = np.concatenate(chosen)
    ones = np.ones(len(indices), np.float32)
    return graph.replace(nodes=sp.csr_array((ones, indices, indptr), (len(counts), columns)))


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """The figures, with times over that of sparse features."""
    names = list(rows[0]["seconds"])
    headers = [f"{name}, ms" for name in names]
    shown = Table("features", "dropout", *headers, "sparse, MB", "dense, MB")
    for row in rows:
        seconds, size = row["seconds"], row["bytes"]
        times = [f"{1000 * seconds[x]:.1f} ({seconds[x] / seconds['sparse']:.1f})" for x in seconds]
        sizes = [f"{size[name] / 1e6:.1f}" for name in ("sparse", "dense")]
        share = row["graph"].partition("(")[2].partition("(")[2].partition(")")[0]
        shown.add_row(share, str(row["dropout"]), *times, *sizes)
    return shown


def _parser() -> ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--peer-python", type=Path, help="an interpreter with torch_geometric")
    parser.add_argument("--dataset", default="coauthor-cs")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--shares", type=float, nargs="+", help="of random features in their place")
    parser.add_argument("--rounds", type=int, default=9)
    return parser


def main() -> None:
    """Reads the command line, measures and prints."""
    options = _parser().parse_args()
    graph = jg.datasets.load(options.dataset, data_dir=options.data_dir)
    graph = graph.replace(nodes=sp.csr_array(graph.nodes))
    graphs = [with_share(graph, share) for share in options.shares or ()] or [graph]
    rows = []
    for each in graphs:
        arguments = (options.dropout, options.rounds, options.hidden, options.peer_python)
        rows += compare(each, *arguments)
        write_figures(options.json, rows)
    Console(width=120).print(table(rows))


if __name__ == "__main__":
    main()
