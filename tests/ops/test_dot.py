"""dot_attention: values and gradients against the oracle on every implementation, bad input."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxgraph import Graph
from jaxgraph.ops import dot_attention
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import Placed, place_block, shared_shapes, with_one
from tests.oracles import edge_ops
from tests.oracles.randomness import edge_keep_mask
from tests.strategies import SMALL_GRAPHS, graphs
from tests.tolerance import assert_close

HEADS, FEATURES = 2, 3
KEY = jax.random.key(7)
NAMES = ("queries", "keys", "values")
IMPLEMENTATIONS = [
    pytest.param("cpu", marks=needs_kernels),
    "xla",
]


def draw(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [1.5 * rng.standard_normal((graph.num_nodes, HEADS, FEATURES)) for _ in range(4)]


@partial(jax.jit, static_argnames=("options",))
def value_and_gradients(block: Any, arrays: Any, cotangent: Any, options: tuple[Any, ...]) -> Any:
    rate, implementation = options
    op = partial(dot_attention, block, dropout=rate, key=KEY, implementation=implementation)
    y, pull = jax.vjp(op, *arrays)
    return y, pull(cotangent)


def check_against_oracle(
    placed: Placed, arrays: list[np.ndarray], implementation: str | None, rate: float
) -> None:
    edges, (*inputs, grad) = placed.oracle(True), arrays
    keep = None
    if rate:
        words = tuple(int(word) for word in jax.random.key_data(KEY))
        ends = (edges.receivers, edges.senders, edges.repetitions())
        keep = edge_keep_mask((words[0], words[1]), *ends, HEADS, rate)
    options: Any = {"scale": FEATURES**-0.5, "keep": keep, "rate": rate}
    expected, backward = edge_ops.dot_attention(edges, *inputs, **options)
    rows = [placed.rows(x) for x in inputs]
    y, grads = value_and_gradients(placed.block, rows, placed.rows(grad), (rate, implementation))
    same = partial(assert_close, dtype=np.float64, reduction_length=300)
    same(placed.nodes(y), expected, name="y")
    for name, actual, exact in zip(NAMES, grads, backward(grad), strict=True):
        same(with_one(placed.nodes(actual)), with_one(exact), name=f"gradient of {name}")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
def test_equals_the_oracle_with_nan_in_all_padding(graph: Graph, implementation: str) -> None:
    with jax.enable_x64(True):
        placed = place_block(graph, pad_to=shared_shapes(), self_loops=True)
        for rate in (0.0, 0.4):
            check_against_oracle(placed, draw(graph), implementation, rate)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("anything", [np.nan, np.inf])
def test_what_is_dropped_is_not_read(implementation: str, anything: float) -> None:
    graph, rate = SMALL_GRAPHS[-1], 0.8
    placed = place_block(graph, pad_to=shared_shapes(), self_loops=True)
    edges, words = placed.oracle(True), jax.random.key_data(KEY)
    ends = (edges.receivers, edges.senders, edges.repetitions())
    keep = edge_keep_mask((int(words[0]), int(words[1])), *ends, HEADS, rate)
    as_sender, as_receiver = (
        reduce(keep.astype(int)) == 0 for reduce in (edges.sum_by_sender, edges.sum_by_receiver)
    )
    assert as_sender.any()
    assert as_receiver.any()
    queries, keys, values, cotangent = (array.astype(np.float32) for array in draw(graph))

    def found(values: np.ndarray, cotangent: np.ndarray) -> Any:
        rows = [placed.rows(x) for x in (queries, keys, values)]
        y, grads = value_and_gradients(
            placed.block, rows, placed.rows(cotangent), (rate, implementation)
        )
        return [placed.nodes(leaf) for leaf in (y, *grads)]

    def with_dropped(array: np.ndarray, dropped: np.ndarray, value: float) -> np.ndarray:
        return np.where(dropped[..., None], np.float32(value), array)

    clean, dirty = (
        found(with_dropped(values, as_sender, value), cotangent) for value in (0, anything)
    )
    # XLA adds up the products of heads in another order where one of them is not finite.
    tolerance = 1e-5 if implementation == "xla" else 0.0
    for expected, actual in zip(clean, dirty, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=tolerance)
    clean, dirty = (
        found(values, with_dropped(cotangent, as_receiver, value)) for value in (0, anything)
    )
    np.testing.assert_array_equal(dirty[-1], clean[-1])


@given(graph=graphs())
def test_equals_the_oracle_on_random_graphs(graph: Graph) -> None:
    with jax.enable_x64(True):
        placed = place_block(graph, pad_to=shared_shapes(), self_loops=True)
        check_against_oracle(placed, draw(graph), None, 0.4)


def test_the_scale_is_that_of_the_features_unless_given() -> None:
    placed = place_block(SMALL_GRAPHS[-1])
    arrays = [placed.rows(x.astype(np.float32)) for x in draw(placed.graph)[:3]]
    given, default = (
        dot_attention(placed.block, *arrays, scale=scale) for scale in (FEATURES**-0.5, None)
    )
    np.testing.assert_array_equal(given, default)
    other = dot_attention(placed.block, *arrays, scale=2.0)
    assert not np.allclose(other, default)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": np.ones((3, HEADS, FEATURES), np.float32)}, "queries has shape"),
        ({"keys": np.ones(4, np.int32)}, "keys has dtype int32"),
        ({"values": None}, "values is a NoneType"),
        ({"scale": "half"}, "scale is 'half'"),
        ({"dropout": 1.0}, r"expected a number in \[0, 1\)"),
        ({"dropout": 0.5}, "needs a random key"),
        ({"implementation": "cuda"}, "expected one of"),
    ],
)
def test_bad_input(changes: dict[str, Any], message: str) -> None:
    block = place_block(SMALL_GRAPHS[-1]).block
    x = jnp.ones((block.sender_rows, HEADS, FEATURES))
    arguments: Any = {"queries": x, "keys": x, "values": x} | changes
    with pytest.raises(ValueError, match=message):
        dot_attention(block, **arguments)


def test_all_three_have_the_same_features() -> None:
    block = place_block(SMALL_GRAPHS[-1]).block
    x = jnp.ones((block.sender_rows, HEADS, FEATURES))
    with pytest.raises(ValueError, match="expected the same axes"):
        dot_attention(block, x, x, x[..., :2])
