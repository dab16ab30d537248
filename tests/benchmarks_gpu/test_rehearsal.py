"""Every path of the program at a tiny size, on the CPU."""

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from benchmarks.cpu.tasks import SpMM
from benchmarks.cpu.work import Size
from benchmarks.gpu import __main__ as program
from benchmarks.gpu import plan, timing, worker
from benchmarks.gpu.contestant import OURS, Contestant
from benchmarks.gpu.cusparse import Multiply
from benchmarks.gpu.graphs import make_graph, place
from benchmarks.gpu.plan import Check, Layer
from benchmarks.gpu.report import Record, details, faults, goals
from benchmarks.gpu.roofline import expectation
from benchmarks.gpu.timing import Pace, Row, measure
from jaxgraph.layout.derived.row_splits import longest_row
from jaxgraph.layout.shard_tables import tabulate
from pallas_kernels.schedule import is_spread, most_pieces


@pytest.fixture(scope="module")
def placed():
    return place(make_graph("tiny"), "xla")


def test_without_a_gpu_it_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert program.main() == 2
    assert "measures a GPU" in capsys.readouterr().err


@pytest.mark.slow
def test_a_rehearsal_from_the_command_line_to_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, table = tmp_path / "gpu.json", tmp_path / "gpu.md"
    monkeypatch.setattr(
        sys, "argv", ["gpu", "--rehearse", "--json", str(found), "--markdown", str(table)]
    )
    assert program.main() == 0
    record = json.loads(found.read_text())
    rows = record["rows"]["tiny"]
    tasks = plan.TASKS["tiny"]
    assert {row["task"] for row in rows} == {task.label for task in tasks}
    for row in rows:
        if row["contestant"] == OURS:
            assert len(row["seconds"]) == worker.REHEARSAL.rounds and not row["failure"]
    checks = [row for row in rows if row["task"].endswith(("as numpy", "as xla"))]
    assert len(checks) == 4 and not any(row["failure"] for row in checks)
    assert record["bandwidth"] > 0 and record["sizes"]["tiny"]["num_nodes"] == 60
    assert "| SpMM 4 | jaxgraph |" in table.read_text()
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
    found = {row.contestant: row for row in measure("tiny", SpMM(3), placed, "xla", pace)}
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


def test_goals_take_the_fastest_peer_and_its_memory() -> None:
    record = Record("H200", False, bandwidth=4e12)
    task = next(task for task in plan.TASKS["tiny"] if task == SpMM(4))
    record.sizes["tiny"] = vars(Size(60, 460, 1, 3, 0))
    record.add(Row("tiny", task.label, OURS, [2e-3, 2e-3, 9.0], memory=10))
    record.add(Row("tiny", task.label, "cuSPARSE", [5e-3], memory=40))
    record.add(Row("tiny", task.label, "cuSPARSE ALG2", [3e-3], memory=20))
    (sheet,) = goals(record)
    assert sheet.rows == (("tiny", "SpMM", "cuSPARSE", "1.50", "1.50", "1", "2.00"),)
    cells = details(record, "tiny").rows[0]
    # 60 rows in and out, 460 edges: 4 * (460 + 61 + 2 * 4 * 60) bytes in 2 ms of 4 TB/s.
    shares = record.shares("tiny", task, record.rows["tiny"][0])
    assert shares is not None and shares[0] == pytest.approx(4004 / 8e9)
    assert cells[:4] == ("SpMM 4", OURS, "2.000", "-") and cells[8] == "8 x 16"


def test_faults_are_our_own() -> None:
    record = Record("H200", False)
    check = next(task for task in plan.TASKS["tiny"] if isinstance(task, Check))
    record.add(Row("tiny", check.label, "mosaic_gpu", failure="off by 1"))
    record.add(Row("tiny", "SpMM 4", "PyG CSR", failure="out of memory"))
    record.add(Row("tiny", "SpMM 4", "worker", failure="no answer"))
    assert [fault.rpartition(": ")[2] for fault in faults(record)] == ["off by 1", "no answer"]


def test_every_timed_task_of_the_plan_has_an_expectation() -> None:
    for tasks in plan.TASKS.values():
        for task in tasks:
            assert (expectation(task) is None) is isinstance(task, Check)
    found = expectation(Layer("gat", 100, 4, 128))
    assert found is not None and (found.read_bytes, found.reads) == (16, 4)


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
    for prefix in ("incoming/by_receiver", "incoming/by_sender"):
        slots = manifest.array_shapes()[f"{prefix}/neighbors"][0][0]
        longest = longest_row(manifest, prefix)
        assert most_pieces(slots, longest) > 0
        assert is_spread(slots, longest) == spread
