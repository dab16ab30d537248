"""Dispatch of ops: the chosen implementation, refusals, the log and the list of them all."""

import logging
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph import ops
from jaxgraph.ops import aggregate, dispatch
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.core.implementations import PREFERENCE, unusable
from jaxgraph.ops.cpu.attention_passes import MOST_HEADS
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import place_block
from tests.ops.cases import CASES, Case, placed_arrays
from tests.strategies import SMALL_GRAPHS

GRAPH = SMALL_GRAPHS[3]
PLACED = place_block(GRAPH)
BLOCK = PLACED.block


def rows(dtype: Any = jnp.float32) -> jax.Array:
    return jnp.ones((BLOCK.sender_rows, 3), dtype)


def weights(dtype: Any) -> jax.Array:
    return jnp.ones(BLOCK.edge_slots, dtype)


@pytest.mark.parametrize("name", [each for each in PREFERENCE if unusable(each, "cpu")])
def test_what_cannot_run_here_is_never_replaced(name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"{name}.*cannot run.*implementation=None"):
        aggregate(BLOCK, rows(), implementation=name)


@needs_kernels
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_weights_that_no_kernel_takes_are_left_to_xla_or_refused(reduce: str) -> None:
    """Also for the mean, half of which is a count with a kernel."""
    native = with_implementation(BLOCK, "cpu")
    for x, weight in ((jnp.float32, jnp.float16), (jnp.bfloat16, jnp.float16)):
        with pytest.raises(NotImplementedError, match=r"no kernel of 'cpu'.* float16"):
            aggregate(BLOCK, rows(x), weights(weight), reduce, implementation="cpu")
        assert aggregate(native, rows(x), weights(weight), reduce).dtype == x


@needs_kernels
def test_weights_that_would_lose_digits_are_left_to_xla() -> None:
    with jax.enable_x64(True):
        x, weight = rows(jnp.float32), weights(jnp.float64)
        with pytest.raises(NotImplementedError, match="float32, float64"):
            aggregate(BLOCK, x, weight, implementation="cpu")
        assert aggregate(BLOCK, rows(jnp.float64), weights(jnp.float32)).dtype == jnp.float64


@needs_kernels
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_op_obeys_what_the_graph_was_placed_for_and_what_it_is_told(case: Case) -> None:
    *arrays, _ = placed_arrays(case, PLACED, np.float32)
    by_cpu = "cpu" in case.kernels

    def calls_kernels(placed: str, **options: Any) -> bool:
        block = with_implementation(BLOCK, placed)
        call = partial(case.op, **case.options, **options)
        return "jaxgraph_" in jax.jit(call).lower(block, *arrays).as_text()

    assert not calls_kernels("xla") and not calls_kernels("cpu", implementation="xla")
    assert calls_kernels("cpu") == by_cpu
    if by_cpu:
        assert calls_kernels("xla", implementation="cpu")
    native = with_implementation(BLOCK, "cpu")
    chosen = ops.chosen(case.op.__name__, native, *arrays, **case.options)
    assert chosen == ("cpu" if by_cpu else "xla")


@needs_kernels
@pytest.mark.parametrize("heads", [MOST_HEADS, MOST_HEADS + 1])
def test_more_heads_than_the_kernels_take_are_left_to_xla(heads: int) -> None:
    native, ones = with_implementation(BLOCK, "cpu"), jnp.ones((BLOCK.sender_rows, heads))
    found = ops.chosen("gat_attention", native, ones[..., None], ones, ones)
    assert found == ("cpu" if heads == MOST_HEADS else "xla")


@needs_kernels
def test_the_choice_is_logged_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    dispatch._log_once.cache_clear()
    native = with_implementation(BLOCK, "cpu")
    with caplog.at_level(logging.INFO, logger="jaxgraph"):
        for _ in range(3):
            aggregate(native, rows())
            aggregate(native, rows(jnp.float16))
    found = [record.getMessage() for record in caplog.records]
    refusal = "no kernel of 'cpu' reduces these messages of float16"
    assert found == ["aggregate: cpu", f"aggregate: xla ({refusal})"]


@pytest.mark.parametrize("each", ops.implementations(), ids=lambda each: f"{each.op}-{each.name}")
def test_what_is_listed_passes_its_self_check(each: Any) -> None:
    assert each.available == (not each.reason)
    if each.available:
        assert each.check().startswith("ok")
    else:
        with pytest.raises(NotImplementedError, match="cannot run"):
            each.check()


def test_chosen_without_arguments_is_the_first_available() -> None:
    first = next(each for each in ops.implementations() if each.op == "sddmm" and each.available)
    assert ops.chosen("sddmm") == first.name
    assert ops.chosen("edge_softmax") == "xla"


def test_chosen_refuses_what_the_op_does() -> None:
    with pytest.raises(ValueError, match="reduce"):
        ops.chosen("aggregate", BLOCK, rows(), reduce="median")
    with pytest.raises(ValueError, match="did you mean 'edge_softmax'"):
        ops.chosen("edge-softmax")
