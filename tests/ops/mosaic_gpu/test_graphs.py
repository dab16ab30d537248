"""Ops by GPU kernels in Pallas' interpreter against the float64 oracle, over the small graphs."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.ops.aggregation import _aggregate
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.gat import _attend
from jaxgraph.ops.implementations import with_implementation
from jaxgraph.ops.mosaic_gpu import messages
from tests.ops.blocks import Placed, place_block, shared_shapes, with_one
from tests.oracles import edge_ops
from tests.pallas_kernels.graphs import in_interpreter
from tests.strategies import SMALL_GRAPHS
from tests.tolerance import assert_close

HEADS, FEATURES, SLOPE = 2, 4, 0.2
ALWAYS = ("one-node", "isolated-nodes", "star-in", "directed-random")
every_graph = pytest.mark.parametrize(
    "graph",
    [
        pytest.param(graph, marks=[] if graph.name in ALWAYS else pytest.mark.full, id=graph.name)
        for graph in SMALL_GRAPHS
    ],
)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "Launch", in_interpreter)


@partial(jax.jit, static_argnames="reduce")
def aggregated(block: Any, cotangent: Any, reduce: str, *arrays: Any) -> Any:
    block = with_implementation(block, "mosaic_gpu")
    y, pull = jax.vjp(lambda x, *w: _aggregate(block, x, w[0] if w else None, reduce), *arrays)
    return y, pull(cotangent)


@jax.jit
def attended(block: Any, cotangent: Any, *arrays: Any) -> Any:
    block = with_implementation(block, "mosaic_gpu")
    reducer = Softmax(heads=HEADS)
    y, pull = jax.vjp(lambda *given: _attend(block, *given, SLOPE, reducer), *arrays)
    return y, pull(cotangent)


def draw(graph: Graph) -> Any:
    rng = np.random.default_rng(1)
    shape = (graph.num_nodes, HEADS, FEATURES)
    x, cotangent = rng.standard_normal((2, *shape)).astype(np.float32)
    return x, cotangent, rng.uniform(0.5, 2.0, (graph.num_edges, HEADS)).astype(np.float32)


def placed_graph(graph: Graph) -> Placed:
    return place_block(graph, pad_to=shared_shapes())


@every_graph
@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_aggregation(graph: Graph, reduce: str) -> None:
    placed = placed_graph(graph)
    x, cotangent, weight = draw(graph)
    oracle, by_weight = placed.oracle(), reduce == "mean"
    weight = weight if by_weight else oracle.weight
    expected, backward = edge_ops.aggregate(
        oracle, x.astype(np.float64), weight.astype(np.float64), reduce
    )
    arrays = [placed.rows(x), placed.slots(weight)][: 2 if by_weight else 1]
    y, gradients = aggregated(placed.block, placed.rows(cotangent), reduce, *arrays)
    assert_close(placed.nodes(y), expected, reduction_length=300)
    exact = backward(cotangent.astype(np.float64))
    assert_close(placed.nodes(gradients[0]), exact[0], reduction_length=300)
    if by_weight:
        assert_close(placed.edges(gradients[1]), exact[1], reduction_length=300)


@every_graph
def test_attention(graph: Graph) -> None:
    placed = placed_graph(graph)
    x, cotangent, _ = draw(graph)
    exact = x.astype(np.float64)
    expected, backward = edge_ops.gat_attention(
        placed.oracle(), exact, exact[..., 0], exact[..., 1]
    )
    arrays = map(placed.rows, (x, x[..., 0], x[..., 1]))
    y, gradients = attended(placed.block, placed.rows(cotangent), *arrays)
    assert_close(placed.nodes(y), expected, reduction_length=300)
    for mine, exact in zip(gradients, backward(cotangent.astype(np.float64)), strict=True):
        mine = with_one(placed.nodes(mine))
        assert_close(mine, with_one(exact), reduction_length=300)
