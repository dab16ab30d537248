"""The rehearsal of a streamed run: bytes, programs, and the number of parts that a limit needs."""

from __future__ import annotations

import tracemalloc
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph import planner, train
from jaxgraph.datasets import stochastic_block_model
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel import make_mesh, propagate
from jaxgraph.parallel.streaming.function import StreamedFunction
from jaxgraph.parallel.streaming.graph import (
    Pipeline,
    StreamedGraph,
    streamed_graph,
)
from jaxgraph.partition import partition
from jaxgraph.planner.streaming import tried_parts
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.training import HIDDEN, crooked_graph

SIZES = (NUM_FEATURES, HIDDEN, NUM_CLASSES)


class Greatest(nnx.Module):
    """Takes the greatest of learned messages, whose winners are counted in the backward."""

    def __init__(self, rngs: nnx.Rngs, width: int = NUM_FEATURES) -> None:
        self.linear = nnx.Linear(width, NUM_CLASSES, rngs=rngs)

    def __call__(self, shard: Any, x: jax.Array, key: Any = None, train: bool = False) -> jax.Array:
        rows = self.linear(x)
        return rows + propagate(shard, lambda s, r, e: s, sender=rows, reduce="max")


MODELS: dict[str, Any] = {
    "gcn": lambda: jg.nn.GCN(*SIZES, rngs=nnx.Rngs(0)),
    "gat": lambda: jg.nn.GAT(*SIZES, num_heads=2, rngs=nnx.Rngs(0)),
    "max": lambda: Greatest(nnx.Rngs(0)),
}


LARGE = stochastic_block_model(4000, num_features=NUM_FEATURES, num_classes=NUM_CLASSES, seed=0)


def streamed(
    parts: int, graph: jg.Graph | None = None, devices: int = 1, **options: Any
) -> StreamedGraph:
    graph = crooked_graph() if graph is None else graph
    source = tabulate(graph, partition(graph, parts, method="hash", seed=0), "sar")
    return streamed_graph(source, make_mesh(devices), **options)


@pytest.mark.expensive
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("model", MODELS)
def test_bytes_and_programs_are_those_of_the_run(model: str, order: str, devices: int) -> None:
    graph = streamed(4, devices=devices, pipeline=Pipeline(order=order))
    made = MODELS[model]()
    history = train.fit(made, graph, optax.adam(1e-2), epochs=1, aggregate_once=False)
    moved, needs = graph.parts.moved, history.needs
    assert needs is not None
    assert (moved.sent, moved.returned) == (needs.sent, needs.returned)
    assert moved.share_of_epoch() == 1.0

    graphdef, params = nnx.split(made)

    def run(part: Any, params: Any) -> jax.Array:
        y = nnx.merge(graphdef, params)(part, part.nodes)
        return part.sum(jax.numpy.sum(part.mask_rows(y) ** 2))

    function = StreamedFunction(run, graph, (params,), differentiated=True)
    assert not function.executables.compiled()
    assert function.needs.sent > 0
    rehearsed = function.executables.compiled()
    function.value_and_grad(params)
    assert function.executables.compiled() == rehearsed and len(rehearsed) > 3


@pytest.mark.slow
def test_a_limit_finds_the_number_of_parts_and_keeps_it() -> None:
    graph, optimizer, model = LARGE, optax.adam(1e-2), MODELS["gcn"]()
    needs = {
        parts: planner.streamed_needs(model, streamed(parts, graph), optimizer).device
        for parts in (1, 2, 4)
    }
    limit = needs[4]
    assert limit < min(needs[1], needs[2])
    parts = planner.fewest_parts(model, graph, optimizer, limit, method="hash")
    assert parts.num_parts == 4
    sharded = jg.parallel.shard(graph, parts, make_mesh(1), mode="stream")
    assert train.fit(model, sharded, optimizer, epochs=1, memory_limit=limit).needs
    given: Any = {"epochs": 1, "memory_limit": limit - 1, "aggregate_once": False}
    with pytest.raises(ValueError, match=rf"an epoch on 4 part\(s\) takes {limit:,}.*more parts"):
        train.fit(model, sharded, optimizer, **given)
    assert planner.fewest_parts(model, graph, optimizer, needs[1], method="hash").num_parts == 1
    with pytest.raises(ValueError, match=r"memory_limit is 1,000 bytes.*least that works"):
        planner.fewest_parts(model, graph, optimizer, 1000, method="hash")


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("data", ["nodes", "node_data", "edge_data"])
def test_finding_the_number_of_parts_copies_no_data(data: str, devices: int) -> None:
    """It reads shapes, so that it takes less memory than the wide array of one part alone."""
    num_nodes, width = 3000, 4096
    ring, wide = np.arange(num_nodes), np.zeros((num_nodes, width), np.float32)
    given: dict[str, Any] = {"nodes": wide[:, :8].copy()}
    given[data] = {"wide": wide} if data.endswith("_data") else wide
    labels, mask = np.zeros(num_nodes, np.int32), np.ones(num_nodes, bool)
    graph = jg.Graph(ring, np.roll(ring, 1), num_nodes, labels=labels, train_mask=mask, **given)
    model = jg.nn.GCN(graph.num_features, 4, 2, rngs=nnx.Rngs(0))
    rest = (optax.adam(1e-2), 1 << 40, make_mesh(devices))
    tracemalloc.start()
    try:
        next(tried_parts(model, graph, *rest, compile=False, method="hash"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < wide.nbytes / devices


def test_wrong_arguments_are_named() -> None:
    model, optimizer = MODELS["gcn"](), optax.adam(1e-2)
    resident: Any = jg.parallel.shard(crooked_graph(), None, make_mesh(1))
    wrong: Any = "graph"
    for call, message in (
        (lambda: planner.fewest_parts(model, wrong, optimizer, "1GB"), "expected a jaxgraph.Graph"),
        (lambda: planner.fewest_parts(model, LARGE, optimizer, "much"), "memory_limit: got 'much'"),
        (lambda: planner.streamed_needs(model, resident, optimizer), "expected a graph in mode"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
