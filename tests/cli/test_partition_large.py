"""`jaxgraph partition --process-memory`: a file of edges cut without being read into memory."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from jaxgraph.parallel import open_parts
from tests.cli.command import refused, run
from tests.external.folders import contents


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    ends = np.random.default_rng(0).integers(0, 90, (700, 2))
    path = tmp_path / "friends.csv"
    lines = [f"user{a},user{b}" for a, b in ends.tolist()]
    path.write_text("\n".join(["source,target", *lines]))
    return path


def test_the_parts_and_the_report_are_those_of_the_graph_in_memory(edges: Path, tmp_path: Path):
    command = ["partition", "--dataset", str(edges), "--parts", "3", "--partitioner", "hash"]
    for name, further in (("memory", []), ("files", ["--process-memory", "8GB"])):
        shown = run(
            *(*command, "--degree-features", "--out", str(tmp_path / name), *further),
            *("--json", str(tmp_path / f"{name}.json")),
        )
        assert "3 parts by hash" in shown and "Parts on disk" in shown
    assert contents(open_parts(tmp_path / "files")) == contents(open_parts(tmp_path / "memory"))
    reports = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("memory", "files")]
    for same in ("graph", "partition"):
        assert reports[0][same] == reports[1][same]
    assert reports[0]["written"]["bytes"] == reports[1]["written"]["bytes"]


@pytest.mark.slow
def test_predictions_of_such_parts_have_the_ids_of_the_file(edges: Path, tmp_path: Path):
    ids = np.array([f"user{i}" for i in np.random.default_rng(1).permutation(92)])
    number = np.array([int(name[4:]) for name in ids])
    data = tmp_path / "data"
    data.mkdir()
    arrays = {"ids": ids, "labels": number % 3, "train_mask": number % 4 == 0}
    # The class stands in the features: every node is predicted right.
    arrays |= {
        "val_mask": number % 4 == 1,
        "test_mask": number % 4 == 2,
        "nodes": 9 * np.eye(3)[number % 3],
    }
    for name, array in arrays.items():
        np.save(data / f"{name}.npy", array)
    parts, predicted = str(tmp_path / "parts"), tmp_path / "predicted.csv"
    run(
        *("partition", "--dataset", str(edges), "--parts", "2", "--partitioner", "hash"),
        *("--process-memory", "8GB", "--node-data", str(data), "--out", parts),
    )
    run(
        *("train", "--partition", parts, "--model", "sage", "--layers", "1", "--epochs", "60"),
        *("--predictions", str(predicted)),
    )
    with predicted.open(newline="") as file:
        rows = {row["node"]: int(row["class"]) for row in csv.DictReader(file)}
    assert rows.keys() == set(ids)
    right = [found == int(name[4:]) % 3 for name, found in rows.items()]
    assert np.mean(right) > 0.9


def test_options_that_do_not_go_together(edges: Path, tmp_path: Path):
    command = ["partition", "--dataset", str(edges), "--parts", "2"]
    out = ["--out", str(tmp_path / "parts")]
    bounded = [*command, *out, "--process-memory", "2GB"]
    assert "--process-memory" in refused(*command, *out, "--node-data", str(tmp_path))
    assert "--out" in refused(*command, "--process-memory", "2GB", "--partitioner", "hash")
    assert "cut by one of hash" in refused(*bounded)
    assert "mode='p3'" in refused(*bounded, "--partitioner", "hash", "--mode", "p3")
    assert "--order" in refused(*bounded, "--partitioner", "hash", "--order", "rcm")
    assert "--labels-per-class" in refused(
        *bounded, "--partitioner", "hash", "--labels-per-class", "5"
    )
    assert "format" in refused(*bounded, "--partitioner", "hash", "--option", "format=text")
    assert "no file or folder" in refused(
        *("partition", "--dataset", "cora", "--parts", "2", *out),
        *("--process-memory", "2GB", "--partitioner", "hash"),
    )
    assert "takes 268,435,456" in refused(
        *command, *out, "--partitioner", "hash", "--process-memory", "1MB"
    )
    assert not (tmp_path / "parts").exists()
