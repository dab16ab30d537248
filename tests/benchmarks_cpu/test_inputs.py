from pathlib import Path

import numpy as np

from benchmarks.cpu.inputs import (
    attention_inputs,
    initial_parameters,
    node_features,
    read_data,
    write_data,
)
from benchmarks.cpu.models import MODELS
from benchmarks.cpu.tasks import Attention
from tests.benchmarks_cpu.graphs import tiny


def test_a_graph_survives_the_file(tmp_path: Path):
    data = tiny()
    write_data(tmp_path / "graph.npz", data)
    again = read_data(tmp_path / "graph.npz")
    for name, value in vars(data).items():
        np.testing.assert_array_equal(getattr(again, name), value)
    assert again.num_nodes == 30


def test_only_missing_loops_are_added():
    data = tiny()
    senders, receivers = data.edges(with_loops=True)
    loops = senders[senders == receivers]
    assert sorted(loops) == list(range(30))
    assert senders.size == data.senders.size + 29
    assert data.edges(with_loops=False) == (data.senders, data.receivers)


def test_arrays_come_from_the_seed_alone():
    np.testing.assert_array_equal(node_features(5, 3), node_features(5, 3))
    task = Attention(2, 3)
    first, second = attention_inputs(5, task), attention_inputs(5, task)
    np.testing.assert_array_equal(first.gradient, second.gradient)
    assert not np.array_equal(first.gradient, first.values)
    assert first.receiver_logits.shape == (5, 2)


def test_parameters_start_as_glorot_says():
    parameters = initial_parameters(MODELS["sage"], 100, 7)
    limit = np.sqrt(6 / (100 + 256))
    assert 0.9 * limit < np.abs(parameters["0/self_kernel"]).max() <= limit
    assert np.all(parameters["1/norm/scale"] == 1)
    assert not np.any(parameters["2/bias"])
    assert all(value.dtype == np.float32 for value in parameters.values())
