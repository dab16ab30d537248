"""Learned rows of nodes: each is where its node is, under any partition."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph.nn import NodeEmbedding
from jaxgraph.parallel import gather_rows, place_rows, spmd
from jaxgraph.parallel.spmd import collect_rows, rows_prefix
from tests.training import crooked_graph, crooked_sharded

NODES = crooked_graph().num_nodes


def embedding() -> NodeEmbedding:
    return NodeEmbedding(NODES, 4, rngs=nnx.Rngs(0))


def test_initial_rows() -> None:
    rows = np.asarray(NodeEmbedding(3000, 16, rngs=nnx.Rngs(0)).rows.get_value())
    assert rows.shape == (3000, 16) and rows.dtype == np.float32
    assert abs(rows.std() - 0.25) < 0.01


@pytest.mark.parametrize(("num_parts", "method"), [(1, "hash"), (3, "hash"), (4, "metis")])
def test_values_and_gradients_follow_their_nodes(num_parts: int, method: str) -> None:
    module = embedding()
    graphdef, state = nnx.split(module)
    sharded = crooked_sharded(num_parts, method, "sar")
    placed = place_rows(state, sharded)

    def step(state: Any, shard: Any) -> Any:
        def loss(state: Any) -> Any:
            rows = nnx.merge(graphdef, state)(shard)
            weighted = jnp.square(rows) * shard.node_ids[:, None]
            return shard.sum(jnp.sum(shard.mask_rows(weighted))), rows

        (_, rows), gradient = jax.value_and_grad(loss, has_aux=True)(state)
        return rows, gradient

    outputs = ("rows", rows_prefix(placed))
    rows, gradient = spmd(step, outputs=outputs)(placed, sharded)
    initial = np.asarray(module.rows.get_value())
    np.testing.assert_array_equal(gather_rows(rows, sharded), initial)
    of_rows = nnx.merge(graphdef, collect_rows(gradient, sharded)).rows.get_value()
    np.testing.assert_allclose(of_rows, 2 * initial * np.arange(NODES)[:, None], rtol=1e-6)


def test_rows_that_are_not_placed_are_refused() -> None:
    graphdef, state = nnx.split(embedding())
    arrays = jax.tree.map(jnp.asarray, nnx.to_pure_dict(state))

    def step(arrays: Any, shard: Any) -> jax.Array:
        local = nnx.merge(graphdef, state)
        local.rows = nnx.Param(arrays["rows"])
        return local(shard)

    with pytest.raises(ValueError, match=rf"has {NODES} rows .*place_rows\(state, sharded\)"):
        spmd(step, outputs="rows")(arrays, crooked_sharded(2, "hash", "sar"))
