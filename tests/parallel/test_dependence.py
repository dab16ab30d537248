"""SAR's two cases are distinguished by the message function and the wanted gradients."""

import jax
import jax.numpy as jnp
import pytest

from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.reducers import Softmax, Sum
from jaxgraph.parallel.schedules.sequential import backward_plan, looks_at_senders

ROWS = jnp.ones((4, 6))
SENDER_ONLY = Wanted(params=False, sender=True, receiver=False, edge=False)
ALL = Wanted(params=True, sender=True, receiver=True, edge=True)


def decide(message, reducer, inputs, adjoint, wanted=SENDER_ONLY):
    return looks_at_senders(message, reducer, inputs, adjoint, wanted, chunk=2)


@pytest.mark.parametrize(
    ("message", "case_two"),
    [
        (lambda p, s, r, e: s, False),
        (lambda p, s, r, e: 2 * s + r, False),
        (lambda p, s, r, e: jnp.where(r > 0, s, 0), False),
        (lambda p, s, r, e: s * r, False),
        (lambda p, s, r, e: jnp.tanh(s), True),
        (lambda p, s, r, e: jax.nn.relu(s + r), True),
    ],
)
def test_gradient_of_the_sender_alone(message, case_two):
    assert decide(message, Sum(), Inputs((), ROWS, ROWS, ()), ROWS) is case_two


def test_edge_weights_are_case_two_only_when_their_gradient_is_wanted():
    inputs = Inputs((), ROWS, (), jnp.ones(8))
    message = lambda p, s, r, e: e[:, None] * s  # noqa: E731
    assert decide(message, Sum(), inputs, ROWS) is False
    assert decide(message, Sum(), inputs, ROWS, ALL) is True


def test_attention_of_16_bits():
    """Its gradients are computed in 32 bits, and passed on in the type of the messages."""
    values, logits = jnp.ones((4, 2, 3), jnp.bfloat16), jnp.ones((4, 2), jnp.bfloat16)
    inputs = Inputs((), (values, logits), logits, ())
    of_rows = jnp.ones((4, 2))
    message = lambda p, s, r, e: (jax.nn.leaky_relu(s[1] + r), s[0])  # noqa: E731
    assert decide(message, Softmax(heads=2), inputs, (values, of_rows, of_rows))


def attention(receiver_width):
    values, logits = jnp.ones((4, 2, 16)), jnp.ones((4, 2))
    receiver = jnp.ones((4, 2, receiver_width))
    adjoint = (values, logits, logits)

    def message(params, sender, receiver, edge):
        return sender[1] + jnp.sum(receiver, -1), sender[0]

    return message, Inputs((), (values, logits), receiver, ()), adjoint


# There and back, a sender is 2 * 136 bytes; a receiver 144 and 16 for each unit of its width.
@pytest.mark.parametrize(
    ("receiver_width", "plan"),
    [(1, "at-sender"), (7, "at-sender"), (8, "refetch"), (16, "refetch")],
)
def test_the_backward_runs_where_fewer_bytes_move(receiver_width, plan):
    message, inputs, adjoint = attention(receiver_width)
    reducer = Softmax(heads=2)
    assert backward_plan(message, reducer, inputs, adjoint, ALL, 2) == plan
