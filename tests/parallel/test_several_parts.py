"""Devices with several parts compute the same as devices with one part each."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph import nn
from jaxgraph.parallel import (
    ShardedGraph,
    gather_rows,
    keep_edges,
    make_mesh,
    part_alone,
    propagate,
    shard,
    spmd,
)
from jaxgraph.partition import partition
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import crooked_graph

KEY = jax.random.key(4)
LAYOUTS = [
    (4, 2),
    pytest.param(6, 2, marks=pytest.mark.full),
    pytest.param(3, 1, marks=pytest.mark.full),
]
"""Parts, and devices."""
MODELS = [
    "GraphSAGE",
    "GAT",
    *(pytest.param(name, marks=pytest.mark.full) for name in ("GCN", "GATv2", "GIN")),
]


@cache
def placed(parts: int, devices: int, mode: str, implementation: str | None = None) -> ShardedGraph:
    graph = crooked_graph(edge_weight=True)
    split = partition(graph, parts, method="hash", seed=1)
    return shard(graph, split, make_mesh(devices), mode, implementation=implementation)


def messages(shard: Any, x: Any, params: Any) -> Any:
    """A maximum, a softmax with dropout and a sum over kept edges, all of weighted messages."""
    weights = shard.edge_weight[:, None]

    def message(sender: Any, receiver: Any, edge: Any) -> Any:
        weight, keep = edge
        return jnp.where(keep[:, None], jnp.sin(sender * params) * receiver * weight, 0)

    edge = (weights, keep_edges(shard, KEY, 0.4))
    total = propagate(shard, message, x, x, edge)
    best = propagate(shard, lambda s, r, e: jnp.cos(s * params) + r, x, x, reduce="max")
    logits = lambda s, r, e: (s[:, :2] * params[:2], jnp.stack([s, s], 1))  # noqa: E731
    options = {"reduce": "softmax", "dropout": 0.3, "key": KEY}
    attended = propagate(shard, logits, x, x, **options)
    return total + best + attended.sum(1)


def step(params: Any, shard: Any) -> Any:
    def loss(x: Any, params: Any) -> Any:
        y = messages(shard, x, params)
        return shard.sum(jnp.sum(shard.mask_rows(jnp.sin(y)))), y

    (_, y), (of_x, of_params) = jax.value_and_grad(loss, (0, 1), has_aux=True)(shard.nodes, params)
    return (y, of_x), of_params


@pytest.mark.full
@pytest.mark.parametrize("mode", ["sar", "domain"])
@pytest.mark.parametrize(("parts", "devices"), LAYOUTS)
def test_messages_of_ones_own(parts: int, devices: int, mode: str) -> None:
    run, found = spmd(step, outputs=("rows", "replicated")), []
    for sharded in (placed(1, 1, "sar"), placed(parts, devices, mode)):
        params = jnp.linspace(0.5, 1.5, NUM_FEATURES)
        rows, of_params = run(params, sharded)
        found.append([*(gather_rows(each, sharded) for each in rows), np.asarray(of_params)])
    for expected, actual in zip(*found, strict=True):
        assert_close(actual, expected, reduction_length=1000)


@pytest.mark.parametrize("implementation", ["cpu", pytest.param("xla", marks=pytest.mark.full)])
@pytest.mark.parametrize("mode", ["sar", "domain"])
@pytest.mark.parametrize("name", MODELS)
def test_training(name: str, mode: str, implementation: str) -> None:
    """Dropout and a batch norm with it; the loss of every epoch."""
    curves = []
    for sharded in (
        placed(1, 1, "sar", implementation),
        placed(4, 2, mode, implementation),
    ):
        if name != "GCN":
            sharded = without_weights(mode if curves else "sar", implementation, bool(curves))
        options: dict[str, Any] = {"norm": "batch", "dropout": 0.3, "rngs": nnx.Rngs(0)}
        model = getattr(nn, name)(NUM_FEATURES, 6, 3, **options)
        history = jg.train.fit(model, sharded, optax.adam(0.01), epochs=3)
        curves.append(list(history.loss))
    np.testing.assert_allclose(curves[1], curves[0], rtol=2e-5)


@cache
def without_weights(mode: str, implementation: str, several: bool) -> ShardedGraph:
    graph = crooked_graph()
    split = partition(graph, 4 if several else 1, method="hash", seed=1)
    mesh = make_mesh(2 if several else 1)
    return shard(graph, split, mesh, mode, implementation=implementation)


def test_one_of_several_parts_alone() -> None:
    sharded, graph = placed(4, 2, "sar"), crooked_graph(edge_weight=True)
    assert graph.nodes is not None
    kernel = jnp.eye(NUM_FEATURES, 3)
    y = spmd(lambda s: jg.layers.gcn_conv({"kernel": kernel}, s, s.nodes), outputs="rows")(sharded)
    expected = gather_rows(y, sharded)
    for index in range(4):
        part = part_alone(sharded, index)
        ends = (part.senders, part.receivers)
        x: Any = tuple(jnp.asarray(graph.nodes[np.asarray(t.node_ids)]) for t in ends)
        rows = np.asarray(jg.layers.gcn_conv({"kernel": kernel}, part, x))
        mask = np.asarray(part.receivers.node_mask)
        ids = np.asarray(part.receivers.node_ids)[mask]
        assert_close(rows[mask], expected[ids], reduction_length=1000)


def test_what_does_not_fit_is_refused() -> None:
    graph = crooked_graph()
    split = partition(graph, 4, method="hash", seed=1)
    with pytest.raises(ValueError, match=r"4 part\(s\) and the mesh 3 device\(s\)"):
        shard(graph, split, make_mesh(3))
    with pytest.raises(ValueError, match="mode='p3' gives every device its own columns"):
        shard(graph, split, make_mesh(2), "p3")
