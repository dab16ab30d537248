"""What can be listed and asked about the ops."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgraph import ops
from tests.ops.blocks import place_block
from tests.strategies import SMALL_GRAPHS


@pytest.mark.parametrize(
    "implementation", ops.implementations(), ids=lambda each: f"{each.op}-{each.name}"
)
def test_every_available_implementation_passes_its_self_check(implementation: Any) -> None:
    if not implementation.available:
        pytest.skip(implementation.reason)
    assert implementation.check().startswith("ok")


def test_every_public_op_runs_everywhere() -> None:
    attentions = {"gat_attention", "gatv2_attention", "dot_attention"}
    public = {"aggregate", "sddmm", "edge_softmax"} | attentions
    assert public <= set(ops.__all__)
    portable = {each.op for each in ops.implementations() if each.name == "xla" and each.available}
    assert portable == public


def test_chosen_without_arguments_is_the_first_available() -> None:
    first = next(each for each in ops.implementations() if each.op == "sddmm" and each.available)
    assert ops.chosen("sddmm") == first.name


def test_chosen_asks_the_op_and_computes_nothing() -> None:
    block = place_block(SMALL_GRAPHS[-1]).block
    x = jnp.ones((block.sender_rows, 2))
    names = {each.name for each in ops.implementations()}
    assert ops.chosen("aggregate", block, x, reduce="max") in names
    logits = jnp.ones((block.sender_rows, 1))
    options: Any = {"dropout": 0.5, "key": jax.random.key(0)}
    assert ops.chosen("gat_attention", block, x[:, None], logits, logits, **options) in names
    with pytest.raises(ValueError, match="reduce"):
        ops.chosen("aggregate", block, x, reduce="median")


def test_unknown_ops_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'edge_softmax'"):
        ops.chosen("edge-softmax")
