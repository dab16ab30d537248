"""aggregate: values and gradients against the oracle, laws, types, and bad input."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.test_util import check_grads

from jaxgraph import Graph
from jaxgraph.ops import aggregate
from jaxgraph.ops.cpu.library import missing
from tests.ops.blocks import Placed, place_block, shared_shapes
from tests.oracles import edge_ops
from tests.strategies import SMALL_GRAPHS, complete, graphs
from tests.tolerance import assert_close

REDUCTIONS = ("sum", "mean", "max", "min")
WEIGHTS = ("none", "per-edge", "per-head")
HEADS, FEATURES = 2, 3
RANDOM = SMALL_GRAPHS[-1]


def draw_x(graph: Graph, ties: bool = False) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((graph.num_nodes, HEADS, FEATURES))
    return np.round(x) if ties else x


def draw_weight(graph: Graph, kind: str) -> np.ndarray:
    shape = (graph.num_edges, HEADS) if kind == "per-head" else (graph.num_edges,)
    return np.random.default_rng(2).uniform(0.5, 2.0, shape)


@partial(jax.jit, static_argnames="reduce")
def value_and_gradients(block: Any, x: Any, weight: Any, cotangent: Any, reduce: str) -> Any:
    y, pull = jax.vjp(lambda *arrays: aggregate(block, *arrays, reduce=reduce), x, weight)
    return y, pull(cotangent)


def check_against_oracle(placed: Placed, kind: str, reduce: str, ties: bool) -> None:
    graph, oracle = placed.graph, placed.oracle()
    x = draw_x(graph, ties)
    weight = np.ones(graph.num_edges) if kind == "none" else draw_weight(graph, kind)
    if ties:
        weight = np.round(weight)
    grad = np.random.default_rng(3).standard_normal(x.shape)
    expected, backward = edge_ops.aggregate(oracle, x, weight, reduce)
    expected_x, expected_weight = backward(grad)
    given_weight = None if kind == "none" else placed.slots(weight)
    y, (grad_x, grad_weight) = value_and_gradients(
        placed.block, placed.rows(x), given_weight, placed.rows(grad), reduce
    )
    same = partial(assert_close, dtype=np.float64, reduction_length=300)
    same(placed.nodes(y), expected, name="y")
    same(placed.nodes(grad_x), expected_x, name="gradient of x")
    if kind != "none":
        same(placed.edges(grad_weight), expected_weight, name="gradient of the weight")


@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_equals_the_oracle_with_nan_in_all_padding(graph: Graph, kind: str, reduce: str) -> None:
    with jax.enable_x64(True):
        placed = place_block(graph, pad_to=shared_shapes())
        check_against_oracle(placed, kind, reduce, ties=False)


@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_equal_winners_share_the_gradient(graph: Graph, reduce: str) -> None:
    with jax.enable_x64(True):
        placed = place_block(graph, pad_to=shared_shapes())
        check_against_oracle(placed, "per-edge", reduce, ties=True)


@pytest.mark.parametrize("name", ["no-edges", "star-in"])
@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_needs_no_common_shapes(name: str, reduce: str) -> None:
    graph = next(graph for graph in SMALL_GRAPHS if graph.name == name)
    with jax.enable_x64(True):
        check_against_oracle(place_block(graph), "per-edge", reduce, ties=False)


@given(graph=graphs())
def test_equals_the_oracle_on_random_graphs(graph: Graph) -> None:
    with jax.enable_x64(True):
        placed = place_block(graph, pad_to=shared_shapes())
        for reduce in ("sum", "max"):
            check_against_oracle(placed, "per-edge", reduce, ties=False)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("loops", [False, True])
def test_added_self_loops(reduce: str, loops: bool) -> None:
    """Some nodes have a loop, one has two, the rest get one; rows of padding hold NaN."""
    graph = complete([0, 1, 1, 2, 3, 3, 3], [0, 1, 2, 2, 3, 0, 3], 7, "some-loops")
    with jax.enable_x64(True):
        placed = place_block(graph, self_loops=loops)
        oracle, x = placed.oracle(loops), draw_x(graph)
        grad = np.random.default_rng(3).standard_normal(x.shape)
        expected, backward = edge_ops.aggregate(oracle, x, oracle.weight, reduce)
        y, (grad_x, _) = value_and_gradients(
            placed.block, placed.rows(x), None, placed.rows(grad), reduce
        )
        same = partial(assert_close, dtype=np.float64)
        same(placed.nodes(y), expected)
        same(placed.nodes(grad_x), backward(grad)[0])


# ------------------------------------------------------------------ laws


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gradient_is_the_adjoint(reduce: str) -> None:
    """<A x, y> = <x, A^T y>."""
    placed = place_block(RANDOM)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, placed.block.receiver_rows, 4)).astype(np.float32)
    weight = rng.standard_normal(placed.block.edge_slots).astype(np.float32)
    forward, (transposed, _) = value_and_gradients(placed.block, x, weight, y, reduce)
    assert_close(np.vdot(forward, y), np.vdot(x, transposed), reduction_length=211)


@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_gradients_equal_differences(reduce: str) -> None:
    with jax.enable_x64(True):
        placed = place_block(RANDOM, pad_to=shared_shapes())
        arrays = (
            np.nan_to_num(placed.rows(draw_x(RANDOM))),
            np.nan_to_num(placed.slots(draw_weight(RANDOM, "per-head"))),
        )
        op = partial(aggregate, placed.block, reduce=reduce)
        check_grads(op, arrays, order=1, modes=["rev"], eps=1e-6, rtol=1e-6)


@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_relabelling_permutes_the_result(reduce: str) -> None:
    order = np.random.default_rng(5).permutation(RANDOM.num_nodes)
    shuffled = np.random.default_rng(6).permutation(RANDOM.num_edges)
    renamed = complete(
        order[RANDOM.senders][shuffled], order[RANDOM.receivers][shuffled], len(order), "renamed"
    )
    x, weight = draw_x(RANDOM), draw_weight(RANDOM, "per-edge")
    with jax.enable_x64(True):
        before, after = place_block(RANDOM), place_block(renamed)
        y = before.nodes(aggregate(before.block, before.rows(x), before.slots(weight), reduce))
        moved = np.empty_like(x)
        moved[order] = x
        weights = after.slots(weight[shuffled])
        z = after.nodes(aggregate(after.block, after.rows(moved), weights, reduce))
    assert_close(z[order], y, dtype=np.float64, reduction_length=20)


# ------------------------------------------------------------------ types


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_sixteen_bits_are_summed_in_thirty_two(dtype: Any, reduce: str) -> None:
    """256 + 1 = 256 in bfloat16 and 2048 + 1 = 2048 in float16: hubs would lose neighbours."""
    leaves = 5000
    graph = complete(np.arange(1, leaves + 1), np.zeros(leaves, int), leaves + 1, "hub")
    placed = place_block(graph)
    ones = jnp.asarray(placed.rows(np.ones((leaves + 1, 1)))).astype(dtype)
    y, (grad, _) = value_and_gradients(placed.block, ones, None, ones, reduce)
    assert y.dtype == grad.dtype == dtype
    total = float(placed.nodes(y.astype(jnp.float32))[0, 0])
    assert total == (float(jnp.asarray(5000, dtype)) if reduce == "sum" else 1.0)

    outward = place_block(
        complete(np.zeros(leaves, int), np.arange(1, leaves + 1), leaves + 1, "x")
    )
    ones = jnp.asarray(outward.rows(np.ones((leaves + 1, 1)))).astype(dtype)
    _, (grad, _) = value_and_gradients(outward.block, ones, None, ones, reduce)
    assert float(outward.nodes(grad.astype(jnp.float32))[0, 0]) == float(jnp.asarray(5000, dtype))


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
def test_gradients_of_hubs_that_cancel_are_rounded_once(implementation: str) -> None:
    """Runs of a hub's edges, rounded before they are added up, would leave an error of about 1."""
    if implementation == "cpu" and missing():
        pytest.skip(missing())
    half = 2000
    rng = np.random.default_rng(0)
    numbers = np.asarray(jnp.asarray(1 + rng.random(half), jnp.bfloat16), np.float64)
    edges = np.concatenate([numbers, -rng.permutation(numbers), [0.25]])
    leaves = len(edges)
    graph = complete(np.zeros(leaves, int), np.arange(1, leaves + 1), leaves + 1, "hub")
    placed = place_block(graph)
    x = jnp.ones((placed.block.sender_rows, 1), jnp.bfloat16)
    cotangent = placed.rows(np.concatenate([[0.0], edges])[:, None])
    _, pull = jax.vjp(lambda x: aggregate(placed.block, x, implementation=implementation), x)
    (gradient,) = pull(jnp.nan_to_num(jnp.asarray(cotangent)).astype(jnp.bfloat16))
    hub = placed.nodes(gradient.astype(jnp.float32))[0, 0]
    np.testing.assert_allclose(hub, 0.25, atol=0.02)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_mean_of_sixteen_bits_does_not_overflow(dtype: Any) -> None:
    leaves = 400
    graph = complete(np.arange(1, leaves + 1), np.zeros(leaves, int), leaves + 1, "hub")
    placed = place_block(graph)
    x = jnp.full((placed.block.sender_rows, 1), 1000.0, dtype)
    assert float(aggregate(placed.block, x, reduce="mean")[placed.row_of_node[0], 0]) == 1000.0


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_sixteen_bits_are_close_to_the_oracle(reduce: str) -> None:
    placed, x = place_block(RANDOM), draw_x(RANDOM).astype(jnp.bfloat16)
    weight = draw_weight(RANDOM, "per-head").astype(jnp.bfloat16)
    grad = np.random.default_rng(3).standard_normal(x.shape).astype(jnp.bfloat16)
    exact = [array.astype(np.float64) for array in (x, weight, grad)]
    expected, backward = edge_ops.aggregate(placed.oracle(), exact[0], exact[1], reduce)
    y, (grad_x, grad_weight) = value_and_gradients(
        placed.block, placed.rows(x), placed.slots(weight), placed.rows(grad), reduce
    )
    assert y.dtype == grad_x.dtype == grad_weight.dtype == jnp.bfloat16
    assert_close(placed.nodes(y), expected, dtype=jnp.bfloat16)
    # Rounding changes the winner, and with it the gradient, of a maximum.
    if reduce in ("sum", "mean"):
        expected_x, expected_weight = backward(exact[2])
        assert_close(placed.nodes(grad_x), expected_x, dtype=jnp.bfloat16)
        assert_close(placed.edges(grad_weight), expected_weight, dtype=jnp.bfloat16)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_the_result_is_of_the_type_of_x(reduce: str) -> None:
    placed = place_block(RANDOM)
    x = jnp.ones((placed.block.sender_rows, 2), jnp.bfloat16)
    weight = jnp.ones(placed.block.edge_slots, jnp.float32)
    y, (grad_x, grad_weight) = value_and_gradients(placed.block, x, weight, x, reduce)
    assert (y.dtype, grad_x.dtype, grad_weight.dtype) == (x.dtype, x.dtype, weight.dtype)


