"""Training on a mesh that spans two processes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxgraph.parallel import make_mesh, shard, write_parts
from jaxgraph.train.graph_digest import of_graphs
from tests.law.test_typed import graph_of_sets
from tests.parallel.typed_shards import scattered
from tests.ports import free_port
from tests.tolerance import assert_close
from tests.train.checkpoints.test_kills import TIMEOUT_SECONDS, started
from tests.train.small_model import on_devices, small_graph
from tests.train.two_processes import (
    DEVICES_EACH,
    PROCESSES,
    smooth,
    train,
    train_by_column,
    train_on_batches,
    train_streamed,
    train_typed,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of each process; both are killed when one fails or hangs."""
    folder = tmp_path_factory.mktemp("processes")
    graph, parts = graph_of_sets(), str(folder / "parts")
    write_parts(graph, scattered(graph, PROCESSES * DEVICES_EACH), parts)
    return run(folder, parts)


def run(folder: Path, parts: str) -> list[dict[str, Any]]:
    """Runs both processes; returns the results of each."""
    port, results = str(free_port()), [folder / f"{rank}.json" for rank in range(PROCESSES)]
    module = "tests.train.two_processes"
    commands = [
        [sys.executable, "-m", module, str(rank), port, str(result), parts]
        for rank, result in enumerate(results)
    ]
    with started(commands) as processes:
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in processes]
        for process, output in zip(processes, outputs, strict=True):
            assert process.returncode == 0, output
    return [json.loads(Path(result).read_text()) for result in results]


def test_training_is_that_of_one_process(found: list[dict[str, Any]]) -> None:
    expected = train(on_devices(small_graph(61), PROCESSES * DEVICES_EACH))
    for of_process in found:
        for name, value in expected.items():
            assert_close(of_process[name], value, reduction_length=61, name=name)


def test_a_process_reads_its_own_parts_only(found: list[dict[str, Any]]) -> None:
    assert [of_process["read"] for of_process in found] == [[0, 1], [2, 3]]


def test_streamed_training_is_that_of_devices(found: list[dict[str, Any]]) -> None:
    expected = train_streamed(on_devices(small_graph(61), PROCESSES * DEVICES_EACH))
    for of_process, read in zip(found, ([0, 1, 4, 5], [2, 3, 6, 7]), strict=True):
        streamed = of_process["streamed"]
        assert streamed.pop("read") == read
        for name, value in expected.items():
            assert_close(streamed[name], value, reduction_length=61, name=name)


def test_all_processes_get_the_smoothed_predictions(found: list[dict[str, Any]]) -> None:
    expected = smooth(on_devices(small_graph(61), 1))
    for of_process in found:
        for smoothed in of_process["smoothed"]:
            assert_close(smoothed, expected, reduction_length=61)


def test_a_graph_of_several_sets_trains_as_on_one_device(found: list[dict[str, Any]]) -> None:
    sharded = shard(graph_of_sets(), None, make_mesh(1))
    expected, digests = train_typed(sharded), of_graphs([sharded])
    for of_process in found:
        assert of_process["typed digests"] == digests
        for name, value in expected.items():
            assert_close(of_process["typed"][name], value, reduction_length=240, name=name)


@pytest.mark.slow
@pytest.mark.law(5)
def test_training_on_batches_is_that_of_one_process(tmp_path: Path) -> None:
    graph = small_graph(61)
    expected = {
        "pulled": train_on_batches(on_devices(graph, 1)),
        "pushed": train_by_column(on_devices(graph, 2, "p3")),
    }
    for of_process in run(tmp_path, "batches"):
        for way, results in expected.items():
            for name, value in results.items():
                assert_close(of_process[way][name], value, reduction_length=61, name=name)


DIFFERENT = {
    "seed": "seed",
    "optimizer": "optimizer",
    "dropout": "model.dropout",
    "parameters": "initial parameters",
    "task": "task.label_smoothing",
}


def test_processes_that_do_not_train_alike_are_refused_in_all(found: list[dict[str, Any]]) -> None:
    message = (
        "process 1 does not run what process 0 runs; they differ in {}. Call fit with the same"
    )
    for of_process in found:
        assert of_process["refused"].keys() == DIFFERENT.keys()
        for name, text in of_process["refused"].items():
            assert text.startswith(message.format(DIFFERENT[name])), text


def test_the_digest_of_a_graph_is_that_of_one_device(found: list[dict[str, Any]]) -> None:
    expected = of_graphs([on_devices(small_graph(61), 1)])
    assert len(expected) == 6
    assert [of_process["digests"] for of_process in found] == [[expected, expected]] * PROCESSES
