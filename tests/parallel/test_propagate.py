"""Users' message functions give the same values and gradients under every schedule."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from tests.strategies import complete, random_edges
from tests.tolerance import assert_close

NODES, EDGES, WIDTH = 61, 400, 4


@pytest.fixture(scope="module")
def graph():
    senders, receivers = random_edges(NODES, EDGES, seed=3)
    receivers[:90] = 7  # one hub
    return complete(senders, receivers, NODES, "hub", edge_data=True)


def parameters():
    rng = np.random.default_rng(5)
    return {
        "kernel": jnp.asarray(rng.normal(size=(5, WIDTH)), jnp.float32),
        "edge": jnp.asarray(rng.normal(size=(2, WIDTH)), jnp.float32),
        "gate": jnp.asarray(rng.normal(size=(WIDTH,)), jnp.float32),
    }


def messages(params):
    """Edge features, edge types, both ends and closed-over parameters, in a pytree."""

    def message(sender, receiver, edge):
        features, kind = edge
        gate = jax.nn.sigmoid(sender * params["gate"] + receiver)
        scaled = gate * sender * (1 + kind[:, None])
        return {"gated": scaled, "edge": jnp.tanh(features @ params["edge"] + receiver)}

    return message


def attention(params):
    def message(sender, receiver, edge):
        logits = jax.nn.leaky_relu(sender + receiver) @ params["gate"][:, None]
        return logits, (sender * edge[0][:, :1])[:, None, :]

    return message


def reduce_all(values, receivers, reduce):
    """The reduction over whole arrays of edges."""
    count = jax.ops.segment_sum(jnp.ones_like(values[:, 0]), receivers, NODES)[:, None]
    if reduce in ("sum", "mean"):
        total = jax.ops.segment_sum(values, receivers, NODES)
        return total if reduce == "sum" else total / jnp.maximum(count, 1)
    sign = 1 if reduce == "max" else -1
    best = sign * jax.ops.segment_max(sign * values, receivers, NODES)
    return jnp.where(count > 0, best, 0)


def reference(params, graph, reduce):
    """Plain JAX over arrays of all edges, in float64."""
    x = jnp.asarray(graph.nodes, jnp.float64) @ params["kernel"]
    sender, receiver = x[graph.senders], x[graph.receivers]
    edge = (jnp.asarray(graph.edges, jnp.float64), jnp.asarray(graph.edge_type))
    weights = jnp.arange(NODES)[:, None] % 5 + 1
    if reduce == "softmax":
        logits, values = attention(params)(sender, receiver, edge)
        peak = jax.ops.segment_max(logits, graph.receivers, NODES)
        shares = jnp.exp(logits - peak[graph.receivers])
        norm = jax.ops.segment_sum(shares, graph.receivers, NODES)[graph.receivers]
        outputs = [jax.ops.segment_sum((shares / norm) * values[:, 0], graph.receivers, NODES)]
    else:
        outputs = jax.tree.leaves(messages(params)(sender, receiver, edge))
        outputs = [reduce_all(leaf, graph.receivers, reduce) for leaf in outputs]
    return sum(jnp.sum(jnp.sin(y) * weights) for y in outputs)


@functools.cache
def expected(reduce):
    senders, receivers = random_edges(NODES, EDGES, seed=3)
    receivers[:90] = 7
    graph = complete(senders, receivers, NODES, "hub", edge_data=True)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), parameters())
        value, grads = jax.value_and_grad(reference)(params, graph, reduce)
        return np.asarray(value), jax.tree.map(np.asarray, grads)


def sharded_loss(params, shard, reduce):
    x = shard.nodes @ params["kernel"]
    message = attention(params) if reduce == "softmax" else messages(params)
    edge = (shard.edges, shard.edge_type)
    outputs = jg.parallel.propagate(shard, message, x, x, edge, reduce=reduce)
    weights = shard.node_ids[:, None] % 5 + 1
    terms = [
        jnp.sum(shard.mask_rows(jnp.sin(y.reshape(-1, WIDTH)) * weights))
        for y in jax.tree.leaves(outputs)
    ]
    return shard.sum(sum(terms))


CASES = [(1, "sar", False), (3, "sar", False), (4, "sar", True), (8, "domain", False)]


@pytest.mark.expensive
@pytest.mark.parametrize(("parts", "mode", "prefetch"), CASES)
@pytest.mark.parametrize(
    ("reduce", "gradient"),
    [
        ("sum", "outside"),
        ("sum", "inside"),
        pytest.param("mean", "outside", marks=pytest.mark.slow),
        ("max", "outside"),
        pytest.param("min", "outside", marks=pytest.mark.slow),
        ("softmax", "outside"),
        ("softmax", "inside"),
    ],
)
def test_values_and_gradients(graph, reduce, parts, mode, prefetch, gradient):
    partition = jg.partition.partition(graph, parts, method="hash")
    mesh = jg.parallel.make_mesh(parts)
    sharded = jg.parallel.shard(graph, partition, mesh, mode, prefetch=prefetch)
    loss = functools.partial(sharded_loss, reduce=reduce)
    if gradient == "outside":
        run = jax.jit(jax.value_and_grad(jg.parallel.spmd(loss)))
    else:
        run = jg.parallel.spmd(lambda params, shard: jax.value_and_grad(loss)(params, shard))
    value, grads = run(parameters(), sharded)
    want, want_grads = expected(reduce)
    assert_close(value, want, reduction_length=EDGES, name="loss")
    for name, grad in grads.items():
        assert_close(grad, want_grads[name], reduction_length=EDGES * WIDTH, name=name)


def small(**changes):
    graph = jg.datasets.load("karate")
    sharded = jg.parallel.shard(graph, None, jg.parallel.make_mesh(1))
    arguments: dict[str, Any] = {"message_fn": lambda s, r, e: s, "reduce": "sum"} | changes
    rows = arguments.pop("rows", None)

    def run(shard):
        x = jnp.ones((shard.num_rows, 2))[:rows]
        return shard.sum(jnp.sum(jg.parallel.propagate(shard, sender=x, **arguments)))

    return jg.parallel.spmd(run)(sharded)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"reduce": "median"}, "median"),
        ({"rows": 3}, "one row per node"),
        ({"dropout": 0.5}, "softmax"),
        (
            {"reduce": "softmax", "dropout": 0.5, "message_fn": lambda s, r, e: (s, s[..., None])},
            "key",
        ),
        ({"reduce": "softmax"}, "logits"),
        ({"reduce": "softmax", "message_fn": lambda s, r, e: (s, s)}, "values"),
    ],
)
def test_bad_arguments_are_named(changes, text):
    with pytest.raises(ValueError, match=text):
        small(**changes)


@pytest.mark.parametrize("reduce", ["sum", "softmax"])
def test_self_loops_are_added_where_they_are_missing(reduce):
    graph = jg.datasets.load("karate")
    sharded = jg.parallel.shard(graph, None, jg.parallel.make_mesh(1))
    x = np.sin(1.0 + np.arange(graph.num_nodes))
    own = np.arange(graph.num_nodes)
    senders, receivers = np.append(graph.senders, own), np.append(graph.receivers, own)
    assert not np.any(graph.senders == graph.receivers)

    def message(s, r, e):
        return s if reduce == "sum" else (s, s[..., None])

    def run(shard):
        rows = jnp.sin(1.0 + shard.node_ids)[:, None]
        return jg.parallel.propagate(shard, message, rows, reduce=reduce, self_loops=True)

    weights = np.ones(len(senders)) if reduce == "sum" else np.exp(x[senders])
    total = np.bincount(receivers, weights * x[senders])
    found = jg.parallel.gather_rows(jg.parallel.spmd(run, outputs="rows")(sharded), sharded)
    norm = 1.0 if reduce == "sum" else np.bincount(receivers, weights)
    assert_close(found.reshape(-1), total / norm, reduction_length=EDGES)


@pytest.mark.parametrize(
    ("parts", "devices", "mode"),
    [(1, 1, "sar"), (3, 3, "sar"), (3, 3, "domain"), (4, 2, "sar"), (4, 2, "domain")],
)
def test_rows_that_no_edge_reads_do_not_reach_gradients(parts, devices, mode):
    """Rows overflow at an end without edges: of 9, of 0 as a sender, of 8 as a receiver."""
    senders, receivers = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 1], [0, 1, 2, 3, 4, 5, 6, 7, 5]])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, 4)).astype(np.float32)
    x[9] = 1e30
    kernel = jnp.asarray(rng.normal(size=(8, 6)).astype(np.float32))
    graph = jg.Graph(senders, receivers, 10, nodes=x)
    mesh = jg.parallel.make_mesh(devices)
    placed = jg.parallel.shard(graph, jg.partition.partition(graph, parts, "hash"), mesh, mode=mode)

    def loss(kernel, shard, rewrite):
        def message(sender, receiver, edge):
            return jnp.tanh(jnp.concatenate([sender**2, receiver**3], 1) @ kernel)

        one, other = shard.nodes, shard.nodes
        one = jnp.where(shard.node_ids[:, None] == 0, jnp.inf, one)
        other = jnp.where(shard.node_ids[:, None] == 8, jnp.inf, other)
        y = jg.parallel.propagate(shard, message, one, other, rewrite=rewrite)
        return shard.sum(jnp.sum(shard.mask_rows(y) ** 2))

    found, plain = (
        jax.grad(jg.parallel.spmd(functools.partial(loss, rewrite=rewrite)))(kernel, placed)
        for rewrite in (True, False)
    )
    assert np.isfinite(plain).all()
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-5)
