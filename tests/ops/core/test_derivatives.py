"""Second derivatives, maps, and our errors for missing ones, for every op and for models."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.layers import sage_conv
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.parallel import make_mesh, shard, spmd
from jaxgraph.partition import partition
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import place_block
from tests.ops.cases import CASES, placed_arrays
from tests.strategies import SMALL_GRAPHS
from tests.training import crooked_graph

PLACED = place_block(SMALL_GRAPHS[3])
NAMES = ("sum", "mean", "max", "products", "sums-of-ends", "edge-softmax", "gat", "gatv2", "dot")
OPS = {case.name: replace(case, ties=False, scale=1.0) for case in CASES if case.name in NAMES}


def cases(*ops: str) -> pytest.MarkDecorator:
    """Ops with each implementation."""
    made = [
        pytest.param(op, name, marks=[needs_kernels] if name == "cpu" else [])
        for op in ops
        for name in ("cpu", "xla")
    ]
    return pytest.mark.parametrize(("op", "implementation"), made)


def case(op: str, implementation: str) -> tuple[Callable[..., jax.Array], list[jax.Array]]:
    """An op as a function of a list of arrays, and the arrays."""
    # Sums of both ends have no CPU kernel: the graph's own choice falls back to XLA.
    block, given = with_implementation(PLACED.block, implementation), OPS[op]
    *arrays, _ = placed_arrays(given, PLACED, np.float32)
    return lambda arrays: given.op(block, *arrays, **given.options), arrays


def loss_of(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    # Slots and rows of padding hold 0 in every result.
    return lambda arrays: jnp.sum(function(arrays) ** 3)


def moved(arrays: Any, other: Any, step: float) -> Any:
    return jax.tree.map(lambda x, v: x + step * v, arrays, other)


@pytest.mark.expensive
@cases(*OPS)
def test_products_with_a_hessian_are_differences_of_gradients(op: str, implementation: str) -> None:
    function, x = case(op, implementation)
    gradient = jax.jit(jax.grad(loss_of(function)))
    rng = np.random.default_rng(1)
    v = [jnp.asarray(rng.standard_normal(each.shape), jnp.float32) for each in x]
    product = jax.jit(lambda x: jax.jvp(gradient, (x,), (v,))[1])(x)
    step = 1e-3
    ends = zip(gradient(moved(x, v, step)), gradient(moved(x, v, -step)), strict=True)
    expected = [(np.asarray(a, np.float64) - b) / (2 * step) for a, b in ends]
    most = max(np.abs(each).max() for each in expected)
    for found, wanted in zip(product, expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-2 * most)


@pytest.mark.expensive
@cases("sum", "max", "products", "gat")
def test_a_mapped_op_is_the_op_of_each(op: str, implementation: str) -> None:
    function, x = case(op, implementation)
    gradient = jax.grad(loss_of(function))
    each = [x, moved(x, x, 1), moved(x, x, -2)]
    some = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    for run in (function, gradient):
        expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(run, each))
        jax.tree.map(
            lambda mine, theirs: np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4),
            jax.vmap(run)(some),
            expected,
        )


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
        jax.grad(lambda x: jnp.sum(jax.grad(loss)(x)[0] ** 2))(x)


@pytest.mark.expensive
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
