"""Predictions on disk: a line for each node, under its name."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from jaxgraph import datasets
from jaxgraph.cli.main import app
from jaxgraph.cli.result_files import write_predictions


def rows_of(path: Path, delimiter: str = ",") -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.reader(stream, delimiter=delimiter))


def test_a_line_for_each_node_under_its_name_or_row(tmp_path: Path):
    outputs = np.array([[0.5, 2], [3, -1], [-2, -1]], np.float32)
    write_predictions(tmp_path / "a.csv", outputs, None)
    assert rows_of(tmp_path / "a.csv") == [["node", "class"], ["0", "1"], ["1", "0"], ["2", "1"]]
    names = ["Smith, Ann", "bob\n", "é"]
    write_predictions(tmp_path / "a.tsv", outputs, np.array(names), multilabel=True)
    classes = ["0 1", "0", ""]
    assert rows_of(tmp_path / "a.tsv", "\t") == [
        ["node", "classes"],
        *([name, value] for name, value in zip(names, classes, strict=True)),
    ]


def test_a_file_is_replaced_only_by_a_whole_one(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("before")
    with pytest.raises(ValueError, match="zip"):
        write_predictions(path, np.zeros((1, 2), np.float32), np.array(["a", "b"]))
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_the_place_is_checked_before_training(tmp_path: Path):
    for wrong, message in ((tmp_path, "is a folder"), (tmp_path / "b" / "a", "no folder")):
        arguments = ["train", "--dataset", "nothing", "--predictions", str(wrong)]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2 and message in result.stderr


def test_training_on_a_file_writes_under_its_names(tmp_path: Path):
    graph = datasets.load("karate")
    is_train = np.arange(graph.num_nodes) % 2 == 0
    np.savez(
        tmp_path / "club.npz",
        senders=graph.senders,
        receivers=graph.receivers,
        labels=np.asarray(graph.labels),
        train_mask=is_train,
        val_mask=~is_train,
        node_names=[f"member {node}" for node in range(graph.num_nodes)],
    )
    arguments = ["train", "--dataset", "club.npz", "--data-dir", str(tmp_path), "--layers", "1"]
    arguments += ["--epochs", "20", "--parts", "2", "--partitioner", "hash", "--order", "rcm"]
    arguments += ["--predictions", str(tmp_path / "out.csv"), "--json", str(tmp_path / "run.json")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "club.npz: npz; ids in node_names; 34 nodes, 156 edges." in result.output
    header, *rows = rows_of(tmp_path / "out.csv")
    assert header == ["node", "class"]
    assert [name for name, _ in rows] == [f"member {node}" for node in range(graph.num_nodes)]
    # A row under another's name would change the accuracy, which is far from chance.
    is_right = np.array([int(value) for _, value in rows]) == graph.labels
    measured = json.loads((tmp_path / "run.json").read_text())["evaluation"]
    for split, mask in (("train", is_train), ("val", ~is_train)):
        assert is_right[mask].mean() == pytest.approx(measured[split]["accuracy"])
    assert is_right.mean() > 0.7
