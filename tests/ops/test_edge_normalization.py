"""edge_softmax: values and gradients against the oracle, laws, extreme logits, and bad input."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.test_util import check_grads

from jaxgraph import Graph
from jaxgraph.ops import aggregate, edge_softmax
from tests.ops.blocks import Placed, place_block, shared_shapes
from tests.oracles import edge_ops
from tests.strategies import SMALL_GRAPHS, complete, graphs
from tests.tolerance import assert_close

HEADS = 3
RANDOM = SMALL_GRAPHS[-1]


def draw(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    logits, grad = rng.standard_normal((2, graph.num_edges, HEADS))
    return 3 * logits, grad


@jax.jit
def value_and_gradient(block: Any, logits: Any, cotangent: Any) -> Any:
    y, pull = jax.vjp(partial(edge_softmax, block), logits)
    return y, pull(cotangent)[0]


def check_against_oracle(placed: Placed, logits: np.ndarray, grad: np.ndarray) -> None:
    expected, backward = edge_ops.edge_softmax(placed.oracle(), logits)
    alpha, grad_logits = value_and_gradient(placed.block, placed.slots(logits), placed.slots(grad))
    same = partial(assert_close, dtype=np.float64, reduction_length=300)
    same(placed.edges(alpha), expected, name="alpha")
    same(placed.edges(grad_logits), backward(grad)[0], name="gradient of the logits")


@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
def test_equals_the_oracle_with_nan_in_all_padding(graph: Graph) -> None:
    with jax.enable_x64(True):
        check_against_oracle(place_block(graph, pad_to=shared_shapes()), *draw(graph))


@pytest.mark.parametrize("name", ["no-edges", "star-in"])
def test_needs_no_common_shapes(name: str) -> None:
    graph = next(graph for graph in SMALL_GRAPHS if graph.name == name)
    with jax.enable_x64(True):
        check_against_oracle(place_block(graph), *draw(graph))


@given(graph=graphs())
def test_equals_the_oracle_on_random_graphs(graph: Graph) -> None:
    with jax.enable_x64(True):
        check_against_oracle(place_block(graph, pad_to=shared_shapes()), *draw(graph))


@pytest.mark.parametrize("name", ["star-in", "directed-random"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_minus_infinity_takes_an_edge_out(name: str, share: float) -> None:
    """Half of the edges and all of them, of light rows and of a hub."""
    graph = next(graph for graph in SMALL_GRAPHS if graph.name == name)
    logits, grad = draw(graph)
    logits[np.random.default_rng(2).random(logits.shape) < share] = -np.inf
    with jax.enable_x64(True):
        check_against_oracle(place_block(graph, pad_to=shared_shapes()), logits, grad)


@pytest.mark.parametrize("shift", [-1e30, -300.0, 300.0, 1e30])
def test_large_logits_neither_overflow_nor_vanish(shift: float) -> None:
    placed = place_block(RANDOM)
    logits = np.full((RANDOM.num_edges, HEADS), shift, np.float32)
    alpha, grad = value_and_gradient(
        placed.block, placed.slots(logits), placed.slots(np.ones_like(logits))
    )
    degrees = RANDOM.in_degrees()[RANDOM.receivers]
    assert_close(placed.edges(alpha), np.repeat(1 / degrees[:, None], HEADS, 1))
    assert_close(placed.edges(grad), np.zeros(logits.shape))


def test_coefficients_of_a_receiver_sum_to_one() -> None:
    placed = place_block(RANDOM)
    alpha = edge_softmax(placed.block, placed.slots(draw(RANDOM)[0].astype(np.float32)))
    ones = jnp.ones((placed.block.sender_rows, HEADS, 1))
    totals = placed.nodes(aggregate(placed.block, ones, alpha))[..., 0]
    expected = np.repeat((RANDOM.in_degrees() > 0)[:, None], HEADS, 1)
    assert_close(totals, expected, reduction_length=20)


def test_gradients_equal_differences() -> None:
    with jax.enable_x64(True):
        placed = place_block(RANDOM, pad_to=shared_shapes())
        logits = np.nan_to_num(placed.slots(draw(RANDOM)[0]))
        op = partial(edge_softmax, placed.block)
        check_grads(op, (logits,), order=1, modes=["rev"], eps=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sixteen_bits_are_summed_in_thirty_two(dtype: Any) -> None:
    count = 5000
    placed = place_block(complete(np.arange(1, count + 1), np.zeros(count, int), count + 1, "hub"))
    logits = jnp.zeros((placed.block.edge_slots, 1), dtype)
    alpha, grad = value_and_gradient(placed.block, logits, jnp.ones_like(logits))
    assert alpha.dtype == grad.dtype == dtype
    assert_close(
        placed.edges(alpha.astype(jnp.float32)), np.full((count, 1), 1 / count), dtype=dtype
    )
    # The normaliser is right to 32 bits, the rounded coefficients are not: |alpha (1 - sum alpha)|.
    largest = float(np.abs(placed.edges(grad.astype(jnp.float32))).max())
    assert largest <= float(jnp.finfo(dtype).eps) / count


def test_bad_input_is_refused() -> None:
    placed = place_block(SMALL_GRAPHS[3])
    block = placed.block
    logits = jnp.ones((block.edge_slots, 2))
    looped = place_block(SMALL_GRAPHS[3], self_loops=True).block
    bad: Any = [
        ("block is a Placed", lambda: edge_softmax(placed, logits)),  # type: ignore[arg-type]
        ("logits has shape", lambda: edge_softmax(block, logits[:-1])),
        ("logits has shape", lambda: edge_softmax(block, logits[:, 0])),
        ("logits has shape", lambda: edge_softmax(block, logits[..., None])),
        ("logits has dtype int32", lambda: edge_softmax(block, logits.astype(jnp.int32))),
        ("add_self_loops", lambda: edge_softmax(looped, logits)),
        ("did you mean 'xla'", lambda: edge_softmax(block, logits, implementation="xlaa")),
    ]
    for words, call in bad:
        with pytest.raises(ValueError, match=words):
            call()
