import sys
from pathlib import Path

import pytest

from benchmarks.cpu.crew import Crew, Settings
from benchmarks.cpu.inputs import write_data
from benchmarks.cpu.plan import OURS, Contestant
from benchmarks.cpu.process import WorkerFailure, environment
from benchmarks.cpu.tasks import SpMM, to_json
from tests.benchmarks_cpu.graphs import tiny

SCIPY = Contestant("scipy", "scipy")
WRONG = Contestant("scipy, wrong", "scipy", {"colour": "blue"})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(sys.executable, 1, environment(1, "default", tmp_path), None, tmp_path)


def test_who_cannot_take_part_is_named_with_the_reason(settings: Settings):
    crew = Crew([SCIPY, WRONG], settings)
    try:
        assert list(crew.workers) == list(crew.versions) == ["scipy"]
        assert "TypeError" in crew.absent["scipy, wrong"]
    finally:
        crew.close()


def test_who_died_is_there_for_the_next_task(settings: Settings):
    write_data(settings.scratch / "graph.npz", tiny())
    crew = Crew([SCIPY], settings)
    request = {"task": to_json(SpMM(3)), "output": str(settings.scratch / "y.npz")}
    try:
        crew.load(settings.scratch / "graph.npz")
        crew.workers["scipy"].kill()
        with pytest.raises(WorkerFailure):
            crew.workers["scipy"].request("prepare", **request)
        crew.release()
        assert crew.workers["scipy"].request("prepare", **request)["path"]
    finally:
        crew.close()


def test_who_cannot_take_the_graph_is_left_out(settings: Settings):
    crew = Crew([SCIPY], settings)
    try:
        crew.load(settings.scratch / "nothing.npz")
        assert not crew.workers and "FileNotFoundError" in crew.absent["scipy"]
    finally:
        crew.close()


def test_peers_run_in_their_own_interpreter(tmp_path: Path):
    settings = Settings("/peers/python", 2, {}, 1 << 30, tmp_path)
    assert settings.command(SCIPY)[0] == "/peers/python"
    ours = settings.command(OURS)
    assert ours[0] == sys.executable and ours[-2:] == ["--memory-limit", str(1 << 30)]
