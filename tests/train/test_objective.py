"""The loss of a shard as a pure function."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgraph.parallel import spmd
from jaxgraph.train import NodeClassification
from jaxgraph.train.objective import gradients, objective, split_model
from tests.tolerance import assert_close
from tests.train.small_model import SmallNet, on_devices, small_graph

TASK = NodeClassification()
KEY = jax.random.key(2)


def numbers(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def test_statistics_are_those_of_the_whole_graph_and_nothing_passed_in_changes() -> None:
    graph, split = small_graph(), split_model(SmallNet())
    assert graph.nodes is not None
    before = numbers(split)
    *_, new, _ = gradients(split, on_devices(graph, 4), KEY, TASK, True)
    kernel = np.asarray(split.params["first"]["kernel"][...], np.float64)
    expected = 0.1 * (graph.nodes.astype(np.float64) @ kernel).mean(0)
    assert_close(numbers(new)[0], expected, reduction_length=graph.num_nodes)
    for old, now in zip(before, numbers(split), strict=True):
        np.testing.assert_array_equal(old, now)


@pytest.mark.slow
def test_gradients_inside_of_spmd_are_those_outside() -> None:
    split, sharded = split_model(SmallNet(dropout=0.5)), on_devices(small_graph(), 4)

    def on_shard(params: nnx.State, shard: Any, key: Any) -> Any:
        return objective(split._replace(params=params), shard, key, TASK, True)[0]

    outside = jax.jit(jax.value_and_grad(spmd(on_shard)))
    expected_loss, expected = outside(split.params, sharded, KEY)
    loss, _, _, grads = gradients(split, sharded, KEY, TASK, True)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-6)
    for inside, reference in zip(numbers(grads), numbers(expected), strict=True):
        assert_close(inside, reference, reduction_length=60)
