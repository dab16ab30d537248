"""Block.propagate with messages of one's own: winners, and the compiled work."""

import gc
import weakref
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.core.message_functions import GatMessage
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Extremum, Softmax, Sum
from tests.compilation import AS_USERS_DO
from tests.ops.blocks import place_block
from tests.strategies import SMALL_GRAPHS, complete, random_edges

RANDOM = SMALL_GRAPHS[-1]


def normalized_difference(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
    difference = sender - receiver[0]
    squares = jnp.sum(difference**2, -1, keepdims=True)
    return difference / jnp.sqrt(squares + 1e-5) + receiver[1]


def gated(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
    inner = (sender - receiver[0]) * params[0]
    return jax.nn.silu(inner) * sender + receiver[0] * sender + receiver[1]


def product(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
    return sender * receiver[0] * params[0] - sender + receiver[1]


@pytest.mark.expensive
@pytest.mark.parametrize("message", [normalized_difference, gated, product])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_backward_finds_every_winner(message: Any, dtype: Any) -> None:
    """The shares of the winners of each output add up to 1, though messages are recomputed.

    A compiler rounds the same formula differently in different contexts. The gradient of a term
    that the receiver adds to all of its messages is the sum of the shares.
    """
    graph = complete(*random_edges(500, 6000, seed=0), 500, "many")
    placed = place_block(graph)
    rng = np.random.default_rng(0)
    x = jnp.asarray(placed.rows(rng.standard_normal((500, 16)))).astype(dtype)
    params = jnp.asarray(rng.standard_normal((1, 16))).astype(dtype)

    @partial(jax.jit, compiler_options=AS_USERS_DO)
    def shares(x: jax.Array, shift: jax.Array) -> jax.Array:
        def total(shift: jax.Array) -> jax.Array:
            inputs = Inputs(params, x, (x, shift), ())
            y = placed.block.propagate(message, Extremum(), inputs)
            return jnp.sum(y.astype(jnp.float32))

        return jax.grad(total)(shift)

    found = placed.nodes(shares(x, jnp.zeros_like(x)).astype(jnp.float32))
    expected = np.repeat((graph.in_degrees() > 0)[:, None], 16, 1)
    np.testing.assert_allclose(found, expected, atol=0.02)


# ------------------------------------------------------------------ the compiled work


def test_only_wanted_gradients_are_computed() -> None:
    """Without a gradient for receivers and edges the backward visits the edges once."""
    placed = place_block(RANDOM)
    x = jnp.ones((placed.block.sender_rows, 2))
    weight = jnp.ones(placed.block.edge_slots)

    def message(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
        return jnp.sin(sender) * edge[:, None]  # no kernel has a sine

    def loops(*wanted: int) -> int:
        def total(x: jax.Array, weight: jax.Array) -> jax.Array:
            return placed.block.propagate(message, Sum(), Inputs((), x, (), weight)).sum()

        jaxpr = jax.make_jaxpr(jax.grad(total, argnums=wanted))(x, weight)
        return str(jaxpr).count("while[")

    # Four loops per orientation, over blocks and the pieces of their rows, and over heavy rows and
    # their runs; and one over slots.
    assert (loops(0), loops(1), loops(0, 1)) == (8, 5, 9)


def test_layers_of_the_same_shapes_are_lowered_once() -> None:
    """A message that is equal, not the same, in every layer; forward and backward."""
    placed = place_block(RANDOM)
    rows, reducer = placed.block.sender_rows, Softmax(None, 0.0, 2)

    def lines(layers: int) -> int:
        def total(x: jax.Array) -> jax.Array:
            for _ in range(layers):
                logits = x.sum(-1)
                inputs = Inputs((), (x, logits), logits, ())
                x = placed.block.propagate(GatMessage(0.2), reducer, inputs)
            return x.sum()

        text = jax.jit(jax.grad(total)).lower(jnp.ones((rows, reducer.heads, 3))).as_text()
        return text.count("\n")

    assert lines(3) < 1.5 * lines(1)


def test_without_kernels_a_gradient_is_made_once() -> None:
    """They are not computed in each of the loops and sums of attention that read them."""
    block = with_implementation(place_block(RANDOM).block, "xla")
    reducer = Softmax(None, 0.0, 2)

    @partial(jax.jit, compiler_options=AS_USERS_DO)
    def gradient(x: jax.Array) -> Any:
        def total(x: jax.Array) -> jax.Array:
            logits = x.sum(-1)
            inputs = Inputs((), (x, logits), logits, ())
            y = block.propagate(GatMessage(0.2), reducer, inputs)
            return jnp.sum(y * lax.stop_gradient(jnp.floor(y)))

        return jax.grad(total)(x)

    text = gradient.lower(jnp.ones((block.sender_rows, 2, 3))).compile().as_text()
    assert text is not None
    assert text.count(" floor(") == 1


@pytest.mark.slow
def test_of_many_messages_few_are_kept() -> None:
    """A message that is defined anew for every trace does not fill the memory."""
    placed = place_block(RANDOM)
    x = jnp.ones((placed.block.sender_rows, 2))

    def traced() -> weakref.ref[Any]:
        def message(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
            return 2 * sender

        def total(x: jax.Array) -> jax.Array:
            return placed.block.propagate(message, Sum(), Inputs((), x, (), ())).sum()

        jax.make_jaxpr(jax.grad(total))(x)
        return weakref.ref(message)

    messages = [traced() for _ in range(40)]
    gc.collect()
    assert sum(message() is not None for message in messages) < 20


def test_counts_may_travel_with_values() -> None:
    """Integer messages are summed as such and have no gradient."""
    placed = place_block(RANDOM)

    def message(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
        return sender, jnp.ones(sender.shape[0], jnp.int32)

    def total(x: jax.Array) -> Any:
        y, count = placed.block.propagate(message, Sum(), Inputs((), x, (), ()))
        return y.sum(), count

    grad, count = jax.grad(total, has_aux=True)(jnp.ones((placed.block.sender_rows, 2)))
    np.testing.assert_array_equal(placed.nodes(count), RANDOM.in_degrees())
    np.testing.assert_array_equal(placed.nodes(grad)[:, 0], RANDOM.out_degrees())


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["sum", "max", "softmax"])
def test_no_array_of_edges_times_features(name: str) -> None:
    """Temporary memory of value and gradient stays at a few rows of nodes."""
    graph = complete(*random_edges(1000, 64_000, seed=0), 1000, "dense")
    placed, width = place_block(graph), 32

    def message(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
        hidden = jnp.tanh(sender * params + receiver)
        return (hidden[:, :2], hidden.reshape(-1, 2, width // 2)) if name == "softmax" else hidden

    reducer = {"sum": Sum(), "max": Extremum(), "softmax": Softmax(heads=2)}[name]

    def total(params: jax.Array, x: jax.Array, r: jax.Array) -> jax.Array:
        inputs = Inputs(params, x, r, ())
        return jnp.sum(placed.block.propagate(message, reducer, inputs) ** 2)

    x = jax.ShapeDtypeStruct((placed.block.sender_rows, width), jnp.float32)
    params = jax.ShapeDtypeStruct((width,), jnp.float32)
    lowered = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(params, x, x)
    compiled = lowered.compile(compiler_options=AS_USERS_DO)
    memory = compiled.memory_analysis()
    assert memory is not None
    per_node = memory.temp_size_in_bytes / (placed.block.sender_rows * width * 4)
    assert per_node < 20  # an array [edges, features] alone is 64
