"""Both implementations of an op from one function: which one runs, and what is refused."""

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
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Sum
from jaxgraph.ops.cpu.library import missing
from jaxgraph.ops.implementations import (
    implementations_of,
    propagate_or_refuse,
    with_implementation,
)
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import place_block
from tests.strategies import SMALL_GRAPHS

BLOCK = place_block(SMALL_GRAPHS[3]).block


def doubled(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
    return 2 * sender


def ones(dtype: Any) -> jax.Array:
    return jnp.ones((BLOCK.sender_rows, 3), dtype)


def weights(dtype: Any) -> jax.Array:
    return jnp.ones(BLOCK.edge_slots, dtype)


def test_one_function_is_told_by_the_block_which_implementation_runs() -> None:
    def compute(block: Block, factor: float) -> Any:
        return block.edges.implementation, factor

    made = implementations_of("op", compute, lambda function: f"ok {function(BLOCK, 3)}")
    assert [(each.op, each.name, each.platforms) for each in made] == [
        ("op", "mosaic_gpu", ("gpu",)),
        ("op", "cpu", ("cpu",)),
        ("op", "xla", ()),
    ]
    found = [each.function(BLOCK, 2) for each in made]
    assert found == [("mosaic_gpu", 2), ("cpu", 2), ("xla", 2)]
    assert made[1].check() == "ok ('cpu', 3)"
    assert made[1].available == (missing() == "")
    assert made[2].available and not made[0].available


def test_messages_without_a_kernel_are_refused_only_where_kernels_are_asked_for() -> None:
    inputs = Inputs((), ones(jnp.float32), (), ())
    portable = with_implementation(BLOCK, "xla")
    assert propagate_or_refuse(portable, doubled, Sum(), inputs).max() == 2.0
    with pytest.raises(NotImplementedError, match=r"no kernel of 'cpu' reduces .* float32"):
        propagate_or_refuse(with_implementation(BLOCK, "cpu"), doubled, Sum(), inputs)


@needs_kernels
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_sums_refuse_weights_that_no_kernel_takes(reduce: str) -> None:
    """Also the mean, half of which is a count that has a kernel."""
    for x, weight in ((jnp.float32, jnp.float16), (jnp.bfloat16, jnp.float16)):
        with pytest.raises(NotImplementedError, match=r"no kernel of 'cpu'.* float16"):
            aggregate(BLOCK, ones(x), weights(weight), reduce, implementation="cpu")
        assert aggregate(BLOCK, ones(x), weights(weight), reduce).dtype == x


@needs_kernels
def test_weights_that_would_lose_digits_are_left_to_xla() -> None:
    with jax.enable_x64(True):
        x, weight = ones(jnp.float32), weights(jnp.float64)
        with pytest.raises(NotImplementedError, match="float32, float64"):
            aggregate(BLOCK, x, weight, implementation="cpu")
        assert aggregate(BLOCK, ones(jnp.float64), weights(jnp.float32)).dtype == jnp.float64


@needs_kernels
def test_products_of_a_type_that_no_kernel_takes_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="takes float16 and float16"):
        sddmm(BLOCK, ones(jnp.float16), ones(jnp.float16), implementation="cpu")
    mixed = sddmm(BLOCK, ones(jnp.float16), ones(jnp.float32), implementation="cpu")
    assert mixed.dtype == jnp.float32 and mixed.max() == 3.0


@needs_kernels
@pytest.mark.parametrize("op", ["aggregate", "sddmm", "edge_softmax", "gat", "gatv2", "dot"])
def test_an_op_obeys_what_the_graph_was_placed_for(op: str) -> None:
    rows, slots = jnp.ones((BLOCK.sender_rows, 2, 3)), jnp.ones((BLOCK.edge_slots, 2))
    calls = {
        "aggregate": lambda block: aggregate(block, rows),
        "sddmm": lambda block: sddmm(block, rows, rows),
        "edge_softmax": lambda block: edge_softmax(block, slots),
        "gat": lambda block: gat_attention(block, rows, rows[..., 0], rows[..., 0]),
        "gatv2": lambda block: gatv2_attention(block, rows, rows, rows[0]),
        "dot": lambda block: dot_attention(block, rows, rows, rows),
    }

    def calls_kernels(implementation: str) -> bool:
        block = with_implementation(BLOCK, implementation)
        text = jax.jit(calls[op]).lower(block).as_text()
        return "jaxgraph_" in text

    assert not calls_kernels("xla")
    assert calls_kernels("cpu") == (op != "edge_softmax")
