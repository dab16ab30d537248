"""Results on disk: JSON, and a line for each node under its name."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from jaxgraph import datasets
from jaxgraph.cli.result_files import write_json, write_predictions
from tests.cli.command import run


def rows_of(path: Path, delimiter: str = ",") -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.reader(stream, delimiter=delimiter))


def test_numpy_paths_and_not_finite_numbers_become_plain_json(tmp_path: Path):
    path = tmp_path / "out.json"
    value = {"loss": np.asarray([0.5, np.nan], np.float32), "count": np.int64(3)}
    write_json(path, value | {"best": float("inf"), "data": Path("a"), "nested": [np.True_, (1,)]})
    found = {"loss": [0.5, None], "count": 3, "best": None, "data": "a", "nested": [True, [1]]}
    assert json.loads(path.read_text()) == found


def test_a_line_for_each_node_under_its_name_or_row(tmp_path: Path):
    outputs = np.array([[0.5, 2], [3, -1], [-2, -1]], np.float32)
    write_predictions(tmp_path / "a.csv", outputs, None)
    assert rows_of(tmp_path / "a.csv") == [["node", "class"], ["0", "1"], ["1", "0"], ["2", "1"]]
    names = ["Smith, Ann", "bob\n", "é"]
    write_predictions(tmp_path / "a.tsv", outputs, np.array(names), multilabel=True)
    rows = [["Smith, Ann", "0 1"], ["bob\n", "0"], ["é", ""]]
    assert rows_of(tmp_path / "a.tsv", "\t") == [["node", "classes"], *rows]
    with pytest.raises(ValueError, match="zip"):
        write_predictions(tmp_path / "a.csv", outputs, np.array(["a", "b"]))
    assert len(rows_of(tmp_path / "a.csv")) == 4  # replaced only by a whole one


@pytest.mark.expensive
@pytest.mark.parametrize("on_disk", [False, True])
def test_training_on_a_file_or_its_parts_writes_under_its_names(on_disk: bool, tmp_path: Path):
    graph = datasets.load("karate")
    names = [f"member {node}" for node in range(graph.num_nodes)]
    masks = {"train_mask": np.arange(34) % 2 == 0, "val_mask": np.arange(34) % 2 == 1}
    edges = {"senders": graph.senders, "receivers": graph.receivers, "labels": graph.labels}
    np.savez(tmp_path / "club.npz", allow_pickle=False, **edges, **masks, node_names=names)
    out, summary, parts = tmp_path / "out.csv", tmp_path / "run.json", str(tmp_path / "parts")
    graph_options = ["--dataset", "club.npz", "--data-dir", str(tmp_path), "--parts", "2"]
    graph_options += ["--partitioner", "hash", "--order", "rcm"]
    shown = run("partition", *graph_options, "--out", parts) if on_disk else ""
    shown += run(
        *("train", *(["--partition", parts] if on_disk else graph_options), "--layers", "1"),
        *("--epochs", "20", "--predictions", str(out), "--json", str(summary)),
    )
    assert "club.npz: npz; ids in node_names; 34 nodes, 156 edges." in shown
    _, *rows = rows_of(out)
    assert [name for name, _ in rows] == names
    # A row under another's name would change the accuracy, which is far from chance.
    is_right = np.array([int(value) for _, value in rows]) == graph.labels
    measured = json.loads(summary.read_text())["evaluation"]
    for split, mask in masks.items():
        accuracy = measured[split.partition("_")[0]]["accuracy"]
        assert is_right[mask].mean() == pytest.approx(accuracy)
    assert is_right.mean() > 0.7
