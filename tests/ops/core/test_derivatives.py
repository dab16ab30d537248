"""Second derivatives, maps, and our errors for missing ones, for every op and for models."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.layers import sage_conv
from jaxgraph.ops import (
    aggregate,
    dot_attention,
    edge_softmax,
    gat_attention,
    gatv2_attention,
    sddmm,
)
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.parallel import make_mesh, shard, spmd
from jaxgraph.partition import partition
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import place_block
from tests.strategies import SMALL_GRAPHS
from tests.training import crooked_graph

BLOCK = place_block(SMALL_GRAPHS[3]).block
ROWS = (BLOCK.sender_rows, 2, 3)
SLOTS = jnp.asarray(np.random.default_rng(2).standard_normal((BLOCK.edge_slots, 2)), jnp.float32)
Op = Callable[[Any, jax.Array], jax.Array]
OPS: dict[str, Op] = {
    "sum": lambda block, x: aggregate(block, x),
    "weighted mean": lambda block, x: aggregate(block, x, SLOTS * x[0, 0, 0], "mean"),
    "max": lambda block, x: aggregate(block, x, None, "max"),
    "sddmm": lambda block, x: sddmm(block, x, jnp.sin(x)),
    "sddmm of sums": lambda block, x: sddmm(block, x, jnp.sin(x), "add"),
    "edge softmax": lambda block, x: edge_softmax(block, SLOTS * x[0, 0, 0]),
    "gat": lambda block, x: gat_attention(block, x, x[..., 0], x[..., 1]),
    "gatv2": lambda block, x: gatv2_attention(block, x, jnp.sin(x), x[1]),
    "dot": lambda block, x: dot_attention(block, x, jnp.sin(x), jnp.cos(x)),
}
IN_SHORT = (("sum", "cpu"), ("max", "cpu"), ("sddmm", "cpu"), ("gat", "cpu"), ("sum", "xla"))
"""The cases that `make test` checks: kernels first."""


def cases(*ops: str) -> pytest.MarkDecorator:
    """Ops with each implementation; most of them belong to the matrix."""
    made = [
        pytest.param(
            op,
            implementation,
            marks=([needs_kernels] if implementation == "cpu" else [])
            + ([] if (op, implementation) in IN_SHORT else [pytest.mark.slow]),
        )
        for op in ops
        for implementation in ("cpu", "xla")
    ]
    return pytest.mark.parametrize(("op", "implementation"), made)


def case(op: str, implementation: str) -> tuple[Callable[[jax.Array], jax.Array], jax.Array]:
    """An op as a function of one array, and the array."""
    # Sums of both ends have no CPU kernel: the graph's own choice falls back to XLA.
    block = with_implementation(BLOCK, implementation)
    x = jnp.asarray(np.random.default_rng(0).standard_normal(ROWS), jnp.float32)
    return lambda x: OPS[op](block, x), x


def loss_of(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    # Slots and rows of padding hold 0 in every result.
    return lambda x: jnp.sum(function(x) ** 3)


@pytest.mark.expensive
@cases(*OPS)
def test_products_with_a_hessian_are_differences_of_gradients(op: str, implementation: str) -> None:
    function, x = case(op, implementation)
    gradient = jax.jit(jax.grad(loss_of(function)))
    v = jnp.asarray(np.random.default_rng(1).standard_normal(ROWS), jnp.float32)
    product = jax.jit(lambda x: jax.jvp(gradient, (x,), (v,))[1])(x)
    step = 1e-3
    above, below = (np.asarray(gradient(x + sign * step * v), np.float64) for sign in (1, -1))
    expected = (above - below) / (2 * step)
    np.testing.assert_allclose(product, expected, atol=2e-2 * np.abs(expected).max())


@pytest.mark.expensive
@cases("sum", "max", "sddmm", "gat")
def test_a_mapped_op_is_the_op_of_each(op: str, implementation: str) -> None:
    function, x = case(op, implementation)
    gradient = jax.grad(loss_of(function))
    some = jnp.stack([x, 2 * x, x - 1])
    for run in (function, gradient):
        expected = jnp.stack([run(each) for each in some])
        np.testing.assert_allclose(jax.vmap(run)(some), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.expensive
@cases(*OPS)
def test_what_is_not_defined_is_refused_in_our_words(op: str, implementation: str) -> None:
    function, x = case(op, implementation)
    loss = loss_of(function)
    forward = r"forward mode \(jax\.jvp.*jax\.jvp\(jax\.grad\(f\)"
    with pytest.raises(TypeError, match=forward):
        jax.jvp(loss, (x,), (x,))
    with pytest.raises(TypeError, match=forward):
        jax.jit(lambda x: jax.jvp(loss, (x,), (x,)))(x)
    with pytest.raises(TypeError, match=r"reverse mode over reverse mode.*jax\.hessian"):
        jax.grad(lambda x: jnp.sum(jax.grad(loss)(x) ** 2))(x)


@pytest.mark.parametrize("parts", [0, 1, 3])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_products_with_the_hessian_of_sage_on_kernels(reduce: str, parts: int) -> None:
    """On a graph (0 parts) and on shards, for which no implementation is named."""
    graph = crooked_graph(30)
    rng = np.random.default_rng(4)
    senders, receivers, nodes = graph.senders, graph.receivers, graph.num_nodes
    with jax.enable_x64(True):
        x, v = jnp.asarray(rng.standard_normal((2, nodes, 5)))
        params = {
            name: jnp.asarray(rng.standard_normal((5, 4)))
            for name in ("self_kernel", "neighbor_kernel")
        }
        where: Any = graph
        if parts:
            where = shard(graph, partition(graph, parts, "hash"), make_mesh(parts))

        def plain(params: Any, x: jax.Array) -> jax.Array:
            weight = 1.0
            if reduce == "mean":
                weight = 1 / np.bincount(receivers, minlength=nodes)[receivers, None]
            sums = jnp.zeros_like(x).at[receivers].add(weight * x[senders])
            y = x @ params["self_kernel"] + sums @ params["neighbor_kernel"]
            return jnp.sum(jnp.tanh(y) ** 2)

        def energy(params: Any, x: jax.Array) -> jax.Array:
            if not parts:
                return jnp.sum(jnp.tanh(sage_conv(params, where, x, reduce=reduce)) ** 2)

            def on_shard(params: Any, x: jax.Array, shard: Any) -> jax.Array:
                y = sage_conv(params, shard, x[shard.node_ids], reduce=reduce)
                return shard.sum(jnp.sum(shard.mask_rows(jnp.tanh(y) ** 2)))

            return spmd(on_shard)(params, x, where)

        none = jax.tree.map(jnp.zeros_like, params)
        found, expected = (
            jax.jvp(jax.grad(function, (0, 1)), (params, x), (none, v))[1]
            for function in (energy, plain)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), found, expected)
