import json
import sys
from pathlib import Path

import pytest

from benchmarks.cpu import __main__ as program
from benchmarks.cpu import graphs
from benchmarks.cpu.tasks import Product, SpMM, Triad
from tests.benchmarks_cpu.graphs import tiny


@pytest.mark.slow
def test_a_run_from_the_command_line_to_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(graphs, "make", lambda name: tiny())
    monkeypatch.setattr(program, "LIMITS", (Triad(64), Product(8)))
    monkeypatch.setattr(program, "peers_tasks", lambda *_: (SpMM(4), SpMM(4, weighted=True)))
    report, table = tmp_path / "run.json", tmp_path / "run.md"
    arguments = ["--only", "spmm", "--graphs", "tiny", "--peers", "scipy", "--rounds", "1"]
    files = ["--json", str(report), "--markdown", str(table)]
    monkeypatch.setattr(sys, "argv", ["cpu", *arguments, *files])
    assert program.main() == 0
    found = json.loads(report.read_text())
    assert found["limits"]["bandwidth"] > 0 and found["sizes"]["tiny"]["num_nodes"] == 30
    rows = {(row["contestant"], row["task"]["weighted"]): row for row in found["peers"]}
    assert rows.keys() >= {(name, w) for name in ("jaxgraph", "scipy") for w in (False, True)}
    # A disturbed round is repeated, and kept where no undisturbed one came.
    assert all(row["seconds"] and not row["failure"] for row in rows.values())
    assert rows["jaxgraph", True]["error"] < 1e-6 and rows["scipy", True]["error"] < 1e-6
    assert "| tiny | SpMM weighted 4 |" in table.read_text()
    assert "Times faster than a peer" in capsys.readouterr().out
