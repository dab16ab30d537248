"""Correct & Smooth, and label propagation, beside PyTorch Geometric's, in numbers and time.

Both libraries take the same random probabilities, 50 steps a phase, and two threads. Times are
medians of five runs from arrays to arrays, after one that compiles.

    python -m benchmarks.correct_and_smooth --data-dir DIR --peer-python PYTHON

`PYTHON` is an interpreter that imports `torch` and `torch_geometric`. The program exits with 1
where numbers differ by more than 1e-5.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from jaxgraph.datasets.gnn_benchmark import NAMES, draw_split

PEER = Path(__file__).parent / "peers" / "pyg_correct_and_smooth.py"
TOLERANCE = 1e-5


def compare(graph: jg.Graph, python: Path) -> list[dict[str, Any]]:
    """A row for each function: the largest difference, and milliseconds."""
    rng = np.random.default_rng(0)
    given = rng.dirichlet(np.ones(graph.num_classes), graph.num_nodes).astype(np.float32)
    smooth = partial(jg.train.correct_and_smooth, given, graph)
    runs: dict[str, Callable[[], np.ndarray]] = {
        "autoscale": smooth,
        "fixed scale": partial(smooth, autoscale=False),
        "label propagation": partial(jg.train.label_propagation, graph),
    }
    with tempfile.TemporaryDirectory() as folder:
        arrays, results = Path(folder, "graph.npz"), Path(folder, "results.npz")
        inputs: dict[str, Any] = {"senders": graph.senders, "receivers": graph.receivers}
        inputs |= {"labels": graph.labels, "train": graph.train_mask, "predictions": given}
        np.savez(arrays, **inputs)
        subprocess.run([python, "-W", "ignore", PEER, arrays, results], check=True)
        theirs = dict(np.load(results))
    rows = []
    for name, run in runs.items():
        seconds = []
        for _ in range(6):
            started = time.perf_counter()
            found = run()
            seconds.append(time.perf_counter() - started)
        times = {"jaxgraph": seconds[1:], "PyG": theirs[f"{name}, seconds"].tolist()}
        medians = {f"{who} ms": 1e3 * statistics.median(each) for who, each in times.items()}
        rows.append({"function": name, "difference": np.abs(found - theirs[name]).max(), **medians})
    return rows


def main() -> int:
    """Compares and shows; returns 1 where numbers differ."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--peer-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--datasets", nargs="+", default=["cora", "amazon-photo", "coauthor-cs"])
    options, rows = parser.parse_args(), []
    for name in options.datasets:
        graph = jg.datasets.load(name, data_dir=options.data_dir)
        graph = draw_split(graph, 0) if name in NAMES else graph
        rows += [{"graph": name, **row} for row in compare(graph, options.peer_python)]
    report("Correct & Smooth", rows, options.json)
    return int(max(row["difference"] for row in rows) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
