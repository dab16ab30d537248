"""`jaxgraph train` on a graph whose edges have types."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import refused, run, written

AIFB = ["--dataset", "aifb", "--model", "rgcn", "--hidden", "8", "--epochs", "3"]


@pytest.mark.slow
def test_parts_and_their_folder_give_the_run_of_one_device(data_dir: Path, tmp_path: Path) -> None:
    train = ["train", *AIFB, "--data-dir", str(data_dir)]
    predictions = tmp_path / "predictions.csv"
    alone = written(tmp_path / "1", *train, "--predictions", str(predictions))
    halves = written(tmp_path / "2", *train, "--parts", "2", "--mode", "domain")
    losses = alone["history"]["loss"]
    np.testing.assert_allclose(halves["history"]["loss"], losses, rtol=1e-4)
    assert (alone["graph"]["nodes"], alone["graph"]["edges"]) == (8285, 58086)
    assert predictions.read_text(encoding="utf-8").startswith("node,class\n")
    cut = ["partition", "--dataset", "aifb", "--data-dir", str(data_dir), "--parts", "2"]
    report = written(tmp_path / "4", *cut, "--out", str(tmp_path / "parts"))
    assert report["graph"]["entity"] == 8285 and report["written"]["files"] > 2
    assert report["partition"]["set_balance"]["related"] <= 1.2
    read = ["--partition", str(tmp_path / "parts"), "--model", "rgcn", "--hidden", "8"]
    further = ["--epochs", "3", "--dropout", "0", "--weight-decay", "0"]
    found = written(tmp_path / "3", "train", *read, *further)
    np.testing.assert_allclose(found["history"]["loss"], losses, rtol=1e-4)
    assert "val" not in run("train", *read, "--epochs", "1").split("Training")[0]


def test_a_plan_compares_the_schedules_of_typed_edges(data_dir: Path) -> None:
    graph = ["--dataset", "aifb", "--data-dir", str(data_dir)]
    model = ["--model", "rgcn", "--hidden", "8"]
    found = run("plan", *graph, *model, "--target", "cpux2", "--compile", "none")
    assert "domain" in found and "sar" in found and "p3" not in found
    assert "Recommended: jaxgraph train --dataset aifb" in found


@pytest.mark.parametrize(
    ("command", "match"),
    [
        (["train", *AIFB, "--mode", "p3"], "aifb has typed edges.*--mode sar or --mode domain"),
        (["train", *AIFB, "--undirected"], "--undirected: not for aifb"),
        (["train", "--dataset", "aifb"], "gcn_conv does not use edge_type"),
        (["train", *AIFB, "--correct-and-smooth"], "aifb has edges with types; expected one class"),
        (["train", "--dataset", "karate", "--model", "rgcn"], "rgcn has a matrix for each edge ty"),
        (
            ["partition", "--dataset", "aifb", "--parts", "2", "--partitioner", "equal-edges"],
            "hash",
        ),
        (["plan", "--dataset", "aifb", "--target", "cpux2"], "gcn_conv does not use edge_type"),
    ],
)
def test_what_does_not_fit_is_refused(data_dir: Path, command: list[str], match: str) -> None:
    assert re.search(match, refused(*command, JAXGRAPH_DATA=str(data_dir)))
