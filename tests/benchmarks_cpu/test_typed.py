"""The program that compares typed graphs with peers, without these."""

import numpy as np
import pytest

from benchmarks.cpu.libraries.typed_jaxgraph_library import Library
from benchmarks.cpu.measure import Measurement
from benchmarks.typed import tasks
from benchmarks.typed.__main__ import beside_best, mag, numbers
from benchmarks.typed.tasks import RGCN, Epoch, Layer


@pytest.mark.parametrize("kind", ["blocks", "gatv2"])
def test_a_layer_returns_rows_and_a_gradient_of_all_that_it_was_given(kind: str) -> None:
    library, task = Library(), Layer(kind, "mean", 16)
    library.load(tasks.small())
    library.lay_out(task)
    ready = library.prepare(task)
    found, (x, gradients, _) = ready.results(), task.arrays(tasks.small())
    expected = x | {f"y/{name}": rows for name, rows in gradients.items()} | task.parameters(7)
    assert {n: a.shape for n, a in found.items()} == {n: a.shape for n, a in expected.items()}
    ready.run()


def test_a_model_learns_rows_from_the_parameters_that_all_start_from() -> None:
    library, data = Library(), tasks.small()
    library.load(data)
    task = Epoch(RGCN("rgcn", 2, 8, num_types=7, rows=100))
    library.lay_out(task)
    assert np.isfinite(library.prepare(task).results()["losses"]).all()
    assert "0/rows" in task.model.initial_parameters(16, 3)


def test_graphs_have_their_counts() -> None:
    data, _ = mag(scale=0.001)
    assert (data.num_nodes, data.num_types, data.num_classes) == (736 + 1135 + 9 + 60, 8, 349)
    assert len(data.senders) == 2 * (1044 + 7146 + 5416 + 7505)
    assert (np.diff(data.edge_type) >= 0).all()
    pairs = [
        len(np.unique(each.edge_type * np.int64(each.num_nodes) + each.receivers))
        for each in map(tasks.of_equal_pairs, (8, 20))
    ]
    assert pairs == [8 * 14_541] * 2


def test_times_stand_beside_those_of_the_fastest_peer() -> None:
    task = numbers()[1][0]
    rows = [Measurement("g", task, "jaxgraph", [0.5], 1.0)]
    rows += [
        Measurement("g", task, name, [ratio / 2], ratio) for name, ratio in (("a", 4.0), ("b", 2.0))
    ]
    rows.append(Measurement("g", task, "c", failure="it died"))
    (found,) = beside_best(rows)
    assert (found["ms"], found["best peer"], found["times faster"]) == (500, "b", 2.0)
