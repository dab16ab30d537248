"""`benchmarks.sparse_features` on a small graph, with a stand-in for the other library."""

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import jaxgraph as jg
from benchmarks import sparse_features

# Answers with what only the right features and requests give.
STAND_IN = """
import json, sys
import numpy as np
graph, hidden = np.load(sys.argv[1]), int(sys.argv[2])
for line in sys.stdin:
    dropout, name = json.loads(line)
    print(graph["data"].sum() + hidden + dropout + (name == "dense"), flush=True)
"""


@pytest.mark.slow
def test_programs_are_timed_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(sparse_features, "PEER", script)
    graph = jg.datasets.load("sbm", num_nodes=40, num_classes=2, num_features=30)
    chosen = np.random.default_rng(0).random((40, 30)) < 0.05
    graph = graph.replace(nodes=sp.csr_array(chosen.astype(np.float32)))
    rows = sparse_features.compare(graph, [0.0, 0.5], 2, 8, Path(sys.executable))
    for row, dropout in zip(rows, (0.0, 0.5), strict=True):
        timed = ("sparse", "dense", "PyG, dense", "PyG, sparse")
        assert all(row[f"{name}, ms"] > 0 for name in timed)
        expected = int(chosen.sum()) + 8 + dropout
        assert row["PyG, sparse, ms"] == pytest.approx(1e3 * expected)
        assert row["dense, MB"] == pytest.approx(40 * 30 * 4 / 1e6)
