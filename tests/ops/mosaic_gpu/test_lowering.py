"""Whole ops and their gradients lowered for CUDA, on one device and inside `shard_map`."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import export

from jaxgraph.ops import aggregate, sddmm
from jaxgraph.ops.core.edges import with_implementation
from tests.ops.blocks import place_block
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
