"""Learned rows of nodes: each is where its node is, under any partition."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph.nn import NodeEmbedding
from jaxgraph.parallel import gather_rows, make_mesh, place_rows, shard, spmd
from jaxgraph.parallel.spmd import collect_rows, rows_prefix
from tests.parallel.test_typed_parts import AUTHORS, GRAPH
from tests.parallel.typed_shards import scattered
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


@pytest.mark.parametrize("parts", [1, 3])
def test_rows_of_a_set_follow_its_nodes(parts: int) -> None:
    """With 3 parts, papers and authors have equally many rows on a device."""
    sharded = shard(GRAPH, scattered(GRAPH, parts), make_mesh(parts))
    module = NodeEmbedding(AUTHORS, 4, table="author", rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(module)
    placed = place_rows(state, sharded)

    def step(state: Any, shard: Any) -> Any:
        authors = shard.tables["author"]

        def loss(state: Any) -> Any:
            rows = nnx.merge(graphdef, state)(shard)
            weighted = jnp.square(rows) * authors.node_ids[:, None]
            return shard.sum(jnp.sum(authors.mask_rows(weighted))), rows

        (_, rows), gradient = jax.value_and_grad(loss, has_aux=True)(state)
        return rows, gradient

    rows, gradient = spmd(step, outputs=("rows", rows_prefix(placed)))(placed, sharded)
    initial = np.asarray(module.rows.get_value())
    np.testing.assert_array_equal(gather_rows(rows, sharded, "author"), initial)
    of_rows = nnx.merge(graphdef, collect_rows(gradient, sharded)).rows.get_value()
    np.testing.assert_allclose(of_rows, 2 * initial * np.arange(AUTHORS)[:, None], rtol=1e-6)


def test_the_set_of_rows_is_one_of_the_graph() -> None:
    sharded = shard(GRAPH, None, make_mesh(1))
    wrong = nnx.state(NodeEmbedding(AUTHORS, 4, rngs=nnx.Rngs(0)))  # The target is "paper".
    with pytest.raises(ValueError, match=rf"{AUTHORS} rows for 47 nodes of 'paper'.*table="):
        place_rows(wrong, sharded)
    unknown = nnx.state(NodeEmbedding(AUTHORS, 4, table="venue", rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="the tables 'author', 'paper', and got 'venue'"):
        place_rows(unknown, sharded)


def test_rows_that_are_not_placed_are_refused() -> None:
    graphdef, state = nnx.split(embedding())
    arrays = jax.tree.map(jnp.asarray, nnx.to_pure_dict(state))

    def step(arrays: Any, shard: Any) -> jax.Array:
        local = nnx.merge(graphdef, state)
        local.rows = nnx.Param(arrays["rows"])
        return local(shard)

    with pytest.raises(ValueError, match=rf"has {NODES} rows .*place_rows\(state, sharded\)"):
        spmd(step, outputs="rows")(arrays, crooked_sharded(2, "hash", "sar"))
