"""`jaxgraph partition --out` and `jaxgraph train --partition`: the same run as on the graph."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxgraph.parallel import open_parts
from tests.cli.command import run, written

SBM = ["--dataset", "sbm", "--num-nodes", "120", "--num-classes", "3", "--num-features", "8"]
QUICK = ["--layers", "2", "--hidden", "4", "--epochs", "3"]
MODES = {
    "sar": ["--mode", "sar"],
    "domain": ["--mode", "domain"],
    "p3": ["--mode", "p3", "--rest", "sar", "--topology", "pushed", "--chunks", "2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["sbm", "cora"])
def test_training_from_parts_is_training_on_the_graph(
    name: str, mode: str, tmp_path: Path, data_dir: Path
):
    graph = SBM if name == "sbm" else ["--dataset", "cora", "--data-dir", str(data_dir)]
    cut = [*graph, "--parts", "2", "--partitioner", "hash", *MODES[mode]]
    parts, report = str(tmp_path / "p"), tmp_path / "r"
    assert "Parts on disk" in run("partition", *cut, "--out", parts, "--json", str(report))
    of_graph = written(tmp_path / "g", "train", *cut, *QUICK)
    read = written(tmp_path / "f", "train", "--partition", parts, *QUICK)
    assert read["history"]["loss"] == of_graph["history"]["loss"]
    for same in ("graph", "evaluation", "padding", "traffic"):
        assert read[same] == of_graph[same]
    for option in ("parts", "mode", "normalize", "hidden"):
        assert read["options"][option] == of_graph["options"][option]
    files = list(Path(parts).rglob("*.npy"))
    reported = json.loads(report.read_text())["written"]
    assert reported["files"] == len(files) and reported["normalized"] is (name == "cora")
    assert reported["bytes"] == sum(each.stat().st_size for each in files)


@pytest.mark.slow
def test_options_of_devices_are_fine(tmp_path: Path):
    run("partition", *SBM, "--parts", "2", "--partitioner", "hash", "--out", str(tmp_path))
    train = ["train", "--partition", str(tmp_path), *QUICK]
    assert "2, sar with prefetch" in run(*train, "--prefetch")
    assert "1, parts 2, stream" in run(*train, "--mode", "stream")


def test_features_are_divided_where_asked(tmp_path: Path):
    command = ["partition", *SBM, "--parts", "1", "--out", str(tmp_path)]
    run(*command, "--normalize")
    first = open_parts(tmp_path)
    rows = np.asarray(first.part(0)["nodes"]).sum(axis=1)
    np.testing.assert_allclose(rows, 1, rtol=1e-3)
    assert first.graph.normalized and first.graph.dataset == "sbm"
    run(*command)
    assert not open_parts(tmp_path).graph.normalized
