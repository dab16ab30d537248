import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cpu.inputs import Data, write_data
from benchmarks.cpu.libraries.interface import Prepared
from benchmarks.cpu.serving import Session, answer_requests, failure
from benchmarks.cpu.tasks import Attention, SpMM, Task, to_json
from tests.benchmarks_cpu.graphs import tiny


class Counting:
    """A library that counts its calls."""

    def __init__(self) -> None:
        self.runs = 0

    def versions(self) -> Mapping[str, str]:
        return {"counting": "1.0"}

    def load(self, data: Data) -> None:
        self.num_nodes = data.num_nodes

    def lay_out(self, task: Task) -> None:
        if not isinstance(task, SpMM):
            raise NotImplementedError("only sums")

    def prepare(self, task: Task) -> Prepared:
        assert isinstance(task, SpMM)
        if task.features == 13:
            raise MemoryError("no room\nfor 13")

        def run() -> None:
            self.runs += 1

        return Prepared(lambda: {"y": np.ones((self.num_nodes, task.features))}, run, "by hand")


@pytest.fixture
def graph(tmp_path: Path) -> str:
    write_data(tmp_path / "graph.npz", tiny())
    return str(tmp_path / "graph.npz")


def ready(graph: str, tmp_path: Path) -> tuple[Session, Counting]:
    library = Counting()
    session = Session(library)
    session.answer({"command": "load", "path": graph})
    reply = session.answer(
        {"command": "prepare", "task": to_json(SpMM(2)), "output": str(tmp_path / "y.npz")}
    )
    assert reply["path"] == "by hand" and reply["seconds"] >= 0
    assert reply["peak"] is None or 0 < reply["before"] <= reply["peak"]
    assert library.runs == 1
    return session, library


def test_results_are_written_when_a_task_is_prepared(graph: str, tmp_path: Path):
    ready(graph, tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], np.ones((30, 2)))


def test_a_rehearsal_does_not_count(graph: str, tmp_path: Path):
    session, library = ready(graph, tmp_path)
    library.runs = 0
    reply = session.answer({"command": "run", "repeats": 1, "rehearse": False})
    assert reply["seconds"] == [reply["spent"]]
    assert library.runs == 1
    reply = session.answer({"command": "run", "repeats": 3, "rehearse": True})
    assert len(reply["seconds"]) == 3 and reply["spent"] > sum(reply["seconds"])
    assert library.runs == 5


def test_a_task_the_library_lacks_is_refused(graph: str, tmp_path: Path):
    session = Session(Counting())
    request = {"command": "prepare", "task": to_json(Attention(1, 1)), "output": ""}
    assert session.answer(request) == {"refused": "only sums"}


def test_a_failure_is_told_in_one_line(graph: str, tmp_path: Path):
    session, _ = ready(graph, tmp_path)
    request = {"command": "prepare", "task": to_json(SpMM(13)), "output": ""}
    assert session.answer(request) == {"failed": "MemoryError: no room"}
    assert (
        "no task is prepared"
        in session.answer({"command": "run", "repeats": 1, "rehearse": True})["failed"]
    )
    assert session.answer({"command": "greet"}) == {"versions": {"counting": "1.0"}}


def test_a_failure_without_words():
    assert failure(ValueError()) == {"failed": "ValueError: "}


def test_lines_are_answered_until_stop():
    requests = io.StringIO('{"command": "a"}\n{"command": "stop"}\n{"command": "b"}\n')
    replies = io.StringIO()
    answer_requests(lambda request: {"to": request["command"]}, requests, replies)
    assert [json.loads(line) for line in replies.getvalue().splitlines()] == [{"to": "a"}]
