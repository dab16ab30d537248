"""The benchmark of streamed graphs runs, and its configurations learn the same."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import stream, stream_large, stream_limit
from benchmarks.stream_schedule import __main__ as stream_schedule
from benchmarks.stream_schedule.two_stages import Job, bound, by_johnson, by_swaps, makespan


@pytest.mark.slow
def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "figures.json"
    options = ["--nodes", "600", "--degree", "6", "--parts", "2"]
    options += ["--rounds", "1", "--folder", str(tmp_path), "--json", str(written)]
    curve = tmp_path / "curve.svg"
    options += ["--plot", str(curve)]
    monkeypatch.setattr(sys, "argv", ["benchmarks/stream.py", *options])
    stream.main()
    assert "backward in rows" in curve.read_text()
    core, row = json.loads(written.read_text())["rows"]
    assert row["loss"] == pytest.approx(core["loss"], rel=1e-5)
    assert row["sent_MB"] > row["back_MB"] > 0
    assert row["peak_MB"] > 0 and row["epoch_seconds"] > 0


@pytest.mark.slow
def test_a_limit_that_the_system_enforces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on one device ends with an error that says so; the streamed one learns the same."""
    written = tmp_path / "figures.json"
    options = ["--nodes", "60000", "--degree", "20", "--limit", "80MB"]
    options += ["--folder", str(tmp_path), "--json", str(written)]
    monkeypatch.setattr(sys, "argv", ["benchmarks/stream_limit.py", *options])
    stream_limit.main()
    core, limited, streamed = json.loads(written.read_text())["rows"]
    assert "RESOURCE_EXHAUSTED" in limited["loss"]
    assert streamed["loss"] == pytest.approx(core["loss"], rel=1e-4)
    assert streamed["parts"] > 1 and streamed["needs_MB"] <= 80 < core["needs_MB"]


def test_edges_of_a_large_graph_stay_in_communities(tmp_path: Path):
    path, nodes = tmp_path / "edges.npy", 10_500
    stream_large.make_edges(path, nodes, 100_000, np.random.default_rng(0))
    edges = np.load(path)
    assert edges.shape == (50_000, 2) and edges.min() == 0 and edges.max() < nodes
    inside = np.equal(*(edges // stream_large.COMMUNITY).T).mean()
    assert stream_large.INSIDE < inside < stream_large.INSIDE + 0.05


@pytest.mark.slow
def test_a_graph_that_is_never_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "figures.json"
    options = ["--nodes", "3e4", "--edges", "3e5", "--parts", "4", "--limit", "60MB"]
    options += ["--epochs", "3", "--folder", str(tmp_path), "--json", str(written)]
    monkeypatch.setattr(sys, "argv", ["benchmarks/stream_large.py", *options])
    stream_large.main()
    rows = json.loads(written.read_text())["rows"]
    row = {each["figure"]: each["of the run"] for each in rows}
    assert 250_000 < row["edges"] <= 300_000 and row["cut_edges"] < 0.3 * row["edges"]
    assert 0 < row["data"] <= 60_000_000 < row["working_set"] <= row["disk"] + 10_000_000
    assert row["rehearsed"] <= 60_000_000 and row["epoch_3_seconds"] > 0
    assert row["disk_alone_sent_and_returned_seconds"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


def test_loads_and_programs_in_their_best_order():
    """Johnson's rule beside all orders; loads that wait for room; visits of one part alone move."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        jobs = [Job(*rng.integers(1, 9, 2).tolist()) for _ in range(6)]
        least = min(map(makespan, itertools.permutations(jobs)))
        assert bound(jobs) <= makespan(by_johnson(jobs)) == least
        assert makespan(jobs) <= makespan(jobs, 2) <= makespan(jobs, 0)
    short, long = Job(1, 5, is_visit=True), Job(5, 1, is_visit=True)
    assert makespan([short, long]) == 7 and makespan([long, short]) == 11
    # With no room, the third load waits until the second program starts.
    assert [makespan([Job(1, 10), Job(1, 1), Job(9, 1)], ahead) for ahead in (0, 1)] == [21, 13]
    own = Job(3, 3)
    assert by_swaps([long, short, own]) == [short, long, own]


@pytest.mark.slow
def test_schedules_of_a_small_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes follow the formula; versions and orders learn the same; no order beats the bound."""
    figures = tmp_path / "figures.json"
    options = ["--nodes", "600", "--degree", "6", "--rounds", "1", "--epochs", "2"]
    options += ["--written", str(tmp_path), "--json", str(figures)]

    def rows(command: str, parts: int = 3) -> list[dict[str, Any]]:
        arguments = ["stream_schedule", command, *options, "--parts", str(parts)]
        monkeypatch.setattr(sys, "argv", arguments)
        stream_schedule.main()
        return json.loads(figures.read_text())["rows"]

    for row in rows("bytes", 8):
        assert row["arrays"] + row["own rows"] + row["other rows"] == row["sent"]
        assert row["forward_edges_times"] == 1
        read, sent, formula = (row[f"forward_{n}"] for n in ("read", "other_rows", "formula"))
        assert 0 < read <= sent <= formula
        assert row["selective"] or sent == formula
    for command in ("breakdown", "orders"):
        found = rows(command)
        assert len(found) == 4 and all(row["seconds"] > 0 for row in found)
        for row in found:
            assert row["loss"] == pytest.approx(found[0]["loss"], rel=1e-5)
    (row,) = rows("overlap")
    assert row["loads"] > 0 and row["programs"] > 0 and row["pipeline"] > 0
    simulated = row["simulated"]
    assert simulated["bound"] <= simulated["johnson"] <= simulated["now"]
    assert len(row["by_room"]) == 6 and min(row["by_room"]) >= 0
