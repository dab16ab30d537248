"""16-bit hubs, sums that cancel, extreme logits, and dropped values."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops import (
    aggregate,
    dot_attention,
    edge_softmax,
    gat_attention,
    sddmm,
)
from jaxgraph.ops.core.edges import with_implementation
from pallas_kernels.teams import Launch
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import Placed, place_block, shared_shapes, with_one
from tests.oracles import edge_ops
from tests.oracles.randomness import edge_keep_mask
from tests.oracles.tape import differentiate
from tests.pallas_kernels.graphs import in_interpreter
from tests.strategies import SMALL_GRAPHS, complete
from tests.tolerance import assert_close

RANDOM = SMALL_GRAPHS[-1]
HEADS, FEATURES = 2, 3
KEY = jax.random.key(7)
LEAVES = 5000
implementations = pytest.mark.parametrize(
    "implementation", [pytest.param("cpu", marks=needs_kernels), "xla"]
)
sixteen_bits = pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])


def hub(leaves: int = LEAVES, *, outward: bool = False) -> Placed:
    """A star: the leaves send to node 0, or it sends to them."""
    top, others = np.zeros(leaves, int), np.arange(1, leaves + 1)
    senders, receivers = (top, others) if outward else (others, top)
    return place_block(complete(senders, receivers, leaves + 1, "hub"))


def draw(*shapes: tuple[int, ...], seed: int = 1, size: float = 2.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [size * rng.standard_normal(shape) for shape in shapes]


# ------------------------------------------------------------------ sums in 32 bits


@pytest.mark.expensive
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_hubs_lose_no_neighbour(dtype: Any, reduce: str) -> None:
    """256 + 1 = 256 in bfloat16 and 2048 + 1 = 2048 in float16."""
    for placed, of_gradient in ((hub(), False), (hub(outward=True), True)):
        ones = placed.rows(np.ones((LEAVES + 1, 1))).astype(dtype)
        y, pull = jax.vjp(partial(aggregate, placed.block, reduce=reduce), ones)
        found = pull(ones)[0] if of_gradient else y
        assert found.dtype == dtype
        every = of_gradient or reduce == "sum"
        expected = float(jnp.asarray(LEAVES, dtype)) if every else 1.0
        assert float(placed.nodes(found.astype(jnp.float32))[0, 0]) == expected


@pytest.mark.expensive
@implementations
def test_gradients_of_hubs_that_cancel_are_rounded_once(implementation: str) -> None:
    """Runs of a hub's edges, rounded before their addition, would have an error of about 1."""
    half, rng = 2000, np.random.default_rng(0)
    numbers = np.asarray(jnp.asarray(1 + rng.random(half), jnp.bfloat16), np.float64)
    edges = np.concatenate([numbers, -rng.permutation(numbers), [0.25]])
    placed = hub(len(edges), outward=True)
    x = jnp.ones((placed.block.sender_rows, 1), jnp.bfloat16)
    cotangent = placed.rows(np.concatenate([[0.0], edges])[:, None])
    _, pull = jax.vjp(lambda x: aggregate(placed.block, x, implementation=implementation), x)
    (gradient,) = pull(jnp.nan_to_num(cotangent).astype(jnp.bfloat16))
    found = placed.nodes(gradient.astype(jnp.float32))[0, 0]
    np.testing.assert_allclose(found, 0.25, atol=0.02)


@implementations
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_weights_are_not_rounded_to_the_sixteen_bits_of_x(implementation: str, reduce: str) -> None:
    """1 + 2^-10 is 1 in bfloat16: the difference of two such weights would be 0."""
    placed = hub(2)
    x = jnp.full((placed.block.sender_rows, 1), 1.0, jnp.bfloat16)
    weight = jnp.asarray(placed.slots(np.asarray([1 + 2**-10, -1.0], np.float32)))
    options: Any = {"implementation": implementation}
    y, pull = jax.vjp(lambda w: aggregate(placed.block, x, w, reduce, **options), weight)
    edges = 1 if reduce == "sum" else 2
    assert y.dtype == jnp.bfloat16 and float(placed.nodes(y)[0, 0]) == 2**-10 / edges
    np.testing.assert_array_equal(placed.edges(pull(jnp.full_like(y, 1.0))[0]), 1 / edges)


