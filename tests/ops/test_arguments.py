"""Bad arguments of the ops are refused before anything is computed."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgraph.ops import (
    aggregate,
    dot_attention,
    edge_softmax,
    gat_attention,
    gatv2_attention,
    sddmm,
)
from tests.ops.blocks import place_block
from tests.strategies import SMALL_GRAPHS

KEY = jax.random.key(0)
PLACED = place_block(SMALL_GRAPHS[3])
BLOCK = PLACED.block
X, SLOTS = jnp.ones((BLOCK.sender_rows, 2, 3)), jnp.ones((BLOCK.edge_slots, 2))
NUMBERS, WHOLE = X[..., 0], X.astype(jnp.int32)
AGGREGATE: Any = {"x": X}
GAT: Any = {"values": X, "sender_logits": NUMBERS, "receiver_logits": NUMBERS}
GATV2: Any = {"sender": X, "receiver": X, "attention": X[0]}
DOT: Any = {"queries": X, "keys": X, "values": X}
SDDMM: Any = {"sender": X, "receiver": X}
SOFTMAX: Any = {"logits": SLOTS}
BAD: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (aggregate, AGGREGATE, {"x": X[:-1]}, "x has shape"),
    (aggregate, AGGREGATE, {"x": WHOLE}, "x has dtype int32"),
    (aggregate, AGGREGATE, {"x": [1.0]}, "x is a list"),
    (aggregate, AGGREGATE, {"weight": SLOTS[:-1]}, "weight has shape"),
    (aggregate, AGGREGATE, {"x": X[:, 0], "weight": SLOTS}, "weight has shape"),
    (aggregate, AGGREGATE, {"weight": SLOTS > 0}, "weight has dtype bool"),
    (aggregate, AGGREGATE, {"weight": SLOTS, "self_loops": True}, "add_self_loops"),
    (aggregate, AGGREGATE, {"reduce": "meen"}, "did you mean 'mean'"),
    (sddmm, SDDMM, {"sender": X[:-1]}, "sender has shape"),
    (sddmm, SDDMM, {"receiver": X[:, None]}, "receiver has shape"),
    (sddmm, SDDMM, {"receiver": X[:, :1]}, "same axes"),
    (sddmm, SDDMM, {"op": "ad"}, "did you mean 'add'"),
    (edge_softmax, SOFTMAX, {"logits": SLOTS[:-1]}, "logits has shape"),
    (edge_softmax, SOFTMAX, {"logits": SLOTS.astype(jnp.int32)}, "logits has dtype int32"),
    (gat_attention, GAT, {"values": X[0]}, "values has shape"),
    (gat_attention, GAT, {"sender_logits": NUMBERS[:-1]}, "sender_logits has shape"),
    (gat_attention, GAT, {"receiver_logits": NUMBERS[0]}, "receiver_logits has shape"),
    (gat_attention, GAT, {"sender_logits": NUMBERS[:, :1]}, "number of heads"),
    (gat_attention, GAT, {"negative_slope": "0.2"}, "negative_slope"),
    (gat_attention, GAT, {"dropout": 1.0}, r"dropout is 1.0; expected a number in \[0, 1\)"),
    (gat_attention, GAT, {"dropout": 0.5}, "needs a random key"),
    (gat_attention, GAT, {"dropout": 0.5, "key": jnp.zeros(2, jnp.uint32)}, "typed key"),
    (gat_attention, GAT, {"dropout": 0.5, "key": jax.random.split(KEY)}, "one key of shape"),
    *(
        (gat_attention, GAT, {"dropout": rate, "key": KEY}, "dropout is")
        for rate in (-0.1, float("nan"), True, "0.5", jnp.float32(0.5))
    ),
    (gatv2_attention, GATV2, {"sender": X[0]}, "sender has shape"),
    (gatv2_attention, GATV2, {"receiver": X[:, :1]}, "same axes"),
    (gatv2_attention, GATV2, {"attention": X[0, 0]}, "attention is"),
    (dot_attention, DOT, {"queries": X[:-1]}, "queries has shape"),
    (dot_attention, DOT, {"values": X[..., :2]}, "same axes"),
    (dot_attention, DOT, {"scale": "half"}, "scale is 'half'"),
]
OPS = {op: arguments for op, arguments, _, _ in BAD}
BAD += [(op, good, {"implementation": "xlaa"}, "did you mean 'xla'") for op, good in OPS.items()]
BAD += [(op, good, {"neighborhood": PLACED}, "is a Placed") for op, good in OPS.items()]


@pytest.mark.parametrize(
    ("op", "good", "changes", "words"),
    [pytest.param(*each, id=f"{each[0].__name__}-{'-'.join(each[2])}") for each in BAD],
)
def test_bad_input_is_refused(op: Any, good: Any, changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        op(**{"neighborhood": BLOCK} | good | changes)
