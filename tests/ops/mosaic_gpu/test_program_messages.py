"""Element-wise messages by the GPU kernel: in Pallas' interpreter, and lowered for CUDA."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Sum
from pallas_kernels.teams import Launch
from tests.ops.blocks import by_kernels, place_block
from tests.ops.cpu.test_program_messages import FUNCTIONS as ON_CPU
from tests.pallas_kernels.graphs import in_interpreter
from tests.strategies import SMALL_GRAPHS

GRAPH = next(graph for graph in SMALL_GRAPHS if graph.name == "star-in")


def activations(params, sender, receiver, edge):
    one = jax.nn.relu(sender + receiver) + jax.nn.leaky_relu(sender * edge, 0.1)
    return one + jnp.sign(sender) * sender**2 - jnp.log(2 + jnp.abs(receiver))


FUNCTIONS = {name: ON_CPU[name] for name in ("gate", "exp", "edge twice", "minimum", "pair")}
FUNCTIONS["activations"] = activations


def given(block, columns):
    rng = np.random.default_rng(0)
    shapes = {
        "params": (columns,),
        "sender": (block.sender_rows, columns),
        "receiver": (block.receiver_rows, columns),
        "edge": (block.edge_slots, 1),
    }
    return Inputs(**{n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in shapes.items()})


def gradients(message, block, inputs):
    def loss(inputs):
        outputs = by_kernels(block, message, Sum(), inputs)
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(outputs)), outputs

    return jax.grad(loss, has_aux=True)


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("name", "columns"),
    [("pair", 5), *(pytest.param(name, 12, marks=pytest.mark.slow) for name in FUNCTIONS)],
)
def test_equals_xla(name, columns, monkeypatch):
    monkeypatch.setattr(Launch, "here", in_interpreter)
    block = place_block(GRAPH).block
    inputs, message = given(block, columns), FUNCTIONS[name]
    both = [
        gradients(message, with_implementation(block, implementation), inputs)(inputs)
        for implementation in ("mosaic_gpu", "xla")
    ]
    for mine, plain in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(mine, plain, 2e-5, 2e-5)


@pytest.mark.expensive
@pytest.mark.parametrize("name", FUNCTIONS)
def test_lowers(name):
    block = with_implementation(place_block(GRAPH).block, "mosaic_gpu")
    # Other columns than above: traces are kept, those with the interpreter too.
    inputs, message = given(block, 16), FUNCTIONS[name]

    def of_nodes(params, sender, receiver):
        given = dataclasses.replace(inputs, params=params, sender=sender, receiver=receiver)
        outputs = by_kernels(block, message, Sum(), given)
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(outputs))

    function = jax.jit(jax.grad(of_nodes, (0, 1, 2)))
    nodes = inputs.params, inputs.sender, inputs.receiver
    text = export.export(function, platforms=["cuda"])(*nodes).mlir_module()
    # The sums, and their gradients by both ends.
    assert len(re.findall(r"custom_call @(mosaic_gpu\w*)", text)) >= 3
