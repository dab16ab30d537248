"""Messages that GPU kernels reduce, in Pallas' interpreter, against XLA's way of reducing them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.aggregation import aggregate
from jaxgraph.ops.implementations import propagate_or_refuse, with_implementation
from jaxgraph.ops.kernels import find_kernel
from jaxgraph.ops.message_functions import sum_message, weighted_message
from jaxgraph.ops.messages import Inputs
from jaxgraph.ops.mosaic_gpu import messages
from jaxgraph.ops.reducers import Extremum, Sum
from tests.ops.blocks import place_block
from tests.pallas_kernels.graphs import in_interpreter
from tests.strategies import SMALL_GRAPHS

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
        "max": (sum_message, Extremum(), Inputs((), x, (), ())),
    }


@pytest.mark.parametrize(
    ("name", "dtype"), [("sum", jnp.bfloat16), ("per-head", jnp.float32), ("max", jnp.float32)]
)
def test_kernels_equal_xla(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "Launch", in_interpreter)
    block = place_block(GRAPH).block
    message, reducer, inputs = known(block, dtype)[name]
    tolerance = 2e-5 if dtype == jnp.float32 else 2e-2

    def loss(floating: tuple[Any, ...], block: Any) -> tuple[Any, Any]:
        outputs = propagate_or_refuse(block, message, reducer, Inputs(*floating))
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


def test_a_kernel_is_found_for_what_it_knows_only() -> None:
    block = with_implementation(place_block(GRAPH).block, "mosaic_gpu")
    for message, reducer, inputs in known(block).values():
        assert find_kernel(block.edges, message, reducer, inputs) is not None
        integers = dataclasses.replace(inputs, sender=jnp.zeros((3, 2), jnp.int32))
        assert find_kernel(block.edges, message, reducer, integers) is None


def test_named_it_never_falls_back() -> None:
    block = place_block(GRAPH).block
    with pytest.raises(NotImplementedError, match="mosaic_gpu"):
        aggregate(block, rows(block.sender_rows, 4), implementation="mosaic_gpu")
    named = with_implementation(block, "mosaic_gpu")
    with pytest.raises(NotImplementedError, match="no kernel of 'mosaic_gpu'"):
        inputs = Inputs((), rows(block.sender_rows, 4), (), ())
        propagate_or_refuse(named, lambda *parts: parts[1], Sum(), inputs)
