"""The backward visits remote partitions in the way that sends least."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxgraph as jg
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.parallel.schedules import sar
from tests.training import crooked_sharded

HEADS, FEATURES = 2, 16


def bytes_sent(receiver_width: int) -> float:
    """Bytes that leave a device in forward and backward, except for sums of scalars."""

    # A new function, since traces are cached by function.
    def logits_of_both(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
        return sender[1] + jnp.sum(receiver, -1), sender[0]

    def loss(arrays: Any, shard: Any) -> jax.Array:
        values, logits, receiver = (
            jnp.zeros((shard.num_rows, *array.shape)) + array for array in arrays
        )
        inputs = Inputs((), (values, logits), receiver, ())
        y = shard.propagate(logits_of_both, Softmax(heads=HEADS), inputs)
        return shard.sum(jnp.sum(shard.mask_rows(jnp.sin(y))))

    arrays = [jnp.ones((HEADS, FEATURES)), jnp.ones(HEADS), jnp.ones((HEADS, receiver_width))]
    step = jax.jit(jax.grad(jg.parallel.spmd(loss)))
    sent = jg.analysis.traffic(step.lower(arrays, crooked_sharded(4, "hash", "sar")).compile())
    return sum(value for name, value in sent.items() if name != "all-reduce")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("receiver_width", "other"),
    [(2, "refetch"), (24, "at-sender")],
)
def test_the_backward_sends_the_fewest_bytes(
    receiver_width: int, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = bytes_sent(receiver_width)
    monkeypatch.setattr(sar, "backward_plan", lambda *_: other)
    assert chosen < 0.9 * bytes_sent(receiver_width)
