"""Every path of the program at a tiny size, on the CPU."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from benchmarks.cpu.process import WorkerFailure
from benchmarks.cpu.tasks import SpMM
from benchmarks.gpu import __main__ as program
from benchmarks.gpu import plan, timing
from benchmarks.gpu.contestant import OURS, Contestant
from benchmarks.gpu.cusparse import Multiply
from benchmarks.gpu.graphs import make_graph, place
from benchmarks.gpu.plan import Check
from benchmarks.gpu.report import Record
from benchmarks.gpu.timing import Pace, Row, measure
from jaxgraph.layout.derived.row_splits import longest_row
from jaxgraph.layout.shard_tables import tabulate
from pallas_kernels.schedule import is_spread, most_pieces


@pytest.fixture(scope="module")
def placed():
    return place(make_graph("tiny"), "xla")


def test_without_a_gpu_it_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit, match="2"):
        program.main()
    assert "measures a GPU" in capsys.readouterr().err


@pytest.mark.slow
def test_a_rehearsal_from_the_command_line_to_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "gpu.json"
    monkeypatch.setattr(sys, "argv", ["gpu", "--rehearse", "--json", str(found)])
    assert program.main() == 0
    record = json.loads(found.read_text())
    rows = record["rows"]["tiny"]
    tasks = plan.TASKS["tiny"]
    assert {row["task"] for row in rows} == {task.label for task in tasks}
    for row in rows:
        if row["contestant"] == OURS:
            assert len(row["seconds"]) == timing.REHEARSAL.rounds and not row["failure"]
    checks = [row for row in rows if row["task"].endswith(("as numpy", "as xla"))]
    assert len(checks) == 4 and not any(row["failure"] for row in checks)
    assert record["bandwidth"] > 0 and record["sizes"]["tiny"]["num_nodes"] == 60
    assert record["device"] == "cpu" and record["jax"] and record["date"]
    assert "4 of 4 checks passed" in capsys.readouterr().out


def test_compressed_rows_are_those_of_the_graph(placed) -> None:
    pointers, senders = placed.compressed
    x = np.random.default_rng(0).standard_normal((placed.num_rows, 3)).astype(np.float32)
    y = np.zeros_like(x)
    np.add.at(y, np.repeat(np.arange(placed.num_rows), np.diff(pointers)), x[senders])
    contestant = timing.jaxgraph_contestant(SpMM(3), placed, "xla")
    found = contestant.numbers(contestant.call([jnp.asarray(x)]))["y"]
    np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-5)


def test_who_computes_something_else_or_fails_is_not_timed(placed, monkeypatch) -> None:
    own = timing.jaxgraph_contestant(SpMM(3), placed, "xla")
    wrong = Contestant(
        own.take,
        own.call,
        own.wait,
        lambda outputs: {"y": own.numbers(outputs)["y"] + 1},
        own.memory,
    )

    def absent() -> Contestant:
        raise ModuleNotFoundError("No module named 'torch'")

    makers = {OURS: lambda: own, "wrong": lambda: wrong, "absent": absent}
    monkeypatch.setattr(timing, "contestants", lambda *_: makers)
    pace = Pace(rounds=3, round_seconds=0, spread_bytes=1)
    found = {row.contestant: row for row in measure(SpMM(3), placed, "xla", pace)}
    assert len(found[OURS].seconds) == 3 and found[OURS].memory
    assert not found["wrong"].seconds and "wrong result" in found["wrong"].failure
    assert "torch" in found["absent"].failure


def test_cusparse_is_called_as_its_manual_says(placed) -> None:
    calls = []

    class Library:
        def __getattr__(self, name: str):
            return lambda *arguments: calls.append((name, arguments)) or 0

    multiply = Multiply(SpMM(3, weighted=True), placed, 6, Library(), Library())
    x, weights = jnp.ones((placed.num_rows, 3)), jnp.ones(placed.block.edge_slots)
    taken = multiply.take([x, weights])
    multiply.call(taken)
    multiply.wait(None)
    # Handle or descriptor first; the buffer or its size last.
    assert {name: len(arguments) for name, arguments in calls} == {
        "cusparseCreate": 1,
        "cusparseCreateDnMat": 7,
        "cusparseCreateCsr": 11,
        "cusparseSpMM_bufferSize": 11,
        "cusparseSpMM_preprocess": 11,
        "cusparseSpMM": 11,
        "cuCtxSynchronize": 0,
    }
    (matrix,) = (arguments for name, arguments in calls if name == "cusparseCreateCsr")
    assert [each.value for each in matrix[1:4]] == [placed.num_rows] * 2 + [placed.num_edges]
    edges, rows = placed.num_edges, placed.num_rows
    # Pointers, senders and weights; x and y; a buffer of at least a byte.
    assert multiply.memory(taken) == 4 * (rows + 1 + 2 * edges + 2 * 3 * rows) + 1


def test_faults_are_our_own() -> None:
    record = Record("H200", False)
    check = next(task for task in plan.TASKS["tiny"] if isinstance(task, Check))
    record.rows["tiny"] = [
        Row(check.label, "mosaic_gpu", failure="off by 1"),
        Row("SpMM 4", OURS, [2e-3, 2e-3, 9.0]),
        Row("SpMM 4", "PyG CSR", failure="out of memory"),
        Row("SpMM 4", "worker", failure="no answer"),
    ]
    assert [fault.rpartition(": ")[2] for fault in record.faults()] == ["off by 1", "no answer"]
    assert "0 of 1 checks passed" in record.summary()


class Scripted:
    """A worker whose second task fails."""

    def __init__(self, started: list) -> None:
        started.append(self)

    def request(self, name: str, graph: str, index: int, timeout: float) -> list[Row]:
        if index == 1:
            raise WorkerFailure("the device is gone")
        return [Row(str(index), OURS)]

    def kill(self) -> None:
        """Nothing runs."""


@pytest.mark.parametrize(("seconds", "workers"), [(30.0, 2), (-1.0, 1)])
def test_only_the_task_at_hand_is_lost_until_time_is_up(seconds: float, workers: int) -> None:
    found: list[Row] = []
    started: list = []
    start: Any = lambda graph: Scripted(started)  # noqa: E731
    deadline = time.monotonic() + seconds
    program.run_tasks("tiny", [0, 1, 2], start("tiny"), start, deadline, found.extend)
    assert len(started) == workers
    failures = ["", "the device is gone", ""] if workers == 2 else ["time is up"] * 3
    assert [row.failure for row in found] == failures


def test_what_is_checked_against_numpy_has_gpu_kernels() -> None:
    known = {each.op for each in jg.ops.implementations() if each.name == "mosaic_gpu"}
    checked = {
        task.op
        for tasks in plan.TASKS.values()
        for task in tasks
        if isinstance(task, Check) and task.against == "numpy"
    }
    assert checked == known


@pytest.mark.parametrize(("name", "spread"), [("checks", False), ("checks-spread", True)])
def test_checks_are_done_with_rows_that_clusters_join_and_with_longer_ones(name, spread) -> None:
    graph = make_graph(name)
    manifest = tabulate(graph, jg.partition.partition(graph, 1, method="hash")).manifest
    for side in ("by_receiver", "by_sender"):
        slots = manifest.array_shapes()[f"incoming/{side}/neighbors"][0][0]
        longest = longest_row(manifest.edge_sets["incoming"], side)
        assert most_pieces(slots, longest) > 0
        assert is_spread(slots, longest) == spread
