"""sddmm: values and gradients against the oracle, laws, types, and bad input."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.test_util import check_grads

from jaxgraph import Graph
from jaxgraph.ops import aggregate, sddmm
from tests.ops.blocks import Placed, place_block, shared_shapes
from tests.oracles import edge_ops
from tests.strategies import SMALL_GRAPHS, complete, graphs
from tests.tolerance import assert_close

HEADS, FEATURES = 2, 3
RANDOM = SMALL_GRAPHS[-1]


def draw(graph: Graph, heads: bool, op: str = "dot") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    shape = (graph.num_nodes, HEADS, FEATURES) if heads else (graph.num_nodes, FEATURES)
    sender, receiver = rng.standard_normal((2, *shape))
    of_edge = shape[1:-1] if op == "dot" else shape[1:]
    return sender, receiver, rng.standard_normal((graph.num_edges, *of_edge))


@partial(jax.jit, static_argnames="op")
def value_and_gradients(
    block: Any, sender: Any, receiver: Any, cotangent: Any, op: str = "dot"
) -> Any:
    y, pull = jax.vjp(partial(sddmm, block, op=op), sender, receiver)
    return y, pull(cotangent)


def check_against_oracle(placed: Placed, heads: bool, op: str = "dot") -> None:
    sender, receiver, grad = draw(placed.graph, heads, op)
    oracle = edge_ops.sddmm if op == "dot" else edge_ops.sum_of_ends
    expected, backward = oracle(placed.oracle(), sender, receiver)
    expected_sender, expected_receiver = backward(grad)
    y, (grad_sender, grad_receiver) = value_and_gradients(
        placed.block, placed.rows(sender), placed.rows(receiver), placed.slots(grad), op
    )
    same = partial(assert_close, dtype=np.float64, reduction_length=300)
    same(placed.edges(y), expected, name="y")
    same(placed.nodes(grad_sender), expected_sender, name="gradient of the senders")
    same(placed.nodes(grad_receiver), expected_receiver, name="gradient of the receivers")


@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("op", ["dot", "add"])
def test_equals_the_oracle_with_nan_in_all_padding(graph: Graph, heads: bool, op: str) -> None:
    with jax.enable_x64(True):
        check_against_oracle(place_block(graph, pad_to=shared_shapes()), heads, op)


@pytest.mark.parametrize("name", ["no-edges", "star-in"])
def test_needs_no_common_shapes(name: str) -> None:
    graph = next(graph for graph in SMALL_GRAPHS if graph.name == name)
    with jax.enable_x64(True):
        check_against_oracle(place_block(graph), heads=True)


@given(graph=graphs())
def test_equals_the_oracle_on_random_graphs(graph: Graph) -> None:
    with jax.enable_x64(True):
        check_against_oracle(place_block(graph, pad_to=shared_shapes()), heads=True)


def test_gradients_equal_differences() -> None:
    with jax.enable_x64(True):
        placed = place_block(RANDOM, pad_to=shared_shapes())
        sender, receiver, _ = draw(RANDOM, heads=True)
        arrays = tuple(np.nan_to_num(placed.rows(x)) for x in (sender, receiver))
        op = partial(sddmm, placed.block)
        check_grads(op, arrays, order=1, modes=["rev"], eps=1e-6, rtol=1e-6)


def test_is_the_gradient_of_a_weighted_sum() -> None:
    """d <sum_j w_ij x_j, g_i> / d w_e = <x_j, g_i>."""
    with jax.enable_x64(True):
        placed = place_block(RANDOM)
        x, grad, weight = draw(RANDOM, heads=True)
        _, pull = jax.vjp(
            lambda w: aggregate(placed.block, placed.rows(x), w), placed.slots(weight)
        )
        by_gradient = pull(jnp.asarray(placed.rows(grad)))[0]
        direct = sddmm(placed.block, placed.rows(x), placed.rows(grad))
        assert_close(placed.edges(by_gradient), placed.edges(direct), dtype=np.float64)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sixteen_bits_are_summed_in_thirty_two(dtype: Any) -> None:
    """Both sums over features and sums over the edges of a hub."""
    count = 5000
    placed = place_block(complete(np.arange(1, count + 1), np.zeros(count, int), count + 1, "hub"))
    rows, slots = placed.block.sender_rows, placed.block.edge_slots
    wide = jnp.ones((rows, count), dtype)
    assert float(sddmm(placed.block, wide, wide)[0]) == float(jnp.asarray(count, dtype))
    y, (_, grad) = value_and_gradients(
        placed.block, wide[:, :1], wide[:, :1], jnp.ones(slots, dtype)
    )
    assert y.dtype == grad.dtype == dtype
    assert float(grad[placed.row_of_node[0], 0]) == float(jnp.asarray(count, dtype))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gradients_of_sums_are_summed_in_thirty_two(dtype: Any) -> None:
    count = 5000
    placed = place_block(complete(np.arange(1, count + 1), np.zeros(count, int), count + 1, "hub"))
    ones = jnp.ones((placed.block.sender_rows, 1), dtype)
    cotangent = jnp.ones((placed.block.edge_slots, 1), dtype)
    y, (by_sender, by_receiver) = value_and_gradients(placed.block, ones, ones, cotangent, "add")
    assert y.dtype == by_sender.dtype == by_receiver.dtype == dtype
    assert float(by_receiver[placed.row_of_node[0], 0]) == float(jnp.asarray(count, dtype))
    np.testing.assert_array_equal(placed.edges(y), 2)


def test_types_of_both_ends_may_differ() -> None:
    placed = place_block(RANDOM)
    sender = jnp.ones((placed.block.sender_rows, 2), jnp.bfloat16)
    receiver = jnp.ones((placed.block.receiver_rows, 2), jnp.float32)
    y, grads = value_and_gradients(
        placed.block, sender, receiver, jnp.ones(placed.block.edge_slots)
    )
    assert (y.dtype, grads[0].dtype, grads[1].dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)


def test_bad_input_is_refused() -> None:
    placed = place_block(SMALL_GRAPHS[3])
    block = placed.block
    x = jnp.ones((block.sender_rows, 3))
    looped = place_block(SMALL_GRAPHS[3], self_loops=True).block
    bad: Any = [
        ("block is a Placed", lambda: sddmm(placed, x, x)),  # type: ignore[arg-type]
        ("sender has shape", lambda: sddmm(block, x[:-1], x)),
        ("sender has shape", lambda: sddmm(block, x[:, 0], x)),
        ("receiver has shape", lambda: sddmm(block, x, x[:, None])),
        ("receiver has dtype int32", lambda: sddmm(block, x, x.astype(jnp.int32))),
        ("same axes", lambda: sddmm(block, x, x[:, :1])),
        ("add_self_loops", lambda: sddmm(looped, x, x)),
        ("did you mean 'xla'", lambda: sddmm(block, x, x, implementation="xlaa")),
        ("did you mean 'add'", lambda: sddmm(block, x, x, "ad")),
    ]
    for words, call in bad:
        with pytest.raises(ValueError, match=words):
            call()
