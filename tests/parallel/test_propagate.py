"""Arguments of `propagate`, self-loops, and rows that no edge reads.

Values and gradients of message functions are in `tests/test_silent_differences.py`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from tests.tolerance import assert_close


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
    assert_close(found.reshape(-1), total / norm, reduction_length=400)


@pytest.mark.expensive
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
