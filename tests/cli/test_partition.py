import json
from pathlib import Path

from tests.cli.command import run

SMALL = ["partition", "--dataset", "sbm", "--num-nodes", "200", "--num-classes", "4"]


def test_the_report_is_printed_and_written(tmp_path: Path):
    path = tmp_path / "report.json"
    shown = run(*SMALL, "--parts", "4", "--partitioner", "metis", "--json", str(path))
    for text in ("4 parts by metis", "halo rows", "edge cut", "replication"):
        assert text in shown
    written = json.loads(path.read_text())
    assert sum(written["partition"]["nodes"]) == written["graph"]["nodes"] == 200
    assert sum(written["partition"]["edges"]) == written["graph"]["edges"]


def test_real_data(data_dir: Path):
    shown = run("partition", "--dataset", "cora", "--data-dir", str(data_dir), "--parts", "8")
    assert "8 parts by metis" in shown and "2,708" in shown