@pytest.mark.expensive
@sixteen_bits
@pytest.mark.parametrize("op", ["dot", "add"])
def test_values_of_edges_and_their_gradients_are_summed_in_32_bits(op: str, dtype: Any) -> None:
    placed, total = hub(), float(jnp.asarray(LEAVES, dtype))
    if op == "dot":
        wide = jnp.ones((placed.block.sender_rows, LEAVES), dtype)
        assert float(sddmm(placed.block, wide, wide)[0]) == total
    ones = jnp.ones((placed.block.sender_rows, 1), dtype)
    y, pull = jax.vjp(lambda *ends: sddmm(placed.block, *ends, op=op), ones, ones)
    by_sender, by_receiver = pull(jnp.ones_like(y))
    assert y.dtype == by_sender.dtype == by_receiver.dtype == dtype
    assert float(by_receiver[placed.row_of_node[0], 0]) == total
    np.testing.assert_array_equal(placed.edges(y), 1 if op == "dot" else 2)


@pytest.mark.expensive
@sixteen_bits
def test_normalisers_are_summed_in_32_bits(dtype: Any) -> None:
    placed = hub()
    logits = jnp.zeros((placed.block.edge_slots, 1), dtype)
    alpha, pull = jax.vjp(partial(edge_softmax, placed.block), logits)
    (grad,) = pull(jnp.ones_like(logits))
    assert alpha.dtype == grad.dtype == dtype
    found = placed.edges(alpha.astype(jnp.float32))
    assert_close(found, np.full((LEAVES, 1), 1 / LEAVES), dtype=dtype)
    # The normaliser is right to 32 bits, the rounded coefficients are not: |alpha (1 - sum alpha)|.
    largest = float(np.abs(placed.edges(grad.astype(jnp.float32))).max())
    assert largest <= float(jnp.finfo(dtype).eps) / LEAVES


@pytest.mark.expensive
@sixteen_bits
def test_small_gradients_of_a_hubs_attention_do_not_vanish(dtype: Any) -> None:
    """In float16 they would, divided by the sum over the hub's edges."""
    placed, small = hub(), 2.0**-14
    rows = placed.block.sender_rows
    values, logits = jnp.ones((rows, 1, 1), dtype), jnp.zeros((rows, 1), dtype)
    top, first = placed.row_of_node[0], placed.row_of_node[1]
    one_larger = logits.at[first, 0].set(8.0)
    y, pull = jax.vjp(partial(gat_attention, placed.block), values, one_larger, logits)
    assert float(y[top, 0, 0]) == 1.0
    weight = np.exp(8.0) / (np.exp(8.0) + LEAVES - 1)
    gradient = pull(jnp.full(values.shape, small, dtype))[0]
    assert_close(float(gradient[first, 0, 0]), weight * small, dtype=dtype)


# ------------------------------------------------------------------ extreme logits


@pytest.mark.expensive
@implementations
@pytest.mark.parametrize("name", ["star-in", "directed-random"])
def test_minus_infinity_takes_a_sender_out(name: str, implementation: str) -> None:
    """Also where all senders of a receiver are excluded, in light rows and in a hub."""
    graph = next(graph for graph in SMALL_GRAPHS if graph.name == name)
    nodes = graph.num_nodes
    arrays = draw((nodes, HEADS, FEATURES), (nodes, HEADS), (nodes, HEADS))
    arrays[1][::2] = -np.inf
    arrays[1][1:, 0] = -np.inf
    with jax.enable_x64(True):
        placed = place_block(graph, pad_to=shared_shapes())
        given = placed.oracle(True), *arrays
        expected, backward = differentiate(edge_ops.gat_attention, *given)
        options: Any = {"self_loops": True, "implementation": implementation}
        op = partial(gat_attention, placed.block, **options)
        y, pull = jax.vjp(op, *map(placed.rows, arrays))
        same = partial(assert_close, dtype=np.float64, reduction_length=300)
        same(placed.nodes(y), expected)
        gradients = pull(placed.rows(arrays[0]))
        for mine, right in zip(gradients, backward(arrays[0])[1:], strict=True):
            same(with_one(placed.nodes(mine)), with_one(right))


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("name", ["star-in", "directed-random"])
def test_minus_infinity_takes_an_edge_out(name: str, share: float) -> None:
    graph = next(graph for graph in SMALL_GRAPHS if graph.name == name)
    logits, grad = draw(*((graph.num_edges, HEADS),) * 2)
    logits[np.random.default_rng(2).random(logits.shape) < share] = -np.inf
    with jax.enable_x64(True):
        placed = place_block(graph, pad_to=shared_shapes())
        expected, backward = differentiate(edge_ops.edge_softmax, placed.oracle(), logits)
        y, pull = jax.vjp(partial(edge_softmax, placed.block), placed.slots(logits))
        same = partial(assert_close, dtype=np.float64, reduction_length=300)
        same(placed.edges(y), expected)
        same(placed.edges(pull(placed.slots(grad))[0]), backward(grad)[1])


