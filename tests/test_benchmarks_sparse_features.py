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


def small_graph(share: float) -> jg.Graph:
    graph = jg.datasets.load("sbm", num_nodes=40, num_classes=2, num_features=30)
    return sparse_features.with_share(graph, share)


def test_random_features_have_the_share_that_is_asked_for() -> None:
    nodes = small_graph(0.2).nodes
    assert isinstance(nodes, sp.csr_array) and nodes.shape == (40, 30)
    assert 0.15 < nodes.nnz / 1200 < 0.25 and (nodes.data == 1).all()


@pytest.mark.slow
def test_programs_are_timed_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(sparse_features, "PEER", script)
    graph = small_graph(0.05)
    rows = sparse_features.compare(graph, [0.0, 0.5], 2, 8, Path(sys.executable))
    for row, dropout in zip(rows, (0.0, 0.5), strict=True):
        assert list(row["seconds"]) == ["sparse", "dense", "PyG, dense", "PyG, sparse"]
        assert row["seconds"]["PyG, sparse"] == pytest.approx(graph.nodes.nnz + 8 + dropout)
        assert row["bytes"]["dense"] == np.prod(graph.nodes.shape) * 4
    assert sparse_features.table(rows).row_count == 2
