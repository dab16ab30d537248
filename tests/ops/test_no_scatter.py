"""No scatter and no array of edges and features: in no traced program, and in no compiled one."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops import aggregate, gat_attention
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.parallel import make_mesh, propagate, shard, spmd
from jaxgraph.partition.assignment import Partition
from tests.compilation import AS_USERS_DO, equations
from tests.ops.blocks import place_block
from tests.ops.cases import CASES, Case, placed_arrays, run_case
from tests.strategies import SMALL_GRAPHS, complete, random_edges

HEADS, FEATURES = 2, 4
KEY = jax.random.key(0)


def scatters(function: Any, *arguments: Any) -> set[str]:
    """The names of the scatters in a function, as traced, as lowered and as compiled."""
    traced = jax.jit(function).trace(*arguments)
    names = {each.primitive.name for each in equations(traced.jaxpr.jaxpr)}
    found = {name for name in names if "scatter" in name}
    # `reduce-scatter` is a collective; `scatter.12` would be the name of one, not the operation.
    lowered = traced.lower()
    texts = lowered.as_text(), lowered.compile(compiler_options=AS_USERS_DO).as_text()
    pattern = r"stablehlo\.(?:select_and_)?scatter|(?<!reduce-)\bscatter\("
    return found.union(*(re.findall(pattern, text) for text in texts if text))


def test_the_search_finds_scatters() -> None:
    indices = jnp.arange(3)

    def inside_a_loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 9, lambda i, y: y.at[indices * i % 5].add(1.0), x)

    found = scatters(inside_a_loop, jnp.zeros(5))
    assert any("scatter" in name for name in found if "stablehlo" not in name)
    assert any("stablehlo" in name for name in found)
    gradient = jax.grad(lambda x: jnp.sum(x[indices] ** 2))
    assert "scatter(" in scatters(gradient, jnp.zeros(100_000))


PORTABLE: Any = {"implementation": "xla"}
PLACED = place_block(SMALL_GRAPHS[-1])


@pytest.mark.expensive
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_op_scatters_in_either_direction(case: Case) -> None:
    *arrays, cotangent = placed_arrays(case, PLACED, np.float32)
    block = with_implementation(PLACED.block, "xla")
    assert scatters(partial(run_case, case), block, arrays, cotangent) == set()


@pytest.mark.expensive
@pytest.mark.parametrize("implementation", ["xla", None])
@pytest.mark.parametrize("backward", [False, True])
def test_few_rows_of_many_wide_edges_take_little_memory(
    implementation: Any, backward: bool
) -> None:
    """100,000 edges of 65,536 features between 200 nodes."""
    nodes, features = 200, 1 << 16
    placed = place_block(complete(*random_edges(nodes, 100_000, seed=0), nodes, "dense"))
    x = jax.ShapeDtypeStruct((placed.block.receiver_rows, features), jnp.float32)

    def reduce(x: jax.Array) -> jax.Array:
        return aggregate(placed.block, x, implementation=implementation)

    run = jax.grad(lambda x: (reduce(x) ** 2).sum()) if backward else reduce
    memory = jax.jit(run).lower(x).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 4.5 * x.size * 4


@pytest.mark.expensive
def test_attention_stores_no_array_of_edges_and_features() -> None:
    nodes, count, heads, features = 512, 8192, 2, 64
    placed = place_block(complete(*random_edges(nodes, count, seed=1), nodes, "dense"))
    values = jnp.ones((placed.block.receiver_rows, heads, features))
    logits = values[..., 0]

    def both(*arrays: jax.Array) -> Any:
        # Outputs are used twice: by the caller and by the backward.
        y, pull = jax.vjp(partial(gat_attention, placed.block, **PORTABLE), *arrays)
        return y, pull(y)

    memory = jax.jit(both).lower(values, logits, logits).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < count * heads * features * 4


def plain_sum(kernel: jax.Array, own: Any) -> jax.Array:
    """Its backward pushes gradients."""
    return propagate(own, lambda s, r, e: s, own.nodes @ kernel)


def learned(kernel: jax.Array, own: Any, reduce: str = "sum") -> jax.Array:
    """Its backward fetches the senders again, and gives edges and parameters a gradient."""

    def message(sender: jax.Array, receiver: jax.Array, edge: jax.Array) -> jax.Array:
        return jnp.tanh(sender @ kernel + receiver * edge[:, None])

    weight = jnp.sum(kernel) * own.edge_weight
    return propagate(own, message, own.nodes, own.nodes @ kernel, weight, reduce=reduce)


def attention(kernel: jax.Array, own: Any) -> jax.Array:
    """Its backward runs where the senders are."""
    values = (own.nodes @ kernel).reshape(-1, HEADS, FEATURES)
    logits = jnp.sum(values, -1)

    def message(sender: Any, receiver: jax.Array, edge: None) -> Any:
        return jax.nn.leaky_relu(sender[1] + receiver), sender[0]

    options: Any = {"reduce": "softmax", "self_loops": True, "dropout": 0.3, "key": KEY}
    return propagate(own, message, (values, logits), logits, **options)


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("layer", "mode", "prefetch"),
    [
        (plain_sum, "sar", False),
        (learned, "sar", False),
        (attention, "domain", False),
        pytest.param(attention, "sar", True, marks=pytest.mark.slow),
        pytest.param(partial(learned, reduce="max"), "domain", False, marks=pytest.mark.slow),
    ],
)
def test_no_schedule_scatters_in_either_direction(layer: Any, mode: str, prefetch: bool) -> None:
    graph = complete(*random_edges(60, 400, seed=0), 60, "small", edge_data=True)
    parts = Partition(np.arange(60, dtype=np.int32) % 3, 3, "striped")
    sharded = shard(graph, parts, make_mesh(3), mode, prefetch=prefetch)
    kernel = jnp.ones((graph.num_features, HEADS * FEATURES))

    @spmd
    def loss(kernel: jax.Array, own: Any) -> jax.Array:
        y = layer(kernel, own)
        mask = own.node_mask.reshape(-1, *(1,) * (y.ndim - 1))
        return own.sum(jnp.sum(jnp.where(mask, y, 0) ** 2))

    assert scatters(jax.value_and_grad(loss), kernel, sharded) == set()
