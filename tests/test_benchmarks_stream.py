"""The benchmark of streamed graphs runs, and its configurations learn the same."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import stream


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
