"""Processes of `jaxgraph train` with other options or another graph: refused in all, by name."""

from pathlib import Path

import numpy as np
import pytest

from jaxgraph.datasets import load
from jaxgraph.parallel import write_parts
from jaxgraph.partition import partition
from tests.launch.processes import together
from tests.launch.runs import ENVIRONMENT, MODEL, PROGRAM, QUICK, SECONDS
from tests.ports import free_port

TRAIN = [*PROGRAM, "train", *MODEL, "--epochs", "2"]


def errors(first: list[str], second: list[str]) -> list[str]:
    """The last line of each of two processes, which must refuse their options."""
    join = ["--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2", "--process-id"]
    commands = [[*TRAIN, *first, *join, "0"], [*TRAIN, *second, *join, "1"]]
    with together(commands, ENVIRONMENT | QUICK) as runs:
        found = [run.communicate(timeout=SECONDS)[1] for run in runs]
    assert [run.returncode for run in runs] == [2, 2], found
    return [error.splitlines()[-1] for error in found]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("--epochs", "9"),
        pytest.param("--mode", "auto", marks=pytest.mark.slow),
        pytest.param("--dtype", "float64", marks=pytest.mark.slow),
    ],
)
def test_another_option_is_named_in_both(name: str, value: str):
    graph = ["--dataset", "karate", "--parts", "2"]
    for error in errors(graph, [*graph, name, value]):
        assert "process 1 does not run what process 0 runs" in error and name in error


@pytest.mark.slow
def test_another_number_of_devices_is_refused_in_both():
    options = ["--dataset", "karate", "--parts"]
    for error in errors([*options, "2"], [*options, "4"]):
        assert "the 2 processes have 3 devices" in error and "expected as many in each" in error


@pytest.mark.slow
def test_other_parts_are_refused_in_both(tmp_path: Path):
    nodes = np.random.default_rng(0).random((34, 5))
    graph = load("karate").replace(nodes=nodes)
    two = partition(graph, 2)
    write_parts(graph, two, tmp_path / "one")
    write_parts(graph.replace(nodes=100 * nodes), two, tmp_path / "other")
    folders = [["--partition", str(tmp_path / name)] for name in ("one", "other")]
    for error in errors(*folders):
        assert "process 1 does not run what process 0 runs; they differ in nodes." in error