@pytest.mark.parametrize("implementation", ["cpu", "xla"])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_weights_are_not_rounded_to_the_sixteen_bits_of_x(implementation: str, reduce: str) -> None:
    """1 + 2^-10 is 1 in bfloat16: what is left of two weights that cancel would be nothing."""
    if implementation == "cpu" and missing():
        pytest.skip(missing())
    placed = place_block(complete([1, 2], [0, 0], 3, "two"))
    x = jnp.full((placed.block.sender_rows, 1), 1.0, jnp.bfloat16)
    weight = jnp.asarray(placed.slots(np.asarray([1 + 2**-10, -1.0], np.float32)))
    y, pull = jax.vjp(
        lambda w: aggregate(placed.block, x, w, reduce, implementation=implementation), weight
    )
    edges = 1 if reduce == "sum" else 2
    assert y.dtype == jnp.bfloat16
    assert float(placed.nodes(y)[0, 0]) == 2**-10 / edges
    (grad,) = pull(jnp.full_like(y, 1.0))
    np.testing.assert_array_equal(placed.edges(grad), 1 / edges)


# ------------------------------------------------------------------ bad input


def test_bad_input_is_refused() -> None:
    placed = place_block(SMALL_GRAPHS[3])
    block = placed.block
    x, weight = jnp.ones((block.sender_rows, HEADS, 3)), jnp.ones(block.edge_slots)
    looped = place_block(SMALL_GRAPHS[3], self_loops=True).block
    bad: Any = [
        ("block is a Placed", lambda: aggregate(placed, x)),  # type: ignore[arg-type]
        ("x has shape", lambda: aggregate(block, x[:-1])),
        ("x has shape", lambda: aggregate(block, jnp.float32(1.0))),
        ("x has dtype int32", lambda: aggregate(block, jnp.ones(x.shape, jnp.int32))),
        ("x is a list", lambda: aggregate(block, [1.0])),  # type: ignore[arg-type]
        ("weight has shape", lambda: aggregate(block, x, weight[:-1])),
        ("weight has shape", lambda: aggregate(block, x, jnp.ones((block.edge_slots, 3)))),
        ("weight has shape", lambda: aggregate(block, x[:, 0], jnp.ones((block.edge_slots, 3)))),
        ("weight has dtype bool", lambda: aggregate(block, x, weight > 0)),
        ("add_self_loops", lambda: aggregate(looped, x, weight)),
        ("did you mean 'mean'", lambda: aggregate(block, x, reduce="meen")),
        ("did you mean 'xla'", lambda: aggregate(block, x, implementation="xlaa")),
    ]
    for words, call in bad:
        with pytest.raises(ValueError, match=words):
            call()
