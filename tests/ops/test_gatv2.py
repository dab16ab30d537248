"""gatv2_attention: values and gradients against the oracle, dropout, types, bad input."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.test_util import check_grads

from jaxgraph import Graph
from jaxgraph.ops import gatv2_attention
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import Placed, place_block, shared_shapes, with_one
from tests.oracles import edge_ops
from tests.oracles.randomness import edge_keep_mask
from tests.strategies import SMALL_GRAPHS, complete, graphs
from tests.tolerance import assert_close

HEADS, FEATURES = 2, 3
RANDOM = SMALL_GRAPHS[-1]
KEY = jax.random.key(7)
IMPLEMENTATIONS = [pytest.param("cpu", marks=needs_kernels), "xla"]
NAMES = ("sender", "receiver", "attention")


def draw(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    nodes = (graph.num_nodes, HEADS, FEATURES)
    shapes = [nodes, nodes, (HEADS, FEATURES), nodes]
    return [1.5 * rng.standard_normal(shape) for shape in shapes]


def placed_inputs(placed: Placed, arrays: list[np.ndarray]) -> list[jax.Array]:
    return [placed.rows(arrays[0]), placed.rows(arrays[1]), jnp.asarray(arrays[2])]


@partial(jax.jit, static_argnames=("dropout", "slope", "implementation"))
def value_and_gradients(
    block: Any,
    arrays: Any,
    cotangent: Any,
    *,
    dropout: float = 0.0,
    slope: float = 0.2,
    implementation: str | None = None,
) -> Any:
    options: Any = {"dropout": dropout, "key": KEY, "implementation": implementation}
    op = partial(gatv2_attention, block, negative_slope=slope, **options)
    y, pull = jax.vjp(op, *arrays)
    return y, pull(cotangent)


def check_gradients(
    placed: Placed, grads: Any, expected: tuple[np.ndarray, ...], same: Any
) -> None:
    by_node = [placed.nodes(grads[0]), placed.nodes(grads[1]), np.asarray(grads[2])]
    for name, actual, exact in zip(NAMES, by_node, expected, strict=True):
        same(with_one(actual), with_one(exact), name=f"gradient of {name}")


def check_against_oracle(
    placed: Placed,
    arrays: list[np.ndarray],
    *,
    loops: bool = False,
    rate: float = 0.0,
    implementation: str | None = None,
) -> None:
    edges, (*inputs, grad) = placed.oracle(loops), arrays
    keep = None
    if rate:
        words = tuple(int(word) for word in jax.random.key_data(KEY))
        ends = (edges.receivers, edges.senders, edges.repetitions())
        keep = edge_keep_mask((words[0], words[1]), *ends, HEADS, rate)
    expected, backward = edge_ops.gatv2_attention(edges, *inputs, keep=keep, rate=rate)
    options: Any = {"dropout": rate, "implementation": implementation}
    given = placed_inputs(placed, inputs)
    y, grads = value_and_gradients(placed.block, given, placed.rows(grad), **options)
    same = partial(assert_close, dtype=np.float64, reduction_length=300)
    same(placed.nodes(y), expected, name="y")
    check_gradients(placed, grads, backward(grad), same)


@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("rate", "loops"), [(0.0, False), (0.4, True)])
def test_equals_the_oracle_with_nan_in_all_padding(
    graph: Graph, rate: float, loops: bool, implementation: str
) -> None:
    with jax.enable_x64(True):
        placed = place_block(graph, pad_to=shared_shapes(), self_loops=loops)
        options: Any = {"loops": loops, "rate": rate, "implementation": implementation}
        check_against_oracle(placed, draw(graph), **options)


@pytest.mark.parametrize("name", ["one-node", "no-edges"])
def test_needs_no_common_shapes(name: str) -> None:
    graph = next(graph for graph in SMALL_GRAPHS if graph.name == name)
    with jax.enable_x64(True):
        check_against_oracle(place_block(graph, self_loops=True), draw(graph), loops=True)


@given(graph=graphs())
def test_equals_the_oracle_on_random_graphs(graph: Graph) -> None:
    with jax.enable_x64(True):
        placed = place_block(graph, pad_to=shared_shapes(), self_loops=True)
        check_against_oracle(placed, draw(graph), loops=True, rate=0.4)


def test_gradients_equal_differences() -> None:
    with jax.enable_x64(True):
        placed = place_block(RANDOM, pad_to=shared_shapes(), self_loops=True)
        arrays = tuple(np.nan_to_num(x) for x in placed_inputs(placed, draw(RANDOM)))
        op = partial(gatv2_attention, placed.block, dropout=0.3, key=KEY, negative_slope=0.1)
        check_grads(op, arrays, order=1, modes=["rev"], eps=1e-6, rtol=1e-6)


def test_the_slope_is_used() -> None:
    with jax.enable_x64(True):
        placed = place_block(RANDOM)
        *inputs, grad = draw(RANDOM)
        expected, backward = edge_ops.gatv2_attention(placed.oracle(), *inputs, slope=0.5)
        y, grads = value_and_gradients(
            placed.block, placed_inputs(placed, inputs), placed.rows(grad), slope=0.5
        )
        same = partial(assert_close, dtype=np.float64, reduction_length=20)
        same(placed.nodes(y), expected)
        check_gradients(placed, grads, backward(grad), same)


def test_relabelling_permutes_the_result() -> None:
    order = np.random.default_rng(5).permutation(RANDOM.num_nodes)
    ends = order[RANDOM.senders][::-1], order[RANDOM.receivers][::-1]
    with jax.enable_x64(True):
        before = place_block(RANDOM, self_loops=True)
        after = place_block(complete(*ends, RANDOM.num_nodes, "renamed"), self_loops=True)
        sender, receiver, attention, _ = draw(RANDOM)
        back = np.argsort(order)
        y = gatv2_attention(before.block, *placed_inputs(before, [sender, receiver, attention]))
        moved = [sender[back], receiver[back], attention]
        z = gatv2_attention(after.block, *placed_inputs(after, moved))
        assert_close(after.nodes(z)[order], before.nodes(y), dtype=np.float64, reduction_length=20)


@pytest.mark.parametrize("dtype", [jnp.bfloat16])
def test_sixteen_bits_are_close_to_the_oracle(dtype: Any) -> None:
    placed = place_block(RANDOM, self_loops=True)
    *inputs, grad = (array.astype(dtype) for array in draw(RANDOM))
    exact = [array.astype(np.float64) for array in inputs]
    expected, backward = edge_ops.gatv2_attention(placed.oracle(True), *exact)
    y, grads = value_and_gradients(placed.block, placed_inputs(placed, inputs), placed.rows(grad))
    assert {array.dtype for array in (y, *grads)} == {jnp.dtype(dtype)}
    same = partial(assert_close, dtype=dtype)
    same(placed.nodes(y), expected)
    check_gradients(placed, grads, backward(grad.astype(np.float64)), same)


def test_bad_input_is_refused() -> None:
    placed = place_block(SMALL_GRAPHS[3])
    block = placed.block
    x, a = jnp.ones((block.sender_rows, HEADS, 3)), jnp.ones((HEADS, 3))

    def call(*arrays: Any, **options: Any) -> Any:
        given = [x, x, a]
        given[: len(arrays)] = arrays
        return lambda: gatv2_attention(block, *given, **options)

    bad: Any = [
        ("block is a Placed", lambda: gatv2_attention(placed, x, x, a)),  # type: ignore[arg-type]
        ("sender has shape", call(x[0])),
        ("sender has dtype int32", call(x.astype(jnp.int32))),
        ("receiver has shape", call(x, x[:-1])),
        ("same axes", call(x, x[:, :1])),
        ("attention is", call(x, x, a[0])),
        ("attention is int32", call(x, x, a.astype(jnp.int32))),
        ("negative_slope", call(negative_slope=None)),
        ("dropout is -0.1", call(dropout=-0.1)),
        ("needs a random key", call(dropout=0.5)),
        ("did you mean 'xla'", call(implementation="xlaa")),
    ]
    for words, attempt in bad:
        with pytest.raises(ValueError, match=words):
            attempt()
