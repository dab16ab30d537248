"""Maxima and minima of messages, their winners and types, against NumPy in float64."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from jaxgraph.ops.core.message_functions import sum_message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.cpu.library import missing
from jaxgraph.parallel.propagate import reduce_messages
from tests.compilation import AS_USERS_DO
from tests.oracles import edge_ops, tape
from tests.oracles.edges import Edges
from tests.strategies import complete, random_edges
from tests.tolerance import assert_close

NODES = 40


MESSAGES: dict[str, Any] = {
    "tanh": (lambda a, b, xp: xp.tanh(0.7 * a + b), "max"),
    "gated": (lambda a, b, xp: a / (1 + xp.exp(b - 1.3 * a)), "min"),
}


def oracle(graph, name, gradient):
    """y and the gradients of both ends, equal winners sharing equally."""
    message, reduce = MESSAGES[name]
    edges, x = Edges.of(graph.senders, graph.receivers, NODES), graph.nodes.astype(float)

    def reduced(a, b):
        messages = message(a[edges.senders], b[edges.receivers], tape)
        return edge_ops.reduce_messages(edges, messages, reduce)

    y, backward = tape.differentiate(reduced, x, x)
    return y, *backward(np.broadcast_to(gradient, y.shape))


def sharded_as(graph, parts, mode):
    partition = jg.partition.partition(graph, parts, method="hash")
    return jg.parallel.shard(graph, partition, jg.parallel.make_mesh(parts), mode)


SLOW = pytest.mark.slow


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("name", "times", "parts", "mode", "options"),
    [
        ("tanh", 5, 1, "sar", AS_USERS_DO),
        ("gated", 3, 1, "sar", AS_USERS_DO),
        ("gated", 3, 3, "sar", {}),
        *(
            pytest.param(*case, AS_USERS_DO, marks=SLOW)
            for case in itertools.product(["tanh"], [2, 5], [3, 4], ["sar", "domain", "p3"])
        ),
        *(
            pytest.param("gated", 3, *case, AS_USERS_DO, marks=SLOW)
            for case in ((1, "domain"), (3, "sar"), (4, "domain"), (3, "p3"))
        ),
    ],
)
def test_repeated_edges_share_the_gradient(name, times, parts, mode, options):
    senders, receivers = (np.tile(ends, times) for ends in random_edges(NODES, 150, seed=7))
    graph = complete(senders, receivers, NODES, "repeated")
    message, reduce = MESSAGES[name]

    def run(shard):
        def reduced(a, b):
            each = lambda a, b, _: message(a, b, jnp)  # noqa: E731
            return jg.parallel.propagate(shard, each, a, b, reduce=reduce)

        x = shard.to_nodes(shard.nodes)
        y, pull = jax.vjp(reduced, x, x)
        weights = jnp.where(shard.node_mask, 1.0 + shard.node_ids % 5, 0)[:, None]
        return y, *pull(jnp.broadcast_to(weights, y.shape))

    sharded = sharded_as(graph, parts, mode)
    program = jax.jit(jg.parallel.spmd(run, outputs=("rows",) * 3))
    found = program.lower(sharded).compile(options)(sharded)
    gradient = 1.0 + np.arange(NODES)[:, None] % 5
    for part, expected in zip(found, oracle(graph, name, gradient), strict=True):
        assert_close(jg.parallel.gather_rows(part, sharded), expected, reduction_length=50)


PARTS = [(3, "sar"), *(pytest.param(*case, marks=SLOW) for case in ((1, "sar"), (4, "domain")))]


@pytest.mark.parametrize(
    ("parts", "mode"),
    [(1, "sar"), *(pytest.param(*case, marks=SLOW) for case in ((3, "sar"), (4, "domain")))],
)
def test_edges_that_differ_in_what_a_message_does_not_read_are_equal(parts, mode):
    """The first array of the message reads the sender alone: both edges 0 -> 1 share."""
    rows = np.random.default_rng(0).normal(size=(9, 8)).astype(np.float32)
    graph = jg.Graph.from_edges([0, 0], [1, 1], num_nodes=9, nodes=rows, edge_type=np.array([0, 1]))
    table = jnp.asarray([0.5, -2.0])

    def run(shard):
        def message(a, b, kind):
            return jnp.sum(a * a, -1), table[kind][:, None] * a[:, :1]

        def loss(x):
            y, _ = jg.parallel.propagate(shard, message, x, None, shard.edge_type, reduce="max")
            return jnp.sum(jnp.where(shard.node_ids == 1, y, 0))

        return jax.grad(loss)(shard.nodes)

    sharded = sharded_as(graph, parts, mode)
    compiled = jax.jit(jg.parallel.spmd(run, outputs="rows")).lower(sharded).compile(AS_USERS_DO)
    found = jg.parallel.gather_rows(compiled(sharded), sharded)
    expected = np.where(np.arange(9)[:, None] == 0, 2 * rows, 0)
    assert_close(found, expected, reduction_length=8)


def by_kernel(shard, x, reduce):
    return reduce_messages(shard, sum_message, Inputs((), x, (), ()), reduce, 1)


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("parts", "mode", "implementation"),
    [
        (1, "sar", "cpu"),
        (1, "sar", "xla"),
        pytest.param(3, "sar", "cpu", marks=SLOW),
        pytest.param(3, "sar", "xla", marks=SLOW),
        pytest.param(4, "domain", "cpu", marks=SLOW),
        pytest.param(4, "domain", "xla", marks=SLOW),
    ],
)
def test_nan_wins(parts, mode, implementation):
    if implementation == "cpu" and (reason := missing()):
        pytest.skip(reason)
    senders = np.array([0, 1, 1, 0, 2, 0, 3, 3])
    receivers = np.array([2, 2, 3, 3, 4, 4, 5, 5])
    graph = jg.Graph.from_edges(senders, receivers, num_nodes=7)
    x = np.array([5, -1, 7, -1, 0, 0, 0], np.float32)[:, None]
    partition = jg.partition.partition(graph, parts, method="hash")
    mesh = jg.parallel.make_mesh(parts)
    sharded = jg.parallel.shard(graph, partition, mesh, mode, implementation=implementation)

    def run(shard, x):
        x = x[jnp.maximum(shard.node_ids, 0)]
        found = []
        for dtype, reduce in ((jnp.float32, "max"), (jnp.bfloat16, "max"), (jnp.float16, "min")):
            logs = jnp.log(x).astype(dtype)
            found += [by_kernel(shard, logs, reduce)]
            found += [
                jg.parallel.propagate(
                    shard, lambda a, b, e: jnp.log(a), x.astype(dtype), reduce=reduce
                )
            ]
        _, pull = jax.vjp(lambda x: by_kernel(shard, x, "min"), jnp.log(x))
        found += pull(jnp.where(shard.node_mask[:, None], 1.0, 0.0))
        return jnp.concatenate([each.astype(jnp.float32) for each in found], 1)

    found = jg.parallel.gather_rows(jg.parallel.spmd(run, outputs="rows")(sharded, x), sharded)
    is_nan = np.array([0, 0, 1, 1, 0, 1, 0], bool)
    np.testing.assert_array_equal(np.isnan(found[:, :-1]), np.tile(is_nan[:, None], (1, 6)))
    assert_close(found[4, :-1], np.log([7, 7, 7, 7, 5, 5]), dtype=jnp.bfloat16)
    # min: 0 wins at 4; the NaN of 1 at 2 and 3; both edges of 3 share at 5.
    np.testing.assert_array_equal(found[:, -1], [1, 2, 0, 1, 0, 0, 0])


@pytest.mark.parametrize(("parts", "mode"), PARTS)
def test_types_of_messages(parts, mode):
    graph = jg.Graph.from_edges([0, 1, 2, 3, 4, 5], [6, 6, 6, 7, 7, 0], num_nodes=9)
    numbers = np.array([100, 100, 100, -128, 3, 7, 0, 0, 0])

    def run(shard, numbers):
        x = numbers[jnp.maximum(shard.node_ids, 0)]

        def reduced(dtype, reduce, name):
            return jg.parallel.propagate(shard, MAPS[name], x.astype(dtype), reduce=reduce)

        return tuple(reduced(*case) for case in TYPES)

    sharded = sharded_as(graph, parts, mode)
    found = jg.parallel.spmd(run, outputs="rows")(sharded, numbers)
    for (dtype, reduce, name), y in zip(TYPES, found, strict=True):
        # NumPy sums in the type of the messages, which wraps around, and finds the best.
        kind = np.float32 if reduce == "mean" else dtype
        options = {"dtype": kind} if reduce in ("sum", "mean") else {}
        values = np.asarray(MAPS[name](numbers.astype(dtype), None, None))
        of = [values[graph.senders[graph.receivers == i]] for i in range(9)]
        expected = [getattr(each, reduce)(**options) if each.size else 0 for each in of]
        assert y.dtype == kind
        np.testing.assert_allclose(jg.parallel.gather_rows(y, sharded), expected, 1e-6)


TYPES = [
    *(("int8", reduce, "copy") for reduce in ("sum", "mean", "max", "min")),
    *(("bool", reduce, "copy") for reduce in ("mean", "max", "min")),
    *(("int32", "max", "computed"), ("uint8", "min", "copy")),
]
MAPS = {"copy": lambda a, b, e: a, "computed": lambda a, b, e: a | (a > 3)}
