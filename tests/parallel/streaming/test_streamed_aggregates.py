"""Features of a streamed graph that are aggregated once: the same results, fewer bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph import train
from jaxgraph.layers.aggregated import AggregatedFeatures
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.partition import partition
from jaxgraph.train.aggregates import aggregate_once
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.tolerance import relative_error
from tests.training import HIDDEN, crooked_graph

SIZES = (NUM_FEATURES, HIDDEN, NUM_CLASSES)
MODELS: dict[str, Any] = {
    "gcn": lambda: jg.nn.GCN(*SIZES, activation=jax.nn.tanh, rngs=nnx.Rngs(0)),
    "sage": lambda: jg.nn.GraphSAGE(*SIZES, activation=jax.nn.tanh, rngs=nnx.Rngs(0)),
}


def streamed(devices: int = 1, folder: Path | None = None) -> Any:
    graph = crooked_graph()
    parts = partition(graph, 4, method="hash", seed=0)
    return shard(graph, parts, make_mesh(devices), mode="stream", folder=folder)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "devices"), [("gcn", 2), ("sage", 1)])
def test_results_are_those_of_one_device(model: str, devices: int, tmp_path: Path) -> None:
    made, plain = MODELS[model](), streamed(devices, tmp_path)
    graph: Any = aggregate_once(made, plain)
    assert isinstance(graph.parts.like.nodes, AggregatedFeatures)
    before = graph.parts.moved.sent
    again: Any = aggregate_once(made, plain)
    assert again.parts.moved.sent == before, "the parts hold it already"
    whole = shard(crooked_graph(), None, make_mesh(1))
    for found in (graph, again):
        loss, grads = train.loss_and_grad(made, found)
        expected, of_whole = train.loss_and_grad(made, whole)
        assert relative_error(loss, expected) < 2e-5
        for one, two in zip(*map(jax.tree.leaves, (grads, of_whole)), strict=True):
            assert relative_error(one, two) < 2e-5
        assert relative_error(train.predict(made, found), train.predict(made, whole)) < 2e-5


@pytest.mark.slow
def test_an_aggregate_that_does_not_fit_the_limit_is_left_out() -> None:
    """Its pass sends wide rows to other parts, and the layers narrow ones."""
    wide = crooked_graph(num_features=64)
    parts = partition(wide, 4, method="hash", seed=0)
    graph = shard(wide, parts, make_mesh(1), mode="stream")

    def needs(**options: Any) -> Any:
        model = jg.nn.GCN(64, 2, NUM_CLASSES, rngs=nnx.Rngs(0))
        return train.fit(model, graph, optax.adam(1e-2), epochs=1, **options).needs

    every, once = (needs(aggregate_once=once) for once in (False, True))
    assert once.sent < every.sent
    limited = needs(memory_limit=every.device)
    assert (limited.device, limited.sent) == (every.device, every.sent)
