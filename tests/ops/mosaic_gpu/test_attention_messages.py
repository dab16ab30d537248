"""Attention by GPU kernels, in Pallas' interpreter, compared with XLA's reduction."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.ops.core.choice import choose_stages
from jaxgraph.ops.core.edges import EdgeGroup, with_implementation
from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_functions import DotMessage, GatMessage, GatV2Message
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.reducers import HeadMean, Softmax
from pallas_kernels.teams import Launch
from tests.ops.blocks import Placed, by_kernels, place_block, with_one
from tests.oracles.randomness import edge_keep_mask
from tests.pallas_kernels.graphs import in_interpreter

SENDERS = [0, 1, 2, 2, 3, 1, 1, 4]
RECEIVERS = [1, 1, 1, 0, 0, 2, 2, 4]
GRAPH = Graph.from_edges(SENDERS, RECEIVERS, num_nodes=6)
"""With equal edges, self-loops, and a node without edges."""
HEADS, FEATURES = 2, 4
KINDS = ("gat", "gatv2", "dot")
SLOW = pytest.mark.slow
SOME_KINDS = ("gatv2", *(pytest.param(kind, marks=SLOW) for kind in ("gat", "dot")))


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launch, "here", in_interpreter)


def known(
    placed: Placed, kind: str, dtype: Any, rate: float, reduce: type[Softmax] = Softmax
) -> tuple[Any, Softmax, Inputs]:
    rng, nodes = np.random.default_rng(0), placed.graph.num_nodes

    def rows(*shape: int) -> jax.Array:
        return placed.rows(rng.standard_normal((nodes, *shape)).astype(jnp.dtype(dtype)))

    seed = (jnp.uint32(17), jnp.uint32(4_000_000_001)) if rate else None
    reducer = reduce(seed=seed, rate=rate, heads=HEADS)
    if kind == "gat":
        sender, receiver = (rows(HEADS, FEATURES), rows(HEADS)), rows(HEADS)
        return GatMessage(0.2), reducer, Inputs((), sender, receiver, ())
    sender, receiver = rows(HEADS, FEATURES), rows(HEADS, FEATURES)
    if kind == "dot":
        return DotMessage(0.4), reducer, Inputs((), (sender, rows(HEADS, FEATURES)), receiver, ())
    vector = jnp.asarray(rng.standard_normal((HEADS, FEATURES)), dtype)
    return GatV2Message(0.2), reducer, Inputs(vector, sender, receiver, ())


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("dtype", "rate", "loops", "reduce", "kind"),
    [
        ("float32", 0.4, True, Softmax, "gat"),
        ("float32", 0.4, True, Softmax, "dot"),
        ("bfloat16", 0.0, False, Softmax, "gat"),
        ("bfloat16", 0.0, False, Softmax, "gatv2"),
        ("float32", 0.4, True, HeadMean, "gatv2"),
        ("float32", 0.0, False, HeadMean, "gat"),
        pytest.param("float32", 0.4, True, Softmax, "gatv2", marks=SLOW),
        pytest.param("bfloat16", 0.0, False, Softmax, "dot", marks=SLOW),
        pytest.param("float32", 0.4, True, HeadMean, "gat", marks=SLOW),
        pytest.param("float32", 0.4, True, HeadMean, "dot", marks=SLOW),
        pytest.param("float32", 0.0, False, HeadMean, "gatv2", marks=SLOW),
        pytest.param("float32", 0.0, False, HeadMean, "dot", marks=SLOW),
    ],
)
def test_kernels_equal_xla(
    dtype: str, rate: float, loops: bool, reduce: type[Softmax], kind: str
) -> None:
    placed = place_block(GRAPH)
    message, reducer, inputs = known(placed, kind, dtype, rate, reduce)
    shape = (6, FEATURES) if reduce is HeadMean else (6, HEADS, FEATURES)
    weights = placed.rows(np.random.default_rng(1).standard_normal(shape))
    weights = jnp.nan_to_num(weights).astype(jnp.float32)
    tolerance = 2e-5 if dtype == "float32" else 3e-2

    @jax.jit
    def loss(inputs: Inputs, block: Any) -> tuple[Any, Any]:
        outputs = by_kernels(block, message, reducer, inputs, self_loops=loops)
        return (outputs.astype(jnp.float32) * weights).sum(), outputs

    both = [
        jax.grad(loss, has_aux=True)(inputs, with_implementation(placed.block, name))
        for name in ("mosaic_gpu", "xla")
    ]
    for mine, plain in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(with_one(mine), with_one(plain), tolerance, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOME_KINDS)
def test_states_and_gradients_continue(kind: str) -> None:
    placed = place_block(GRAPH)
    message, reducer, inputs = known(placed, kind, "float32", 0.0)
    edges = with_implementation(placed.block, "mosaic_gpu").edges
    kernel, over = choose_stages(edges, message, reducer, inputs), EdgeGroup(edges, 0)
    assert isinstance(kernel, KernelStages)
    once = kernel.fold_over(over, inputs, None, inputs.receiver.shape[0])
    peak, total, sums = kernel.fold_over(over, inputs, once, inputs.receiver.shape[0])
    for twice, state in zip((peak, total / 2, sums / 2), once, strict=True):
        np.testing.assert_allclose(twice, state, 1e-6, 1e-6)
    outputs, kept = kernel.finish(once, inputs)
    adjoint = kernel.adjoint(outputs, kept, jnp.ones_like(outputs))
    wanted = Wanted(kind == "gatv2", True, True, False)
    first = kernel.pull_over(over, inputs, adjoint, wanted, Inputs([], [], [], []))
    second = kernel.pull_over(over, inputs, adjoint, wanted, first)
    for twice, gradient in zip(*map(jax.tree.leaves, (second, first)), strict=True):
        np.testing.assert_allclose(twice, 2 * gradient, 1e-6, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gat", "dot"])
def test_what_is_dropped_is_not_read(kind: str) -> None:
    placed, place = place_block(GRAPH), 0 if kind == "gat" else 1
    message, reducer, inputs = known(placed, kind, "float32", 0.8)
    block, edges = with_implementation(placed.block, "mosaic_gpu"), placed.oracle()
    ends = (edges.receivers, edges.senders, edges.repetitions())
    keep = edge_keep_mask((17, 4_000_000_001), *ends, HEADS, 0.8).astype(int)
    never_sent, never_seen = (
        placed.rows(reduce(keep) == 0)[..., None] != 0
        for reduce in (edges.sum_by_sender, edges.sum_by_receiver)
    )
    assert never_sent.any()
    assert never_seen.any()

    @jax.jit
    def found(values: jax.Array, cotangent: jax.Array) -> Any:
        sender = tuple(values if at == place else leaf for at, leaf in enumerate(inputs.sender))
        given = Inputs((), sender, inputs.receiver, ())
        call = partial(by_kernels, block, message, reducer)
        y, pull = jax.vjp(call, given)
        return y, pull(cotangent)[0]

    values = jnp.nan_to_num(inputs.sender[place])
    clean, dirty = (
        found(jnp.where(never_sent, value, values), jnp.ones_like(values))
        for value in (0.0, jnp.nan)
    )
    for expected, actual in zip(*map(jax.tree.leaves, (clean, dirty)), strict=True):
        np.testing.assert_array_equal(actual, expected)
    clean, dirty = (
        found(values, jnp.where(never_seen, value, jnp.ones_like(values)))[1].sender[place]
        for value in (0.0, jnp.nan)
    )
    np.testing.assert_array_equal(dirty, clean)
