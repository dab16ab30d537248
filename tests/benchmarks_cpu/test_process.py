import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cpu.inputs import node_features, write_data
from benchmarks.cpu.process import Worker, WorkerFailure, WorkerRefusal, environment
from benchmarks.cpu.tasks import Epoch, SpMM, to_json
from tests.benchmarks_cpu.graphs import adjacency, tiny


def start(tmp_path: Path, *command: str) -> Worker:
    variables = environment(1, "default", tmp_path)
    return Worker([sys.executable, *command], variables, tmp_path / "log")


def test_a_worker_of_scipy_does_what_it_is_asked(tmp_path: Path):
    data, output = tiny(), tmp_path / "y.npz"
    write_data(tmp_path / "graph.npz", data)
    worker = start(tmp_path, "-m", "benchmarks.cpu.worker", "scipy", "--threads", "1")
    try:
        assert "scipy" in worker.request("greet")["versions"]
        worker.request("load", path=str(tmp_path / "graph.npz"))
        for weighted in (False, True):
            task = to_json(SpMM(5, weighted))
            worker.request("prepare", task=task, output=str(output))
            expected = adjacency(data, weighted) @ node_features(30, 5)
            np.testing.assert_allclose(np.load(output)["y"], expected, rtol=1e-5, atol=1e-6)
        assert len(worker.request("run", repeats=2, rehearse=True)["seconds"]) == 2
        with pytest.raises(WorkerRefusal, match="scipy has no such task"):
            worker.request("prepare", task=to_json(Epoch("gcn")), output=str(output))
        with pytest.raises(WorkerFailure, match="no task is prepared"):
            worker.request("run", repeats=1, rehearse=False)
    finally:
        worker.kill()


def test_a_library_that_cannot_be_imported_says_why(tmp_path: Path):
    script = (
        "import sys, benchmarks.cpu.worker as worker\n"
        "worker.LIBRARIES = {'gone': ('benchmarks.cpu.libraries.gone', 'Gone')}\n"
        "sys.argv[1:] = ['gone']\n"
        "worker.main()\n"
    )
    worker = start(tmp_path, "-c", script)
    try:
        with pytest.raises(WorkerFailure, match=r"ModuleNotFoundError: No module named .*gone"):
            worker.request("greet")
    finally:
        worker.kill()


def test_what_a_library_prints_is_no_reply(tmp_path: Path):
    script = (
        "import sys, benchmarks.cpu.worker as worker\n"
        "worker._answer = lambda *_: lambda request: print('noise') or {'fine': True}\n"
        "sys.argv[1:] = ['scipy']\n"
        "worker.main()\n"
    )
    worker = start(tmp_path, "-c", script)
    try:
        assert worker.request("greet")["fine"]
    finally:
        worker.kill()


def test_the_last_words_of_a_dead_worker(tmp_path: Path):
    script = "import os, sys; sys.stderr.write('out of room\\n'); sys.stderr.flush(); os.abort()"
    worker = start(tmp_path, "-c", script)
    try:
        with pytest.raises(WorkerFailure, match=r"SIGABRT.*out of room"):
            worker.request("greet")
        with pytest.raises(WorkerFailure, match="SIGABRT"):
            worker.request("greet")
    finally:
        worker.kill()


def test_a_worker_that_does_not_answer_is_killed(tmp_path: Path):
    worker = start(tmp_path, "-c", "import time; time.sleep(60)")
    with pytest.raises(WorkerFailure, match="no answer within 0 s"):
        worker.request("greet", timeout=0.1)
    worker.kill()


def test_all_workers_share_threads_and_malloc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    found = environment(3, "hugepages", tmp_path)
    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "3"
    assert found["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert "XLA_FLAGS" not in found
    assert environment(2, "default", tmp_path)["GLIBC_TUNABLES"] == ""