@pytest.mark.expensive
@pytest.mark.parametrize("size", [-1e30, -1e4, 1e2, 1e4, 1e30])
def test_large_logits_lose_no_digits(size: float) -> None:
    """Equal logits weight all edges equally, however large they are."""
    placed = place_block(RANDOM, pad_to=shared_shapes())
    logits = np.full((RANDOM.num_edges, HEADS), size, np.float32)
    alpha, pull = jax.vjp(partial(edge_softmax, placed.block), placed.slots(logits))
    degrees = RANDOM.in_degrees()[RANDOM.receivers]
    assert_close(placed.edges(alpha), np.repeat(1 / degrees[:, None], HEADS, 1))
    assert_close(placed.edges(pull(placed.slots(np.ones_like(logits)))[0]), np.zeros(logits.shape))
    if abs(size) > 1e4:
        return
    values, grad = draw(*((RANDOM.num_nodes, HEADS, FEATURES),) * 2)
    flat = np.zeros((RANDOM.num_nodes, HEADS))
    given = placed.oracle(), values, flat, flat
    expected, backward = differentiate(edge_ops.gat_attention, *given)
    arrays = [placed.rows(x.astype(np.float32)) for x in (values, flat + size, flat + abs(size))]
    y, pull = jax.vjp(partial(gat_attention, placed.block, negative_slope=1.0), *arrays)
    assert_close(placed.nodes(y), expected, reduction_length=20)
    found = pull(placed.rows(grad.astype(np.float32)))[0]
    assert_close(with_one(placed.nodes(found)), with_one(backward(grad)[1]), reduction_length=20)


# ------------------------------------------------------------------ options


@pytest.mark.expensive
@pytest.mark.parametrize("anything", [np.nan, np.inf])
@pytest.mark.parametrize(
    "implementation",
    [
        pytest.param("cpu", marks=needs_kernels),
        "xla",
        pytest.param("mosaic_gpu", marks=pytest.mark.slow),
    ],
)
def test_what_is_dropped_is_not_read(
    implementation: str, anything: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launch, "here", in_interpreter)
    rate = 0.8
    placed = place_block(RANDOM, pad_to=shared_shapes())
    edges, words = placed.oracle(True), jax.random.key_data(KEY)
    ends = (edges.receivers, edges.senders, edges.repetitions())
    keep = edge_keep_mask((int(words[0]), int(words[1])), *ends, HEADS, rate)
    as_sender, as_receiver = (
        reduce(keep.astype(int)) == 0 for reduce in (edges.sum_by_sender, edges.sum_by_receiver)
    )
    assert as_sender.any() and as_receiver.any()
    shape = (RANDOM.num_nodes, HEADS, FEATURES)
    queries, keys, values, cotangent = (x.astype(np.float32) for x in draw(*(shape,) * 4))
    options: Any = {"dropout": rate, "key": KEY, "self_loops": True}
    block = with_implementation(placed.block, implementation)
    op = partial(dot_attention, block, **options)

    @jax.jit
    def run(arrays: Any, cotangent: Any) -> Any:
        y, pull = jax.vjp(op, *arrays)
        return y, *pull(cotangent)

    def found(values: np.ndarray, cotangent: np.ndarray) -> Any:
        rows = [placed.rows(x) for x in (queries, keys, values)]
        return [placed.nodes(leaf) for leaf in run(rows, placed.rows(cotangent))]

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
