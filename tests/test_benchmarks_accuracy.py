"""The input of `benchmarks.accuracy` for the peer, and its answer; the best epoch of folds."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import accuracy, graph_classification
from jaxgraph.cli.recipes import recipe
from tests.datasets.test_gnn_benchmark import pickled_layout

# Answers that only the right features, masks and settings produce.
STAND_IN = """
import json, sys
import numpy as np
graph, settings = np.load(sys.argv[1]), json.load(open(sys.argv[2]))
features = np.zeros(graph["shape"]); features[graph["rows"], graph["columns"]] = graph["values"]
for seed, (train, val, test) in enumerate(graph["masks"]):
    share = features[test].sum() / 100 + settings["lr"]
    print(json.dumps({"seed": seed, "accuracy": share}))
"""


def test_a_peer_gets_features_splits_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    np.savez(tmp_path / "amazon_photo.npz", **pickled_layout())
    graphs = accuracy.splits("amazon-photo", tmp_path, seeds=3)
    masks = np.array([graph.test_mask for graph in graphs])
    assert (masks[0] != masks[1]).any() and (masks[1] != masks[2]).any()
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(accuracy, "PEER", script)
    settings = replace(recipe("amazon-photo", "gcn"), lr=0.25)
    figures = accuracy.run_peer(Path(sys.executable), graphs, settings)
    sums = np.asarray(graphs[0].nodes).sum(axis=1)
    expected = [sums[test].sum() / 100 + 0.25 for test in masks]
    assert figures["accuracies"] == pytest.approx(expected)
    assert figures["mean"] == pytest.approx(100 * np.mean(expected))


def test_splits_of_a_set_with_its_own_are_equal():
    first, second = accuracy.splits("karate", None, seeds=2)
    assert first is second


def test_the_best_epoch_is_that_of_the_mean_of_the_folds():
    curves = np.array([[90.0, 60.0, 70.0], [10.0, 60.0, 60.0]])
    expected = {"epoch": 3, "test accuracy": 65.0, "deviation": 5.0}
    assert graph_classification.best(curves) == expected
