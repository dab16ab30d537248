import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxgraph.cli.main import app

SMALL = ["partition", "--dataset", "sbm", "--num-nodes", "200", "--num-classes", "4"]


def test_the_report_is_printed_and_written(tmp_path: Path):
    path = tmp_path / "report.json"
    result = CliRunner().invoke(
        app, [*SMALL, "--parts", "4", "--partitioner", "metis", "--json", str(path)]
    )
    assert result.exit_code == 0, result.output
    for text in ("4 parts by metis", "halo rows", "edge cut", "replication"):
        assert text in result.output
    written = json.loads(path.read_text())
    assert sum(written["partition"]["nodes"]) == written["graph"]["nodes"] == 200
    assert sum(written["partition"]["edges"]) == written["graph"]["edges"]


@pytest.mark.parametrize("method", ["hash", "random", "equal-vertices", "equal-edges"])
def test_every_method_runs(method: str):
    result = CliRunner().invoke(app, [*SMALL, "--parts", "3", "--partitioner", method])
    assert result.exit_code == 0 and f"3 parts by {method}" in result.output


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--parts", "2", "--partitioner", "metsi"], "Did you mean 'metis'?"),
        (["--parts", "201"], "num_parts: got 201 for a graph of 200 nodes"),
        (["--parts", "0"], "--parts: got 0; expected at least 1."),
        (["--parts", "2", "--option", "homofily=1"], "did you mean 'homophily'?"),
        (["--parts", "2", "--json", "missing/out.json"], "there is no folder missing"),
    ],
)
def test_mistakes_are_one_line(wrong: list[str], message: str):
    result = CliRunner().invoke(app, [*SMALL, *wrong])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1


def test_an_unknown_dataset_is_refused_with_the_nearest_name():
    result = CliRunner().invoke(app, ["partition", "--dataset", "corra", "--parts", "2"])
    assert result.exit_code == 2 and "did you mean 'cora'?" in result.stderr


def test_real_data(data_dir: Path):
    result = CliRunner().invoke(
        app, ["partition", "--dataset", "cora", "--data-dir", str(data_dir), "--parts", "8"]
    )
    assert result.exit_code == 0, result.output
    assert "8 parts by metis" in result.output and "2,708" in result.output
