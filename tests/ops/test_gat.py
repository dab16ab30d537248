"""gat_attention: values and gradients against the oracle, dropout, extreme logits, bad input."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.test_util import check_grads

from jaxgraph import Graph
from jaxgraph.ops import gat_attention
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
NAMES = ("values", "sender_logits", "receiver_logits")


def draw(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = [(HEADS, FEATURES), (HEADS,), (HEADS,), (HEADS, FEATURES)]
    return [2 * rng.standard_normal((graph.num_nodes, *shape)) for shape in shapes]


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
    op = partial(gat_attention, block, negative_slope=slope, **options)
    y, pull = jax.vjp(op, *arrays)
    return y, pull(cotangent)


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
    expected, backward = edge_ops.gat_attention(edges, *inputs, keep=keep, rate=rate)
    options: Any = {"dropout": rate, "implementation": implementation}
    given = [placed.rows(x) for x in inputs]
    y, grads = value_and_gradients(placed.block, given, placed.rows(grad), **options)
    same = partial(assert_close, dtype=np.float64, reduction_length=300)
    same(placed.nodes(y), expected, name="y")
    for name, actual, exact in zip(NAMES, grads, backward(grad), strict=True):
        same(with_one(placed.nodes(actual)), with_one(exact), name=f"gradient of {name}")


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


@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
def test_minus_infinity_takes_a_sender_out(graph: Graph) -> None:
    """Also where all senders of a receiver are out, in light rows and in a hub."""
    arrays = draw(graph)
    arrays[1][::2] = -np.inf
    arrays[1][1:, 0] = -np.inf
    with jax.enable_x64(True):
        placed = place_block(graph, pad_to=shared_shapes(), self_loops=True)
        check_against_oracle(placed, arrays, loops=True)


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_large_logits_lose_no_digits(size: float) -> None:
    """Equal logits weight all senders equally, however large they are."""
    graph = SMALL_GRAPHS[-1]
    placed = place_block(graph, pad_to=shared_shapes())
    values, _, _, grad = (array.astype(np.float32) for array in draw(graph))
    flat = np.full((graph.num_nodes, HEADS), size, np.float32)
    inputs = [values.astype(np.float64), *(np.zeros(flat.shape),) * 2]
    expected, backward = edge_ops.gat_attention(placed.oracle(), *inputs)
    arrays = [placed.rows(x) for x in (values, flat, flat)]
    y, grads = value_and_gradients(placed.block, arrays, placed.rows(grad))
    assert_close(placed.nodes(y), expected, reduction_length=20)
    exact = backward(grad.astype(np.float64))
    for actual, wanted in zip(grads, exact, strict=True):
        assert_close(with_one(placed.nodes(actual)), with_one(wanted), reduction_length=20)


def test_gradients_equal_differences() -> None:
    with jax.enable_x64(True):
        placed = place_block(RANDOM, pad_to=shared_shapes(), self_loops=True)
        arrays = tuple(np.nan_to_num(placed.rows(x)) for x in draw(RANDOM)[:3])
        op = partial(gat_attention, placed.block, dropout=0.3, key=KEY, negative_slope=0.1)
        check_grads(op, arrays, order=1, modes=["rev"], eps=1e-6, rtol=1e-6)


def test_the_slope_is_used() -> None:
    with jax.enable_x64(True):
        placed = place_block(RANDOM)
        *inputs, grad = draw(RANDOM)
        expected, _ = edge_ops.gat_attention(placed.oracle(), *inputs, slope=0.5)
        arrays = [placed.rows(x) for x in inputs]
        y, _ = value_and_gradients(placed.block, arrays, placed.rows(grad), slope=0.5)
        assert_close(placed.nodes(y), expected, dtype=np.float64, reduction_length=20)


def test_relabelling_permutes_the_result() -> None:
    order = np.random.default_rng(5).permutation(RANDOM.num_nodes)
    ends = order[RANDOM.senders][::-1], order[RANDOM.receivers][::-1]
    with jax.enable_x64(True):
        before = place_block(RANDOM, self_loops=True)
        after = place_block(complete(*ends, RANDOM.num_nodes, "renamed"), self_loops=True)
        arrays = draw(RANDOM)[:3]
        y = before.nodes(gat_attention(before.block, *map(before.rows, arrays)))
        moved = [array[np.argsort(order)] for array in arrays]
        z = after.nodes(gat_attention(after.block, *map(after.rows, moved)))
    assert_close(z[order], y, dtype=np.float64, reduction_length=20)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sixteen_bits_are_close_to_the_oracle(dtype: Any) -> None:
    placed = place_block(RANDOM, self_loops=True)
    *inputs, grad = (array.astype(dtype) for array in draw(RANDOM))
    exact = [array.astype(np.float64) for array in inputs]
    expected, backward = edge_ops.gat_attention(placed.oracle(True), *exact)
    arrays = [placed.rows(x) for x in inputs]
    y, grads = value_and_gradients(placed.block, arrays, placed.rows(grad))
    assert_close(placed.nodes(y), expected, dtype=dtype)
    for actual, wanted in zip(grads, backward(grad.astype(np.float64)), strict=True):
        assert actual.dtype == dtype
        assert_close(placed.nodes(actual), wanted, dtype=dtype)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_hub_of_sixteen_bits_loses_no_neighbour(dtype: Any) -> None:
    """A small gradient vanishes in float16 when it is divided by the sum over the hub's edges."""
    count, small = 5000, 2.0**-14
    placed = place_block(complete(np.arange(1, count + 1), np.zeros(count, int), count + 1, "hub"))
    rows = placed.block.sender_rows
    values, logits = jnp.ones((rows, 1, 1), dtype), jnp.zeros((rows, 1), dtype)
    hub, first = placed.row_of_node[0], placed.row_of_node[1]
    one_larger = logits.at[first, 0].set(8.0)
    cotangent = jnp.full(values.shape, small, dtype)
    y, grads = value_and_gradients(placed.block, [values, one_larger, logits], cotangent)
    assert float(y[hub, 0, 0]) == 1.0
    weight = np.exp(8.0) / (np.exp(8.0) + count - 1)
    assert_close(float(grads[0][first, 0, 0]), weight * small, dtype=dtype)


def test_bad_input_is_refused() -> None:
    placed = place_block(SMALL_GRAPHS[3])
    block = placed.block
    values, logits = jnp.ones((block.sender_rows, HEADS, 3)), jnp.ones((block.sender_rows, HEADS))

    def call(*arrays: Any, **options: Any) -> Any:
        given = [values, logits, logits]
        given[: len(arrays)] = arrays
        return lambda: gat_attention(block, *given, **options)

    bad: Any = [
        ("block is a Placed", lambda: gat_attention(placed, values, logits, logits)),  # type: ignore[arg-type]
        ("values has shape", call(values[0])),
        ("values has dtype int32", call(values.astype(jnp.int32))),
        ("sender_logits has shape", call(values, logits[:-1])),
        ("receiver_logits has shape", call(values, logits, logits[0])),
        ("number of heads", call(values, logits[:, :1])),
        ("negative_slope", call(negative_slope="0.2")),
        ("dropout is 1", call(dropout=1.0)),
        ("dropout is None", call(dropout=None)),
        ("needs a random key", call(dropout=0.5)),
        ("typed key", call(dropout=0.5, key=jnp.zeros(2, jnp.uint32))),
        ("did you mean 'xla'", call(implementation="xlaa")),
    ]
    for words, attempt in bad:
        with pytest.raises(ValueError, match=words):
            attempt()
