"""Whole ops and their gradients lowered for CUDA, on one device and inside `shard_map`."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from jaxgraph.ops import aggregate, sddmm
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.core.message_functions import DotMessage, GatMessage, GatV2Message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Softmax
from tests.ops.blocks import by_kernels, place_block
from tests.strategies import SMALL_GRAPHS

GRAPH = next(graph for graph in SMALL_GRAPHS if graph.name == "star-in")


def kernels(function, *arguments) -> list[str]:
    """Names of the kernels of a function compiled for CUDA."""
    text = export.export(jax.jit(function), platforms=["cuda"])(*arguments).mlir_module()
    return re.findall(r"custom_call @(mosaic_gpu\w*)", text)


@pytest.mark.parametrize(
    ("reduce", "forward", "backward"), [("sum", 1, 1), ("max", 1, 1), ("mean", 1, 1)]
)
def test_aggregation(reduce: str, forward: int, backward: int) -> None:
    block = with_implementation(place_block(GRAPH).block, "mosaic_gpu")
    x = jnp.ones((block.sender_rows, 12))
    assert len(kernels(lambda x: aggregate(block, x, None, reduce), x)) == forward
    gradient = jax.grad(lambda x: aggregate(block, x, None, reduce).sum())
    assert len(kernels(gradient, x)) >= backward


def test_products() -> None:
    block = with_implementation(place_block(GRAPH).block, "mosaic_gpu")
    x, z = jnp.ones((block.sender_rows, 2, 8)), jnp.ones((block.receiver_rows, 2, 8))
    for op in ("dot", "add"):
        assert len(kernels(lambda x, z, op=op: sddmm(block, x, z, op), x, z)) == 1
        both = jax.grad(lambda x, z, op=op: sddmm(block, x, z, op).sum(), (0, 1))
        assert 2 <= len(kernels(both, x, z)) <= 3


def test_inside_shard_map() -> None:
    block = with_implementation(place_block(GRAPH).block, "mosaic_gpu")
    mesh = jax.make_mesh((1,), ("graph",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.shard_map(
        lambda x: jax.grad(lambda x: aggregate(block, x, None, "sum").sum())(x),
        mesh=mesh,
        in_specs=jax.P("graph"),
        out_specs=jax.P("graph"),
    )
    assert kernels(spread, jnp.ones((block.sender_rows, 12)))


HEADS, FEATURES = 4, 8


def attention(kind: str, block: Any) -> tuple[Any, Inputs]:
    sender, receiver = (
        jnp.ones((rows, HEADS, FEATURES)) for rows in (block.sender_rows, block.receiver_rows)
    )
    if kind == "gat":
        return GatMessage(0.2), Inputs((), (sender, sender[..., 0]), receiver[..., 0], ())
    if kind == "dot":
        return DotMessage(0.4), Inputs((), (sender, sender), receiver, ())
    return GatV2Message(0.2), Inputs(jnp.ones((HEADS, FEATURES)), sender, receiver, ())


@pytest.mark.expensive
@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("kind", ["gat", "gatv2", "dot"])
def test_one_kernel_forward_and_at_most_three_backward(kind: str, spread: bool) -> None:
    block = with_implementation(place_block(GRAPH).block, "mosaic_gpu")
    message, inputs = attention(kind, block)
    seed = (jnp.uint32(1), jnp.uint32(2))

    def forward(inputs: Inputs, seed: Any, block: Any) -> jax.Array:
        reducer = Softmax(seed=seed, rate=0.5, heads=HEADS)
        return by_kernels(block, message, reducer, inputs, self_loops=True)

    def both(inputs: Inputs, seed: Any, block: Any) -> Inputs:
        return jax.grad(lambda inputs: forward(inputs, seed, block).sum())(inputs)

    calls = [forward, both]
    if spread:
        mesh = jax.make_mesh((1,), ("graph",), axis_types=(jax.sharding.AxisType.Auto,))
        rows = Inputs(jax.P(), jax.P("graph"), jax.P("graph"), jax.P())
        places = (rows, jax.P(), jax.P())
        calls = [
            jax.shard_map(call, mesh=mesh, in_specs=places, out_specs=specs)
            for call, specs in zip(calls, (jax.P("graph"), rows), strict=True)
        ]
    block = jax.tree.map(np.asarray, block)
    assert len(kernels(calls[0], inputs, seed, block)) == 1
    assert 1 < len(kernels(calls[1], inputs, seed, block)) <= 4
