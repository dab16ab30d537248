"""Attention over parts, one at a time, lowered for CUDA with the kernels in it."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export

import jaxgraph as jg
from jaxgraph.ops.core.edges import EdgeGroups
from jaxgraph.ops.core.message_functions import DotMessage, GatMessage, GatV2Message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Softmax
from tests.strategies import complete, random_edges

NODES, EDGES, PARTS, HEADS = 61, 400, 3, 2


def on_gpu(tree: Any) -> Any:
    def named(leaf: Any) -> Any:
        is_edges = isinstance(leaf, EdgeGroups)
        return dataclasses.replace(leaf, implementation="mosaic_gpu") if is_edges else leaf

    return jax.tree.map(named, tree, is_leaf=lambda leaf: isinstance(leaf, EdgeGroups))


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("gat", "sar"),
        ("gatv2", "domain"),
        ("dot", "sar"),
        pytest.param("gat", "domain", marks=pytest.mark.slow),
        pytest.param("gatv2", "sar", marks=pytest.mark.slow),
        pytest.param("dot", "domain", marks=pytest.mark.slow),
    ],
)
def test_forward_and_backward(kind: str, mode: str) -> None:
    graph = complete(*random_edges(NODES, EDGES, seed=3), NODES, "attention")
    partition = jg.partition.partition(graph, PARTS, method="hash")
    sharded = jg.parallel.shard(graph, partition, jg.parallel.make_mesh(PARTS), mode)

    def run(shard: Any) -> Any:
        seed = (jnp.uint32(1), jnp.uint32(2))

        def total(x: jax.Array) -> jax.Array:
            rows = jnp.stack([x, 2 * x], 1)
            sides = {"gat": ((rows, rows[..., 0]), rows[..., 0]), "dot": ((rows, rows), rows)}
            sender, receiver = sides.get(kind, (rows, rows))
            vector = jnp.ones(rows.shape[1:], rows.dtype)
            makers = {"gat": GatMessage, "gatv2": GatV2Message, "dot": DotMessage}
            inputs = Inputs(vector if kind == "gatv2" else (), sender, receiver, ())
            reducer = Softmax(seed=seed, rate=0.5, heads=HEADS)
            return shard.propagate(makers[kind](0.2), reducer, inputs)

        y, pull = jax.vjp(total, shard.nodes)
        return pull(y)[0]

    step = jax.jit(jg.parallel.spmd(run, outputs="rows"))
    text = export.export(step, platforms=["cuda"])(on_gpu(sharded)).mlir_module()
    assert len(re.findall(r"custom_call @mosaic_gpu\w*", text)) >= 3
