"""What depends on one end of an edge is computed once per node, and changes no result."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import jaxgraph as jg
from jaxgraph.ops.core.message_functions import sum_message, weighted_message
from jaxgraph.ops.core.rewriting.rewrite import rewritten
from tests.ops.core.rewriting.edge_functions import WIDTHS, edge_functions
from tests.strategies import random_edges
from tests.tolerance import assert_close

NODES, EDGES, CHUNK = 23, 140, 16
WIDE = 32


def rows(count, width, seed):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(count, width)), jnp.float32)


SENDER, RECEIVER, EDGE = (rows(n, WIDE, i) for i, n in enumerate((NODES, NODES, EDGES)))
OF_SENDER, OF_RECEIVER, SQUARE = (rows(WIDE, WIDE, i) for i in (3, 4, 5))
JOINED = rows(3 * WIDE, WIDE, 6)


def rewriting(function, sender=SENDER, receiver=RECEIVER, edge: Any = EDGE):
    inputs = {"sender": sender, "receiver": receiver, "edge": edge}
    return rewritten(function, inputs, EDGES, CHUNK)


def names(steps):
    return [step.name for step in steps]


def by_end(found):
    return {each.end: names(each.steps) for each in found.moved}


def graph(seed=0):
    senders, receivers = random_edges(NODES, EDGES, seed=seed)
    return jg.Graph(senders=senders, receivers=receivers, num_nodes=NODES)


@pytest.mark.expensive
@pytest.mark.parametrize("reduce", ["sum", "max"])
@settings(max_examples=6)
@given(edge_functions())
def test_random_functions(reduce, made):
    compare(reduce, made)


def compare(reduce, made):
    """Values and gradients, with the rewriting and without."""
    function, params = made
    edges = graph()
    x = tuple(rows(n, w, 7) for n, w in zip((NODES, NODES, EDGES), WIDTHS.values(), strict=True))

    def loss(params, x, rewrite):
        y = jg.parallel.propagate(
            edges,
            lambda s, r, e: function(params, s, r, e),
            *x,
            reduce=reduce,
            rewrite=rewrite,
        )
        return jnp.sum(jnp.sin(3 * y)), y

    run = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), static_argnums=2)
    (_, y), gradients = run(params, x, True)
    (_, plain), expected = run(params, x, False)
    assert_close(y, plain, reduction_length=EDGES)
    for gradient, other in zip(*map(jax.tree.leaves, (gradients, expected)), strict=True):
        # A parameter's gradient sums products over edges and columns.
        assert_close(gradient, other, reduction_length=EDGES * max(WIDTHS.values()))


def test_both_ends():
    found = rewriting(lambda s, r, e: jax.nn.sigmoid(r @ OF_RECEIVER + s @ OF_SENDER) * s)
    assert by_end(found) == {"sender": ["dot_general"], "receiver": ["dot_general"]}
    assert names(found.remaining) == ["add", "logistic", "mul"]
    assert found.is_elementwise


def test_concatenation():
    found = rewriting(lambda s, r, e: jnp.concatenate([s, r, e], -1) @ JOINED)
    assert names(found.split) == ["dot_general"]
    assert by_end(found) == {"sender": ["dot_general"], "receiver": ["dot_general"]}
    # The edge's own part stays, and is a product.
    assert names(found.remaining) == ["dot_general", "add"]
    assert not found.is_elementwise


def test_differences_are_not_split():
    """(s - r) W keeps the digits that s and r have in common."""
    far = 1e6 + SENDER

    def message(s, r, e):
        return (s - r) @ SQUARE

    found = rewriting(message, far, far)
    assert found.reason and not found.moved
    assert found.message_fn is message


@pytest.mark.parametrize("nodes", [NODES, CHUNK])
def test_values_with_rows_along_another_axis_stay(nodes):
    """einsum multiplies the matrix by the rows: [columns, edges], which no row of a node is."""

    def message(s, r, e):
        return jnp.einsum("ei,ij,ej->ej", s, SQUARE, r)

    ends = [rows(nodes, WIDE, seed) for seed in (0, 1)]
    found = rewriting(message, *ends)
    assert "another axis" in found.reason and not found.moved
    assert found.message_fn is message


def test_messages_of_kernels():
    found = rewriting(lambda s, r, e: jax.nn.silu(s @ OF_SENDER), edge=None)
    assert found.known is sum_message
    assert_close(found.inputs["sender"], jax.nn.silu(SENDER @ OF_SENDER), reduction_length=WIDE)
    weights = rows(EDGES, 1, 8)
    for weigh in (lambda e: e, lambda e: jnp.broadcast_to(e, (len(e), WIDE))):
        found = rewriting(lambda s, r, e, w=weigh: w(e) * (s @ OF_SENDER), edge=weights)
        assert found.known is weighted_message
        assert found.inputs["edge"].shape == (EDGES,)
    assert rewriting(lambda s, r, e: s * r).known is None
    assert rewriting(lambda s, r, e: s * e).known is None
    # Rounded to 16 bits by the function, and not by the kernel.
    half = SENDER.astype(jnp.bfloat16)
    assert rewriting(lambda s, r, e: s * e, half, edge=weights.astype(half.dtype)).known is None


def test_what_may_divide_by_zero_stays():
    """A node that no edge reads is 0 here: its derivative would be infinite, times 0."""
    edges = jg.Graph(senders=np.array([1, 2]), receivers=np.array([2, 1]), num_nodes=3)
    x = jnp.asarray(np.array([[0.0] * WIDE, [1.0] * WIDE, [2.0] * WIDE]), jnp.float32)

    def loss(kernel):
        y = jg.parallel.propagate(edges, lambda s, r, e: jnp.sqrt(jnp.abs(s @ kernel)) * r, x, x)
        return y.sum()

    assert np.isfinite(jax.grad(loss)(SQUARE)).all()
    found = rewriting(lambda s, r, e: jnp.sqrt(jnp.abs(s @ OF_SENDER)) * r)
    assert by_end(found) == {"sender": ["dot_general", "abs"]}
    assert "sqrt" in names(found.remaining)


def test_padding_may_hold_anything():
    table = SENDER.at[-1].set(jnp.nan)
    inputs = {"sender": table, "receiver": None, "edge": None}

    def loss(kernel):
        def real(end, leaf):
            return leaf.at[-1].set(0)

        found = rewritten(lambda s, r, e: jnp.tanh(s @ kernel), inputs, EDGES, CHUNK, real)
        return found.inputs["sender"][:-1].sum()

    assert np.isfinite(jax.grad(loss)(SQUARE)).all()


def test_program_by_number_of_edges():
    """A function may do the same in another way for other numbers of edges."""

    def message(s, r, e):
        twice = s + s if len(s) == CHUNK else 2 * s
        return jnp.tanh(twice @ OF_SENDER) + r

    found = rewriting(message)
    assert found.reason == "its program depends on the number of edges"
    assert found.message_fn is message


def test_calls_of_one_function():
    """A jitted function that is called twice is two sets of steps."""

    @jax.jit
    def dense(x):
        return jnp.tanh(x @ SQUARE)

    found = rewriting(lambda s, r, e: dense(dense(s)) * dense(r))
    steps = ["dot_general", "tanh"]
    assert by_end(found) == {"sender": 2 * steps, "receiver": steps}
    messages = found.message_fn(*(found.inputs[end] for end in ("sender", "receiver", "edge")))
    assert_close(messages, dense(dense(SENDER)) * dense(RECEIVER), reduction_length=WIDE)


@pytest.mark.parametrize("edges_apart", [False, True])
def test_a_constant_per_edge(edges_apart):
    x, message = rows(NODES, 3, 1), lambda s, r, e: jnp.ones((len(s), 1)) * s
    if edges_apart:
        found = jg.parallel.edge_messages(graph(), message, x)
        assert_close(found, x[graph().senders])
    else:
        plain = jg.parallel.propagate(graph(), message, x, rewrite=False)
        assert_close(jg.parallel.propagate(graph(), message, x), plain, reduction_length=EDGES)
