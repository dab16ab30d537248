"""Element-wise messages are summed by a kernel, with the values and gradients of XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from jaxgraph.ops.core.choice import choose_stages
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.program_messages import program_stages
from jaxgraph.ops.core.reducers import Sum
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.cpu import calls
from jaxgraph.parallel.whole_graph import on_whole_graph
from tests.cpu_kernels import needs_kernels
from tests.strategies import random_edges
from tests.tolerance import assert_close

pytestmark = needs_kernels
NODES, EDGES = 61, 700


def rows(count, width, seed, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(count, width)), dtype)


def make_graph():
    senders, receivers = random_edges(NODES, EDGES, seed=2)
    receivers[:300] = 7  # a hub, whose edges several pieces share
    return jg.Graph(senders=senders, receivers=receivers, num_nodes=NODES)


FUNCTIONS = {
    "gate": lambda p, s, r, e: jax.nn.sigmoid(s + r) * s,
    "tanh": lambda p, s, r, e: jnp.tanh(s * r) + 0.5 * s,
    "relu": lambda p, s, r, e: jax.nn.relu(s - r) * e,
    "leaky": lambda p, s, r, e: jax.nn.leaky_relu(s * p + r, 0.2),
    "exp": lambda p, s, r, e: jnp.exp(-jnp.square(s - r)) * p,
    "silu": lambda p, s, r, e: jax.nn.silu(s) / (1 + jnp.abs(r)),
    "power": lambda p, s, r, e: (s + e) ** 3 - r**2,
    "clip": lambda p, s, r, e: jnp.clip(s + r, -0.5, 0.5),
    "log": lambda p, s, r, e: jnp.log(1 + jnp.square(s)) * jnp.sqrt(2 + jnp.abs(r)),
    "minimum": lambda p, s, r, e: jnp.minimum(s, r) + jnp.maximum(2 * s, e),
    "edge twice": lambda p, s, r, e: jnp.where(e > 0, s, r) / (1 + jnp.abs(e)) + e * s,
    "truth": lambda p, s, r, e: jnp.where(jnp.minimum(s, 0).astype(bool) | (r > 1), s, p * r),
    "pair": lambda p, s, r, e: {"a": jax.nn.sigmoid(s + r), "b": s * e},
    "where": lambda p, s, r, e: jnp.where((s > 0) & (r < 0.3), s * p, r),
}


def weighted_total(y):
    """A sum in which every number of y counts differently."""
    return jnp.sum(y * jnp.sin(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))


def is_kernels(function, columns, dtype=jnp.float32):
    x, p = rows(NODES, columns, 0, dtype), rows(1, columns, 3, dtype)[0]
    inputs = Inputs(p, x, x, rows(EDGES, 1, 2, dtype))
    return program_stages(calls, Stages(function, Sum(), 32), inputs) is not None


def compare(function, columns, dtype=jnp.float32, **options):
    """Values and all gradients by the kernel and by XLA."""
    assert is_kernels(function, columns, dtype)
    graph = make_graph()
    x, z, e = (
        rows(NODES, columns, 0, dtype),
        rows(NODES, columns, 1, dtype),
        rows(EDGES, 1, 2, dtype),
    )
    p = rows(1, columns, 3, dtype)[0]

    def loss(p, x, z, e, name):
        whole = on_whole_graph(graph)
        shard = with_implementation(whole.shard, name)
        slots = whole.by_slot(e, "edge")
        y = jg.parallel.propagate(
            shard, lambda s, r, e: function(p, s, r, e), x, z, slots, **options
        )
        return sum(map(weighted_total, jax.tree.leaves(y))), y

    run = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True), static_argnames="name")
    (_, *found), (_, *expected) = (
        jax.tree.leaves(run(p, x, z, e, name=name)) for name in ("cpu", "xla")
    )
    for value, other in zip(found, expected, strict=True):
        assert_close(value, other, reduction_length=EDGES, dtype=dtype)


@pytest.mark.expensive
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name):
    compare(FUNCTIONS[name], 24)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [2, 5, 128, 131, 300])
def test_any_number_of_columns(columns):
    compare(FUNCTIONS["gate"], columns)


def test_64_bits():
    with jax.enable_x64(True):
        compare(FUNCTIONS["tanh"], 9, jnp.float64)


def chosen(function, columns=8, reducer=None, x=None, edge=None):
    shard = on_whole_graph(make_graph()).shard
    x = rows(NODES, columns, 0) if x is None else x
    inputs = Inputs((), x, x, edge)
    edges = shard.local_block().edges
    return choose_stages(edges, function, reducer or Sum(), inputs)


def test_which_messages_are_the_kernels():
    def name(*arguments, **options):
        return type(chosen(*arguments, **options)).__name__

    kernel = rows(8, 8, 4)
    assert name(FUNCTIONS["gate"]) == "_ProgramStages"
    assert name(lambda p, s, r, e: (s + r) @ kernel) == "Stages"  # a product
    assert name(lambda p, s, r, e: s * jnp.cumsum(r, 1)) == "Stages"  # across columns
    assert name(lambda p, s, r, e: s * r.sum(1, keepdims=True)) == "Stages"
    assert name(lambda p, s, r, e: jnp.sin(s) + r) == "Stages"  # no such operation
    assert name(FUNCTIONS["gate"], x=rows(NODES, 8, 0, jnp.bfloat16)) == "Stages"
    assert name(lambda p, s, r, e: s * jnp.arange(8.0)) == "Stages"  # a constant of all columns


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 100.0, -100.0, 88.5])
def test_numbers_at_the_ends(value):
    """exp, sigmoid and tanh of very large numbers and of none are those of XLA."""
    graph = jg.Graph(senders=np.array([0, 1]), receivers=np.array([1, 0]), num_nodes=2)
    x = jnp.full((2, 3), value, jnp.float32)
    shard = on_whole_graph(graph).shard
    for function in (jnp.exp, jax.nn.sigmoid, jnp.tanh):
        assert is_kernels(lambda p, s, r, e, f=function: f(s), 3)
        y = jg.parallel.propagate(shard, lambda s, r, e, f=function: f(s), x, x, rewrite=False)
        expected = function(x)
        np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_self_loops():
    graph, x = make_graph(), rows(NODES, 6, 0)

    def run(name):
        shard = with_implementation(on_whole_graph(graph).shard, name)

        def loss(x):
            y = jg.parallel.propagate(
                shard, lambda s, r, e: jnp.tanh(s + r) * s, x, x, self_loops=True
            )
            return weighted_total(y), y

        return jax.grad(loss, has_aux=True)(x)

    for value, other in zip(run("cpu"), run("xla"), strict=True):
        assert_close(value, other, reduction_length=EDGES)
