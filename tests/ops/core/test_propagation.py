"""Block.propagate with custom messages, compared with autodiff of all edges at once."""

import gc
import weakref
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxgraph import Graph
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.core.message_functions import GatMessage
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Extremum, Softmax, Sum
from tests.compilation import AS_USERS_DO
from tests.ops.blocks import Placed, place_block, shared_shapes
from tests.strategies import SMALL_GRAPHS, complete, random_edges
from tests.tolerance import assert_close

FEATURES, HEADS = 4, 2
RANDOM = SMALL_GRAPHS[-1]
NAMES = ("no-edges", "repeated-edges", "star-in", "star-out", "directed-random")
VARIED = [graph for graph in SMALL_GRAPHS if graph.name in NAMES]


def learned_message(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
    """Reads all inputs, in trees, with parameters and an integer type per edge."""
    hidden = jnp.tanh(sender["x"] @ params["kernel"] + receiver[0] * edge["weight"][:, None])
    scale = 1.0 + edge["type"][:, None]
    return {"a": hidden * scale, "b": hidden[:, 0] * params["scalar"]}


def attention_message(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
    messages = learned_message(params, sender, receiver, edge)["a"]
    values = messages.reshape(-1, HEADS, FEATURES // HEADS)
    return values.sum(-1), values


def draw_inputs(graph: Graph) -> Inputs:
    rng = np.random.default_rng(0)
    x, r = rng.standard_normal((2, graph.num_nodes, FEATURES))
    params = {"kernel": rng.standard_normal((FEATURES, FEATURES)), "scalar": np.float64(0.7)}
    edge = {
        "weight": rng.standard_normal(graph.num_edges),
        "type": rng.integers(0, 3, graph.num_edges).astype(np.int32),
    }
    return Inputs(params, {"x": x}, [r], edge)


def place_inputs(placed: Placed, inputs: Inputs) -> Inputs:
    """By row and slot; a type has no NaN, so padding holds a large one."""
    edge = {name: np.full(placed.block.edge_slots, 10**6, np.int32) for name in ("type",)}
    edge["type"][placed.slot_of_edge] = inputs.edge["type"]
    return Inputs(
        inputs.params,
        jax.tree.map(placed.rows, inputs.sender),
        jax.tree.map(placed.rows, inputs.receiver),
        {"weight": placed.slots(inputs.edge["weight"]), **edge},
    )


def reduce_all(graph: Graph, reducer: Any, messages: Any) -> Any:
    receivers, count = jnp.asarray(graph.receivers), graph.num_nodes
    if isinstance(reducer, Sum):
        return jax.tree.map(lambda m: jax.ops.segment_sum(m, receivers, count), messages)
    if isinstance(reducer, Extremum):
        has = jnp.asarray(graph.in_degrees() > 0)

        def largest(m: jax.Array) -> jax.Array:
            best = jax.ops.segment_max(m, receivers, count)
            return jnp.where(has.reshape(-1, *(1,) * (m.ndim - 1)), best, 0)

        return jax.tree.map(largest, messages)
    logits, values = messages
    powers = jnp.exp(logits)
    totals = jax.ops.segment_sum(powers, receivers, count)
    alpha = powers / totals[receivers]
    return jax.ops.segment_sum(alpha[..., None] * values, receivers, count)


def floating(inputs: Inputs) -> Any:
    weight = inputs.edge["weight"]
    return inputs.params, inputs.sender, inputs.receiver, weight


def with_floating(inputs: Inputs, values: Any) -> Inputs:
    params, sender, receiver, weight = values
    return Inputs(params, sender, receiver, {**inputs.edge, "weight": weight})


@partial(jax.jit, static_argnums=(0,), compiler_options=AS_USERS_DO)
def block_gradients(message: Any, reducer: Any, block: Any, inputs: Inputs, grad: Any) -> Any:
    def op(values: Any) -> Any:
        return block.propagate(message, reducer, with_floating(inputs, values))

    y, pull = jax.vjp(op, floating(inputs))
    return y, pull(grad)[0]


def reference_gradients(graph: Graph, message: Any, reducer: Any, inputs: Inputs, grad: Any) -> Any:
    def op(values: Any) -> Any:
        params, sender, receiver, weight = values
        at_edges = (
            jax.tree.map(lambda leaf: jnp.asarray(leaf)[graph.senders], sender),
            jax.tree.map(lambda leaf: jnp.asarray(leaf)[graph.receivers], receiver),
            {**inputs.edge, "weight": jnp.asarray(weight)},
        )
        return reduce_all(graph, reducer, message(params, *at_edges))

    y, pull = jax.vjp(op, floating(inputs))
    return y, pull(grad)[0]


CASES = {
    "sum": (learned_message, Sum()),
    "max": (learned_message, Extremum(1.0)),
    "softmax": (attention_message, Softmax(heads=HEADS)),
}


@pytest.mark.slow
@pytest.mark.parametrize("graph", VARIED, ids=lambda graph: graph.name)
@pytest.mark.parametrize("name", CASES)
def test_equals_autodiff_with_nan_in_all_padding(graph: Graph, name: str) -> None:
    message, reducer = CASES[name]
    with jax.enable_x64(True):
        placed = place_block(graph, pad_to=shared_shapes())
        inputs, rng = draw_inputs(graph), np.random.default_rng(3)
        shapes = jax.tree.map(
            lambda leaf: leaf.shape[1:],
            jax.eval_shape(
                partial(message, inputs.params),
                *jax.tree.map(
                    lambda leaf: jnp.zeros((1, *np.shape(leaf)[1:]), leaf.dtype),
                    (inputs.sender, inputs.receiver, inputs.edge),
                ),
            ),
        )
        if name == "softmax":
            shapes = shapes[1]
        is_shape = lambda leaf: isinstance(leaf, tuple)  # noqa: E731
        grad = jax.tree.map(
            lambda shape: rng.standard_normal((graph.num_nodes, *shape)), shapes, is_leaf=is_shape
        )
        reference = partial(reference_gradients, graph, message, reducer)
        expected, expected_grads = jax.jit(reference, compiler_options=AS_USERS_DO)(inputs, grad)
        on_rows = place_inputs(placed, inputs), jax.tree.map(placed.rows, grad)
        y, grads = block_gradients(message, reducer, placed.block, *on_rows)
        params, sender, receiver, weight = grads
        back = (
            jax.tree.map(placed.nodes, y),
            params,
            jax.tree.map(placed.nodes, (sender, receiver)),
            placed.edges(weight),
        )
        params, sender, receiver, weight = expected_grads
        for actual, exact in zip(
            jax.tree.leaves(back),
            jax.tree.leaves((expected, params, (sender, receiver), weight)),
            strict=True,
        ):
            assert_close(actual, exact, dtype=np.float64, reduction_length=3000)


# ------------------------------------------------------------------ maxima that are computed twice


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


def test_edge_data_must_have_a_row_per_slot() -> None:
    placed = place_block(RANDOM)
    inputs = Inputs((), (), (), jnp.ones((RANDOM.num_edges, 2)))
    with pytest.raises(ValueError, match="one row per edge slot"):
        placed.block.propagate(lambda p, s, r, e: e, Sum(), inputs)


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["sum", "max", "softmax"])
def test_no_array_of_edges_times_features(name: str) -> None:
    """Temporary memory of value and gradient stays at a few rows of nodes."""
    graph = complete(*random_edges(1000, 64_000, seed=0), 1000, "dense")
    placed, width = place_block(graph), 32

    def message(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
        hidden = jnp.tanh(sender * params + receiver)
        return (hidden[:, :2], hidden.reshape(-1, 2, width // 2)) if name == "softmax" else hidden

    reducer = CASES[name][1]

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
