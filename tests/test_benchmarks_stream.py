"""The benchmark of streamed graphs runs, and its configurations learn the same."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import stream, stream_limit


@pytest.mark.full
def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "figures.json"
    options = ["--nodes", "600", "--degree", "6", "--parts", "2", "--orders", "rows", "columns"]
    options += ["--rounds", "1", "--folder", str(tmp_path), "--json", str(written)]
    monkeypatch.setattr(sys, "argv", ["benchmarks/stream.py", *options])
    stream.main()
    core, *streamed = json.loads(written.read_text())["rows"]
    assert [row["order"] for row in streamed] == ["rows", "columns"]
    for row in streamed:
        assert row["loss"] == pytest.approx(core["loss"], rel=1e-5)
        assert row["sent"] > row["returned"] > 0
        assert row["memory"] > 0 and row["seconds"] > 0


@pytest.mark.full
def test_a_limit_that_the_system_enforces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on one device ends with an error that says so; the streamed one learns the same."""
    written = tmp_path / "figures.json"
    options = ["--nodes", "60000", "--degree", "20", "--limit", "80MB"]
    options += ["--folder", str(tmp_path), "--json", str(written)]
    monkeypatch.setattr(sys, "argv", ["benchmarks/stream_limit.py", *options])
    stream_limit.main()
    core, limited, streamed = json.loads(written.read_text())["rows"]
    assert "RESOURCE_EXHAUSTED" in limited["error"]
    assert streamed["loss"] == pytest.approx(core["loss"], rel=1e-4)
    assert streamed["parts"] > 1 and streamed["needs"] <= 80_000_000 < core["needs"]
