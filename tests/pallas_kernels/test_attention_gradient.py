from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.attention import Attention
from pallas_kernels.attention_gradient import (
    Edges,
    Gradients,
    attention_gradients,
    make_adjoint,
)
from pallas_kernels.attention_logits import DOT, GAT, GATV2
from tests.pallas_kernels.attention_oracle import (
    expected_gradients,
    expected_state,
    keep_mask,
    make_attention,
    start_of_gradients,
    transposed,
)
from tests.pallas_kernels.graphs import graph, in_interpreter

DEGREES, SENDERS = [2, 0, 1, 9, 1], 4


def adjoint_of(attention, over, keep, dtype):
    """The gradient of the output and the residuals of the forward."""
    heads = attention.heads
    width = (attention.sender if attention.values is None else attention.values).shape[1]
    rows = len(over.degrees)
    empty = (np.full((rows, heads), -np.inf), np.zeros((rows, heads)), np.zeros((rows, width)))
    peak, total, sums = expected_state(attention, over, empty, keep)
    peak[total == 0], total[total == 0] = 0, 1
    gradient = np.random.default_rng(5).standard_normal((rows, width)).astype(jnp.dtype(dtype))
    by_head = gradient.astype(np.float64).reshape(rows, heads, -1) * sums.reshape(rows, heads, -1)
    inner = by_head.sum(-1) / total
    numbers = [jnp.asarray(part, jnp.float32) for part in (peak, 1 / total, inner)]
    attention = jax.tree.map(jnp.asarray, attention)
    of_rows = Attention(
        attention.sender,
        attention.receiver[:-1],
        attention.vector,
        attention.values,
        attention.dropout,
        heads,
        attention.logits,
    )
    return gradient, make_adjoint(of_rows, jnp.asarray(gradient), *numbers)


def start(rows, columns) -> Any:
    return np.random.default_rng(6).standard_normal((rows, columns)).astype(np.float32)


def assert_added(found, before, expected):
    expected = expected[: len(before)].reshape(before.shape)
    difference = np.asarray(found, np.float64) - before
    np.testing.assert_allclose(difference, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "heads", "width", "dtype", "longest", "dropped"),
    [
        (GAT, 3, 7, "float32", 1000, True),
        (GAT, 4, 8, "bfloat16", 3, False),
        (GATV2, 3, 7, "bfloat16", 1000, True),
        (GATV2, 2, 16, "float32", 3, False),
        (DOT, 3, 16, "float16", 1000, True),
        (DOT, 2, 8, "float32", 3, False),
    ],
)
def test_gradients(kind, heads, width, dtype, longest, dropped):
    over = graph(DEGREES, SENDERS, longest=longest)
    back = transposed(over, SENDERS, longest)
    attention = make_attention(over, kind, heads, width, dtype, SENDERS, dropped)
    keep = keep_mask(attention, over, heads)
    gradient, adjoint = adjoint_of(attention, over, keep, dtype)
    before = start_of_gradients(attention, len(DEGREES), SENDERS, start)
    found = jax.jit(lambda *a: attention_gradients(*a, launch=in_interpreter()))(
        attention,
        adjoint,
        Edges(back.rows, back.neighbors, back.slots),
        Edges(over.rows, over.neighbors),
        before,
    )
    expected = expected_gradients(attention, over, gradient, keep)
    assert_added(found.receiver, before.receiver, expected.receiver)
    if kind == GATV2:
        assert_added(found.sender, before.sender, expected.sender)
        assert_added(found.vector, before.vector, expected.vector.reshape(-1))
    else:
        assert_added(found.values, before.values, expected.values)
        assert_added(found.sender, before.sender, expected.sender)


@pytest.mark.slow
def test_what_teams_add_up_for_the_vector_does_not_race():
    heads, width, rows = 2, 8, 60
    over = graph([2] * rows, SENDERS)
    attention = make_attention(over, GATV2, heads, width, "float32", SENDERS, False)
    gradient, adjoint = adjoint_of(attention, over, None, "float32")
    zeros = jnp.zeros((rows, heads * width))
    edges = Edges(over.rows, over.neighbors)
    found: Any = attention_gradients(
        attention,
        adjoint,
        edges,
        edges,
        Gradients(None, None, zeros, zeros[0]),
        launch=in_interpreter(2),
    )
    expected = expected_gradients(attention, over, gradient, None)
    assert found.sender is None
    assert_added(found.receiver, zeros, expected.receiver)
    np.testing.assert_allclose(found.vector, expected.vector.reshape(-1), rtol=1e-4, atol=1e-4)
