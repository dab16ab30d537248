"""Messages reduced by GPU kernels, in Pallas' interpreter, compared with XLA's reduction."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops import aggregate
from jaxgraph.ops.core.edges import EdgeGroup, with_implementation
from jaxgraph.ops.core.message_functions import sum_message
from jaxgraph.ops.core.message_kernels import message_stages
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Mean
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.mosaic_gpu import calls
from pallas_kernels.teams import Launch
from tests.ops.blocks import place_block
from tests.oracles import edge_ops
from tests.pallas_kernels.graphs import in_interpreter
from tests.strategies import SMALL_GRAPHS, complete
from tests.tolerance import assert_close

GRAPH = next(graph for graph in SMALL_GRAPHS if graph.name == "star-in")


def rows(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    values = np.random.default_rng(len(shape)).standard_normal(shape)
    return jnp.asarray(values, dtype)


@pytest.mark.parametrize("loops", [pytest.param(False, marks=pytest.mark.slow), True])
def test_means_are_divided_by_the_kernel(loops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launch, "here", in_interpreter)
    graph = complete([0, 1, 1, 2, 3, 3, 3], [0, 1, 2, 2, 3, 0, 3], 7, "some-loops")
    placed = place_block(graph)
    block = with_implementation(placed.block, "mosaic_gpu")
    x, grad = np.random.default_rng(1).standard_normal((2, graph.num_nodes, 5))
    oracle = placed.oracle(loops)
    expected, backward = edge_ops.aggregate(oracle, x, oracle.weight, "mean")
    rows = [placed.rows(each.astype(np.float32)) for each in (x, grad)]
    y, pull = jax.vjp(
        jax.jit(lambda x: aggregate(block, x, None, "mean", self_loops=loops)), rows[0]
    )
    assert_close(placed.nodes(y), expected)
    assert_close(placed.nodes(pull(rows[1])[0]), backward(grad)[0])


@pytest.mark.slow
def test_means_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that come one after the other; the last step divides."""
    placed = place_block(GRAPH)
    block = with_implementation(placed.block, "mosaic_gpu")
    monkeypatch.setattr(Launch, "here", in_interpreter)
    inputs = Inputs((), rows(block.sender_rows, 4), (), ())
    kernel = message_stages(calls, Stages(sum_message, Mean(), block.edges.chunk), inputs)
    assert kernel is not None
    over = EdgeGroup(block.edges, 0)
    once = kernel.fold_over(over, inputs, None, block.receiver_rows)
    twice = kernel.fold_over(over, inputs, once, block.receiver_rows)
    for state, doubled in zip(once, twice, strict=True):
        np.testing.assert_allclose(doubled, 2 * state, 1e-6, 1e-6)
    whole = kernel.reduce(block.with_loops(False), inputs)
    for mine, other in zip(kernel.finish(once, inputs), whole, strict=True):
        np.testing.assert_allclose(mine, other, 1e-6, 1e-6)
    # Twice the edges: the same means, of halves.
    y, inverse = kernel.finish(twice, inputs)
    np.testing.assert_allclose(y, whole[0], 1e-6, 1e-6)
    has_edges = np.asarray(once[1]) > 0
    np.testing.assert_allclose(inverse[has_edges], whole[1][has_edges] / 2, 1e-6)
