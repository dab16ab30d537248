import json
from pathlib import Path

import pytest

from tests.cli.command import refused, run

SMALL = ["partition", "--dataset", "sbm", "--num-nodes", "200", "--num-classes", "4"]


def test_the_report_is_printed_and_written(tmp_path: Path):
    path = tmp_path / "report.json"
    shown = run(*SMALL, "--parts", "4", "--partitioner", "metis", "--json", str(path))
    for text in ("4 parts by metis", "halo rows", "edge cut", "replication"):
        assert text in shown
    written = json.loads(path.read_text())
    assert sum(written["partition"]["nodes"]) == written["graph"]["nodes"] == 200
    assert sum(written["partition"]["edges"]) == written["graph"]["edges"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--parts", "2", "--partitioner", "metsi"], "Did you mean 'metis'?"),
        (["--parts", "201"], "num_parts: got 201 for a graph of 200 nodes"),
        (["--parts", "2", "--option", "homofily=1"], "did you mean 'homophily'?"),
        (["--parts", "2", "--json", "missing/out.json"], "there is no folder missing"),
    ],
)
def test_mistakes_are_one_line(wrong: list[str], message: str):
    assert message in refused(*SMALL, *wrong)


def test_real_data(data_dir: Path):
    shown = run("partition", "--dataset", "cora", "--data-dir", str(data_dir), "--parts", "8")
    assert "8 parts by metis" in shown and "2,708" in shown
