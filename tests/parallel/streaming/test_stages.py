"""The stages into which a function of a shard is cut, and the orders of its backward."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph import train
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel import make_mesh, propagate, shard
from jaxgraph.parallel.streaming.function import StreamedFunction
from jaxgraph.parallel.streaming.graph import Pipeline, StreamedGraph, streamed_graph
from jaxgraph.partition import partition
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.tolerance import relative_error
from tests.training import HIDDEN, crooked_graph


def streamed(parts: int = 3, devices: int = 1, **options: Any) -> StreamedGraph:
    graph = crooked_graph()
    source = tabulate(graph, partition(graph, parts, method="hash", seed=0), "sar")
    return streamed_graph(source, make_mesh(devices), **options)


def test_between_two_layers_one_array_waits_on_the_host() -> None:
    graph, kernel = streamed(), jnp.ones((NUM_FEATURES, HIDDEN))
    model = jg.nn.GCN(NUM_FEATURES, HIDDEN, HIDDEN, rngs=nnx.Rngs(0), num_layers=3)
    graphdef, params = nnx.split(model)

    def run(part: Any, params: Any) -> Any:
        y = nnx.merge(graphdef, params)(part, part.nodes)
        return part.sum(jnp.sum(part.mask_rows(y @ kernel.T))), y

    made = StreamedFunction(run, graph, (params,), outputs=("replicated", "rows"))
    stages = made.staged.stages
    assert len(stages) == 5  # three aggregations, and a sum
    assert [len(stage.aggregations) for stage in stages] == [1, 1, 1, 0, 0]
    # What the layer sends, which is also what it adds of its own row.
    assert [len(stage.own.writes) for stage in stages[:3]] == [1, 1, 1]


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("heads", "devices", "whole_from"), [(0, 1, None), (2, 2, None), (2, 1, 0.0), (0, 2, 0.0)]
)
def test_both_orders_of_the_backward(heads: int, devices: int, whole_from: float | None) -> None:
    sizes = (NUM_FEATURES, HIDDEN, NUM_CLASSES)
    model: Any = jg.nn.GCN(*sizes, rngs=nnx.Rngs(0))
    if heads:
        model = jg.nn.GAT(*sizes, num_heads=heads, rngs=nnx.Rngs(0))
    _, expected = train.loss_and_grad(model, shard(crooked_graph(), None, make_mesh(1)))
    for order in ("rows", "columns"):
        graph = streamed(4, devices, pipeline=Pipeline(order=order, whole_from=whole_from))
        _, found = train.loss_and_grad(model, graph)
        for one, two in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            assert relative_error(one, two) < 2e-5


def test_effects_are_refused() -> None:
    def run(part: Any) -> jax.Array:
        jax.debug.callback(print, part.nodes)
        return part.sum(jnp.sum(part.mask_rows(part.nodes)))

    with pytest.raises(ValueError, match="has an effect beside its results"):
        StreamedFunction(run, streamed(), ())


def test_a_loop_of_fixed_length_is_unrolled() -> None:
    graph = streamed()

    def run(part: Any, scale: jax.Array) -> Any:
        def body(x: jax.Array, weight: jax.Array) -> Any:
            y = propagate(part, lambda s, r, e: s, x) * weight
            return y, part.sum(jnp.sum(part.mask_rows(y)))

        x, sums = jax.lax.scan(body, part.nodes, scale * jnp.arange(1.0, 4.0))
        return sums.sum(), x

    made = StreamedFunction(run, graph, (jnp.float32(0.1),), outputs=("replicated", "rows"))
    total, _ = made(jnp.float32(0.1))
    one = jg.parallel.spmd(run, outputs=("replicated", "rows"))
    whole = shard(crooked_graph(), None, make_mesh(1))
    assert relative_error(total, one(whole, jnp.float32(0.1))[0]) < 2e-5


def test_the_axis_of_the_mesh() -> None:
    with pytest.raises(ValueError, match=r"uses the mesh axis 'graph' itself"):
        StreamedFunction(
            lambda part: jax.lax.psum(jnp.sum(part.mask_rows(part.nodes)), part.axis),
            streamed(),
            (),
        )


STREAM: dict[str, Any] = {"mode": "stream"}
WRONG_PLACES: list[tuple[int, dict[str, Any], str]] = [
    (3, STREAM, r"has 2 part\(s\) and the mesh 3 device\(s\)"),
    (1, STREAM | {"prefetch": True}, "prefetch=True: not for mode='stream'"),
    (2, {"folder": "."}, "folder: for mode='stream' only"),
    (1, STREAM | {"folder": "none"}, "expected a folder that exists"),
]


@pytest.mark.parametrize(("devices", "options", "message"), WRONG_PLACES)
def test_where_no_graph_streams(devices: int, options: dict[str, Any], message: str) -> None:
    graph = crooked_graph()
    parts = partition(graph, 2, method="hash", seed=0)
    with pytest.raises(ValueError, match=message):
        shard(graph, parts, make_mesh(devices), **options)


def test_what_streamed_graphs_refuse() -> None:
    graph, one = crooked_graph(), make_mesh(1)
    parts = partition(graph, 2, method="hash", seed=0)
    sharded = shard(graph, parts, one, mode="stream")
    assert "mode='stream', num_parts=2" in repr(sharded)
    model = jg.nn.GCN(NUM_FEATURES, HIDDEN, NUM_CLASSES, rngs=nnx.Rngs(0))
    run = jg.parallel.spmd(lambda model, part: model(part, part.nodes), outputs="rows")
    given: Any = (model, sharded, optax.sgd(0.1))
    plan: Any = SimpleNamespace(policy=())
    for call, message in (
        (
            lambda: jg.parallel.place(tabulate(graph, parts, "domain"), one, "stream"),
            "made for mode 'sar', and these are for 'domain'",
        ),
        (lambda: run(model, sharded), "visit the devices one after another"),
        (lambda: train.evaluate(model, [sharded, sharded]), "is trained alone"),
        (lambda: train.fit(*given, epochs=1, plan=plan), "plan: not for a graph in mode 'stream'"),
        (
            lambda: train.fit(*given, epochs=1, measure_every=1, source=graph),
            "measure_every: not for a graph in mode 'stream'",
        ),
        (lambda: train.predict(Embedded(graph.num_nodes), sharded), "one row per node"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


class Embedded(nnx.Module):
    """A model with a row for every node."""

    def __init__(self, num_nodes: int) -> None:
        self.embedding = jg.nn.NodeEmbedding(num_nodes, NUM_CLASSES, rngs=nnx.Rngs(0))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        return self.embedding(shard)
