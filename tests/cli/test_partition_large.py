"""`jaxgraph partition --process-memory`: a file of edges cut without being read into memory."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxgraph.parallel import open_parts
from tests.cli.command import run
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


def test_data_of_nodes_is_found_in_its_folder(edges: Path, tmp_path: Path):
    (tmp_path / "data").mkdir()
    ids = [f"user{i}" for i in range(92)]
    for name, array in {"ids": np.array(ids), "nodes": np.arange(92.0)[:, None]}.items():
        np.save(tmp_path / "data" / f"{name}.npy", array)
    data, out = str(tmp_path / "data"), str(tmp_path / "parts")
    run(
        *("partition", "--dataset", str(edges), "--parts", "1", "--process-memory", "8GB"),
        *("--partitioner", "hash", "--out", out, "--node-data", data),
    )
    found = open_parts(out)
    np.testing.assert_array_equal(found.node_names(), ids)
    np.testing.assert_array_equal(np.asarray(found.part(0)["nodes"])[:92, 0], np.arange(92))
