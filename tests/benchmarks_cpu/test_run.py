import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxgraph
from benchmarks.cpu import __main__ as program
from benchmarks.cpu import graphs, resident
from benchmarks.cpu.comparing import relative_error
from benchmarks.cpu.inputs import node_features
from benchmarks.cpu.measure import Measurement, Pace, measure_task
from benchmarks.cpu.process import ROOT, Contestant, WorkerFailure, WorkerRefusal, start_worker
from benchmarks.cpu.report import add_ratios, plot_sar
from benchmarks.cpu.tasks import Attention, Epoch, SpMM, Triad
from tests.benchmarks_cpu.graphs import adjacency, tiny

PACE = Pace(rounds=7, seconds=10.0, round_seconds=1.0)
EPOCH = Epoch("gcn")


def test_a_peers_worker_needs_no_jax():
    script = (
        "import sys, benchmarks.cpu.worker, benchmarks.cpu.libraries.scipy_library\n"
        "sys.exit(bool({'jax', 'jaxgraph', 'rich'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_a_worker_of_scipy_does_what_it_is_asked(tmp_path: Path):
    worker = start_worker(Contestant("scipy", "scipy"), 1, tmp_path)
    try:
        assert "scipy" in worker.request("start", "scipy", {}, None)
        worker.request("load", tiny())
        for weighted in (False, True):
            results, taken = worker.request("prepare", SpMM(5, weighted))
            expected = adjacency(tiny(), weighted) @ node_features(30, 5)
            np.testing.assert_allclose(results["y"], expected, rtol=1e-5, atol=1e-6)
            assert taken["seconds"] > 0
        assert len(worker.request("run", 2)) == 2
        with pytest.raises(WorkerRefusal, match="scipy has no such task"):
            worker.request("prepare", EPOCH)
        with pytest.raises(WorkerFailure, match="no answer within 0 s"):
            worker.request("run", 10**9, timeout=0.2)
        with pytest.raises(WorkerFailure, match="ended with -9"):
            worker.request("prepare", SpMM(5))
    finally:
        worker.kill()


def test_a_library_that_cannot_be_imported_says_why(tmp_path: Path):
    worker = start_worker(Contestant("gone", "gone"), 1, tmp_path)
    try:
        with pytest.raises(WorkerFailure, match=r"ModuleNotFoundError: No module named .*gone"):
            worker.request("start", "gone", {}, None)
    finally:
        worker.kill()


class Scripted:
    """A worker that gives scripted answers, and records who was asked."""

    def __init__(self, name: str, log: list, seconds: float = 1.0, y: Any = 1.0) -> None:
        self.name, self.log, self.seconds, self.y = name, log, seconds, y
        self.repeats: list[int] = []

    def request(self, command: str, *arguments: Any) -> Any:
        self.log.append((self.name, command))
        if command == "prepare":
            if isinstance(self.y, Exception):
                raise self.y
            taken = {"path": "way", "compile_seconds": None, "memory": 25}
            return {"y": np.full(3, self.y)}, taken | {"seconds": abs(self.seconds)}
        if command == "run":
            if self.seconds < 0:
                raise WorkerFailure("it died")
            self.repeats.append(arguments[0])
            return [self.seconds] * arguments[0]
        return None


def measured(*workers: Any, left_out: Collection[str] = ()) -> list[Measurement]:
    named = {worker.name: worker for worker in workers}
    return measure_task(named, "graph", EPOCH, PACE, left_out)


def test_workers_take_turns_and_one_that_is_wrong_lacks_the_task_or_fails_has_none():
    log: list = []
    found = measured(
        Scripted("a", log),
        Scripted("refuses", log, y=WorkerRefusal("no such task")),
        Scripted("wrong", log, y=1.01),
        Scripted("fails", log, y=WorkerFailure("no room")),
        Scripted("dies", log, seconds=-1),
        Scripted("sits out", log),
        Scripted("b", log),
        left_out={"sits out"},
    )
    assert [each.contestant for each in found] == ["a", "wrong", "fails", "dies", "b"]
    assert [each.failure for each in found] == [
        "",
        "wrong: off by 1.0e-02",
        "no room",
        "it died",
        "",
    ]
    runs = [name for name, command in log if command == "run" and name != "dies"]
    assert runs == ["a", "b"] * 7
    assert found[0].seconds == [1.0] * 7 and found[0].memory == 25
    assert (found[0].error, found[-1].error) == (None, 0.0)


def test_slow_runs_end_with_their_time_and_short_ones_are_repeated():
    slowest, slow, short = (Scripted(str(seconds), [], seconds) for seconds in (100.0, 4.0, 0.1))
    found = measured(slowest, slow, short)
    assert [len(each.seconds) for each in found] == [1, 3, 7]
    assert (slowest.repeats, slow.repeats, short.repeats) == ([], [1] * 3, [10] * 7)


def test_errors_are_relative_to_an_array_and_of_a_vanishing_one_to_the_largest():
    expected = {"x": np.full(4, 100.0), "tiny": np.full(4, 1e-9)}
    assert relative_error(expected, expected) == 0
    found = {"x": np.full(4, 101.0), "tiny": np.full(4, 2e-9)}
    assert relative_error(found, expected) == pytest.approx(0.01)
    for wrong in ({"x": np.ones(4)}, expected | {"x": np.full(4, np.nan)}):
        assert relative_error(wrong, expected) == np.inf


def test_a_quick_run_leaves_out_what_takes_longest():
    options = program.read_arguments(["--quick"])
    assert "sar" not in options.only
    counts = {name: len(program.tasks_of(name, options.only, True)) for name in graphs.GENERATED}
    assert counts["pubmed-size"] == 8 and counts["arxiv-size"] == 6
    assert program.sits_out(Attention(4, 32), 10**7) == {"PyG"}
    assert program.sits_out(EPOCH, 10**7) == {"XLA"}
    assert not program.sits_out(SpMM(16), 10**7)


@pytest.mark.slow
def test_a_run_from_the_command_line_to_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(graphs, "make", lambda name: tiny())
    monkeypatch.setattr(program, "TRIAD", Triad(64))
    monkeypatch.setattr(program, "tasks_of", lambda *_: (SpMM(4), SpMM(4, weighted=True)))
    report = tmp_path / "run.json"
    for package in ("jaxgraph", "pallas_kernels"):
        (tmp_path / package).symlink_to(Path(jaxgraph.__file__).parents[1] / package)
    arguments = ["--only", "spmm", "--graphs", "pubmed-size", "--peers", "scipy", "--rounds", "1"]
    files = ["--before", str(tmp_path), "--json", str(report)]
    monkeypatch.setattr(sys, "argv", ["cpu", *arguments, *files])
    assert program.main() == 0
    rows = json.loads(report.read_text())["rows"]
    assert [(row["task"], row["contestant"]) for row in rows] == [
        (task, name)
        for task in ("SpMM 4", "SpMM weighted 4")
        for name in ("jaxgraph", "XLA", "before", "scipy")
    ]
    assert all(row["seconds"] and not row["failure"] for row in rows)
    assert all(row["error"] < 1e-6 for row in rows if row["contestant"] != "jaxgraph")
    assert "Times that jaxgraph is faster" in capsys.readouterr().out


def test_sar_is_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    rows = [Measurement("tiny", EPOCH, f"{n} parts", [float(n)]) for n in (1, 2, 4)]
    add_ratios(rows)
    assert [row.ratio for row in rows] == [1, 2, 4]
    plot_sar(rows, tmp_path / "sar.svg")
    assert (tmp_path / "sar.svg").stat().st_size


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_is_that_since_it_was_reset():
    resident.settle()
    if not resident.reset_peak():
        pytest.skip("the system does not let a process reset its peak")
    before = resident.resident_bytes()
    np.ones(64 << 20, np.uint8)
    assert resident.peak_bytes() - before > 60 << 20
    resident.settle()
    resident.reset_peak()
    assert resident.peak_bytes() - before < 30 << 20
