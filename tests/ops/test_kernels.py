"""Which messages have kernels, who may use them, and that both ways of reducing agree."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops import kernels
from jaxgraph.ops.implementations import propagate_or_refuse, with_implementation
from jaxgraph.ops.kernels import find_kernel, usable_implementation
from jaxgraph.ops.message_functions import (
    gat_message,
    gatv2_message,
    sum_message,
    weighted_message,
)
from jaxgraph.ops.messages import Inputs
from jaxgraph.ops.reducers import Extremum, Softmax, Sum
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import place_block
from tests.strategies import SMALL_GRAPHS

GRAPH = next(graph for graph in SMALL_GRAPHS if graph.name == "star-in")


def rows(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    values = np.random.default_rng(len(shape)).standard_normal(shape)
    return jnp.asarray(values, dtype)


def known(dtype: Any = jnp.float32) -> dict[str, tuple[Any, Any, Inputs]]:
    placed = place_block(GRAPH)
    senders, receivers = placed.block.sender_rows, placed.block.receiver_rows
    x, heads = rows(senders, 5, dtype=dtype), rows(senders, 2, 3, dtype=dtype)
    logits, attention = rows(senders, 2, dtype=dtype), rows(2, 3, dtype=dtype)
    weights = rows(placed.block.edge_slots, dtype=dtype)
    per_head = rows(placed.block.edge_slots, 2, dtype=dtype)
    attended = rows(receivers, 2, dtype=dtype)
    return {
        "sum": (sum_message, Sum(), Inputs((), (x, heads), (), ())),
        "weighted": (weighted_message, Sum(), Inputs((), x, (), weights)),
        "float32-weights": (
            weighted_message,
            Sum(jnp.dtype(dtype)),
            Inputs((), x, (), weights.astype(jnp.float32)),
        ),
        "per-head": (weighted_message, Sum(), Inputs((), heads, (), per_head)),
        "max": (sum_message, Extremum(), Inputs((), x, (), ())),
        "min": (sum_message, Extremum(-1.0), Inputs((), x, (), ())),
        "gat": (gat_message(0.2), Softmax(heads=2), Inputs((), (heads, logits), attended, ())),
        "gatv2": (gatv2_message(0.2), Softmax(heads=2), Inputs(attention, heads, heads + 1, ())),
    }


def a_message_of_ones_own(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
    return sender


@needs_kernels
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", known())
def test_kernels_equal_chunks_of_edges(name: str, dtype: Any) -> None:
    message, reducer, inputs = known(dtype)[name]
    block = place_block(GRAPH).block
    # Each of the two is within half of this of what float64 gives.
    tolerance = 4e-6 if dtype == jnp.float32 else 2e-2

    def loss(floating: tuple[Any, ...], block: Any) -> tuple[Any, Any]:
        outputs = propagate_or_refuse(block, message, reducer, Inputs(*floating))
        leaves = jax.tree.leaves(outputs)
        return sum((leaf.astype(jnp.float32) ** 2).sum() for leaf in leaves), outputs

    floating = (inputs.params, inputs.sender, inputs.receiver, inputs.edge)
    both = [
        jax.grad(loss, has_aux=True)(floating, with_implementation(block, name))
        for name in ("cpu", "xla")
    ]
    for native, portable in zip(*map(jax.tree.leaves, both), strict=True):
        assert native.dtype == portable.dtype
        scale = float(jnp.abs(portable).max()) + 1e-30
        difference = native.astype(jnp.float32) - portable.astype(jnp.float32)
        assert float(jnp.abs(difference).max()) <= tolerance * scale


@needs_kernels
@pytest.mark.parametrize("name", known())
def test_the_librarys_own_messages_have_kernels(name: str) -> None:
    edges = with_implementation(place_block(GRAPH).block, "cpu").edges
    assert find_kernel(edges, *known()[name]) is not None
    assert find_kernel(dataclasses.replace(edges, implementation="xla"), *known()[name]) is None


def test_other_messages_and_types_are_refused() -> None:
    block = place_block(GRAPH).block
    native = with_implementation(block, "cpu")
    edges = native.edges
    message, reducer, inputs = known()["sum"]
    assert find_kernel(edges, a_message_of_ones_own, reducer, inputs) is None
    for name in known():
        assert find_kernel(edges, *known(jnp.float16)[name]) is None
    message, reducer, inputs = known(jnp.float16)["sum"]
    with pytest.raises(NotImplementedError, match=r"no kernel of 'cpu' reduces .* float16"):
        propagate_or_refuse(native, message, reducer, inputs)


def test_what_is_missing_is_told_to_those_who_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "missing", lambda: "needs kernels.so")
    assert usable_implementation(None, "cpu") == "xla"
    with pytest.raises(NotImplementedError, match=r"'cpu' needs kernels.so; implementation=None"):
        usable_implementation("cpu", "cpu")
    monkeypatch.setattr(kernels, "missing", lambda: "")
    assert usable_implementation(None, "cpu") == usable_implementation("cpu", "cpu") == "cpu"
    assert usable_implementation("xla", "cpu") == usable_implementation(None, "rocm") == "xla"
    assert usable_implementation(None, "gpu") == usable_implementation(None, "cuda") == "mosaic_gpu"
    with pytest.raises(NotImplementedError, match="runs on gpu, and the devices are cpu"):
        usable_implementation("mosaic_gpu", "cpu")
    with pytest.raises(NotImplementedError, match="runs on cpu, and the devices are cuda"):
        usable_implementation("cpu", "cuda")
    with pytest.raises(ValueError, match="did you mean 'cpu'"):
        usable_implementation("cpus", "cpu")
