"""Messages reduced by GPU kernels, in Pallas' interpreter, compared with XLA's reduction."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops import aggregate
from jaxgraph.ops.core.choice import has_kernel
from jaxgraph.ops.core.edges import EdgeGroup, with_implementation
from jaxgraph.ops.core.message_functions import sum_message, weighted_message
from jaxgraph.ops.core.message_kernels import message_stages
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Extremum, Mean, Sum
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.mosaic_gpu import calls
from pallas_kernels.teams import Launch
from tests.ops.blocks import by_kernels, place_block
from tests.oracles import edge_ops
from tests.pallas_kernels.graphs import in_interpreter
from tests.strategies import SMALL_GRAPHS, complete
from tests.tolerance import assert_close

GRAPH = next(graph for graph in SMALL_GRAPHS if graph.name == "star-in")


def rows(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    values = np.random.default_rng(len(shape)).standard_normal(shape)
    return jnp.asarray(values, dtype)


def known(block: Any, dtype: Any = jnp.float32) -> dict[str, tuple[Any, Any, Inputs]]:
    x, heads = rows(block.sender_rows, 5, dtype=dtype), rows(block.sender_rows, 2, 4, dtype=dtype)
    per_head = rows(block.edge_slots, 2, dtype=dtype)
    return {
        "sum": (sum_message, Sum(), Inputs((), x, (), ())),
        "per-head": (weighted_message, Sum(), Inputs((), heads, (), per_head)),
        "mean": (sum_message, Mean(), Inputs((), x, (), ())),
        "mean-per-head": (weighted_message, Mean(), Inputs((), heads, (), per_head)),
        "max": (sum_message, Extremum(), Inputs((), x, (), ())),
    }


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param("sum", jnp.bfloat16, marks=pytest.mark.slow),
        pytest.param("per-head", jnp.float32, marks=pytest.mark.slow),
        pytest.param("mean", jnp.bfloat16, marks=pytest.mark.slow),
        ("mean-per-head", jnp.float32),
        ("max", jnp.float32),
    ],
)
def test_kernels_equal_xla(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launch, "here", in_interpreter)
    block = place_block(GRAPH).block
    message, reducer, inputs = known(block, dtype)[name]
    tolerance = 2e-5 if dtype == jnp.float32 else 2e-2

    def loss(floating: tuple[Any, ...], block: Any) -> tuple[Any, Any]:
        outputs = by_kernels(block, message, reducer, Inputs(*floating))
        return (outputs.astype(jnp.float32) ** 2).sum(), outputs

    floating = (inputs.params, inputs.sender, inputs.receiver, inputs.edge)
    both = [
        jax.grad(loss, has_aux=True)(floating, with_implementation(block, name))
        for name in ("mosaic_gpu", "xla")
    ]
    for mine, plain in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(
            np.asarray(mine, np.float64), np.asarray(plain, np.float64), tolerance, tolerance
        )


@pytest.mark.parametrize("loops", [pytest.param(False, marks=pytest.mark.slow), True])
def test_means_are_divided_by_the_kernel(loops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launch, "here", in_interpreter)
    graph = complete([0, 1, 1, 2, 3, 3, 3], [0, 1, 2, 2, 3, 0, 3], 7, "some-loops")
    placed = place_block(graph)
    block = with_implementation(placed.block, "mosaic_gpu")
    x, grad = np.random.default_rng(1).standard_normal((2, graph.num_nodes, 5))
    oracle = placed.oracle(loops)
    expected, backward = edge_ops.aggregate(oracle, x, oracle.weight, "mean")
    rows = [placed.rows(each.astype(np.float32)) for each in (x, grad)]
    y, pull = jax.vjp(
        jax.jit(lambda x: aggregate(block, x, None, "mean", self_loops=loops)), rows[0]
    )
    assert_close(placed.nodes(y), expected)
    assert_close(placed.nodes(pull(rows[1])[0]), backward(grad)[0])


@pytest.mark.slow
def test_means_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that come one after the other; the last step divides."""
    placed = place_block(GRAPH)
    block = with_implementation(placed.block, "mosaic_gpu")
    monkeypatch.setattr(Launch, "here", in_interpreter)
    inputs = Inputs((), rows(block.sender_rows, 4), (), ())
    kernel = message_stages(calls, Stages(sum_message, Mean(), block.edges.chunk), inputs)
    assert kernel is not None
    over = EdgeGroup(block.edges, 0)
    once = kernel.fold_over(over, inputs, None, block.receiver_rows)
    twice = kernel.fold_over(over, inputs, once, block.receiver_rows)
    for state, doubled in zip(once, twice, strict=True):
        np.testing.assert_allclose(doubled, 2 * state, 1e-6, 1e-6)
    whole = kernel.reduce(block.with_loops(False), inputs)
    for mine, other in zip(kernel.finish(once, inputs), whole, strict=True):
        np.testing.assert_allclose(mine, other, 1e-6, 1e-6)
    # Twice the edges: the same means, of halves.
    y, inverse = kernel.finish(twice, inputs)
    np.testing.assert_allclose(y, whole[0], 1e-6, 1e-6)
    has_edges = np.asarray(once[1]) > 0
    np.testing.assert_allclose(inverse[has_edges], whole[1][has_edges] / 2, 1e-6)


def test_a_kernel_is_found_for_what_it_knows_only() -> None:
    block = with_implementation(place_block(GRAPH).block, "mosaic_gpu")
    for message, reducer, inputs in known(block).values():
        assert has_kernel(block.implementation, message, reducer, inputs)
        integers = dataclasses.replace(inputs, sender=jnp.zeros((3, 2), jnp.int32))
        assert not has_kernel(block.implementation, message, reducer, integers)
