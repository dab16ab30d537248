"""A model with one neighbourhood for each layer equals the model on the whole graph."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph import Graph, TypedGraph, nn
from jaxgraph.parallel import bipartite, gather_rows, make_mesh, shard, spmd
from tests.tolerance import assert_close

NODES, WIDTH, CLASSES = 50, 6, 4
MODELS = {
    "gcn": (nn.GCN, {"norm": "batch"}),
    "sage": (nn.GraphSAGE, {"residual": True, "norm": "layer"}),
    "gat": (nn.GAT, {"num_heads": 2, "jumping": "cat"}),
}


def small_graph() -> Graph:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NODES, 5)).astype(np.float32)
    return Graph.from_edges(*rng.integers(0, NODES, (2, 140)), num_nodes=NODES, nodes=x)


def blocks_of(graph: Graph, seeds: np.ndarray, layers: int) -> tuple[list[Any], np.ndarray]:
    """The edges that the rows of some nodes need in each layer, and the first layer's nodes."""
    loops, found = np.ones(NODES), []
    loops[graph.senders[graph.senders == graph.receivers]] = 0
    # A layer adds the self-loops of receivers, which come first among the senders.
    degree = graph.in_degrees() + loops
    for _ in range(layers):
        own = np.isin(graph.receivers, seeds)
        senders, receivers = graph.senders[own], graph.receivers[own]
        nodes = np.concatenate([seeds, np.setdiff1d(senders, seeds)])
        place = np.full(NODES, -1)
        place[nodes] = np.arange(len(nodes))
        block = bipartite(
            place[senders],
            place[receivers],
            num_senders=len(nodes),
            num_receivers=len(seeds),
            sender_ids=nodes,
            receiver_ids=seeds,
            sender_degree=degree[nodes] - np.where(np.isin(nodes, seeds), loops[nodes], 0),
            receivers_first=True,
        )
        found.insert(0, block)
        seeds = nodes
    return found, seeds


@pytest.mark.expensive
@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_some_nodes_give_their_rows_of_the_whole_graph(name: str) -> None:
    graph, seeds = small_graph(), np.array([3, 17, 40])
    kind, options = MODELS[name]
    model = kind(5, WIDTH, CLASSES, num_layers=3, rngs=nnx.Rngs(0), **options)
    blocks, nodes = blocks_of(graph, seeds, 3)
    definition, state, rest = nnx.split(model, nnx.Param, ...)

    def loss(state: Any, where: Any, x: Any, rows: Any) -> Any:
        y = nnx.merge(definition, state, rest)(where, x)
        y = y if rows is None else y[rows]
        return jnp.sum(y * jnp.sin(jnp.arange(y.size)).reshape(y.shape)), y

    assert graph.nodes is not None
    x = jnp.asarray(graph.nodes)
    run = jax.value_and_grad(loss, has_aux=True)
    (_, expected), of_params = run(state, graph, x, seeds)
    (_, y), found = jax.jit(lambda s, b, x: run(s, b, x, None))(state, blocks, x[nodes])
    assert_close(y, expected, reduction_length=200)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(of_params), strict=True):
        assert_close(one, other, reduction_length=2000)


@pytest.mark.parametrize(("kind", "options"), [(nn.GCN, {"jumping": "cat"}), (nn.GCNII, {})])
def test_one_relation_for_all_layers_gives_the_rows_of_the_graph(
    kind: Any, options: dict[str, Any]
) -> None:
    """Linear maps before and after the convolutions act on its nodes."""
    graph = small_graph()
    model = kind(5, WIDTH, CLASSES, num_layers=3, rngs=nnx.Rngs(0), **options)
    sharded = shard(TypedGraph.of(graph), None, make_mesh(1))

    def of_relation(model: Any, shard: Any) -> jax.Array:
        return model(shard.relation("edge"), shard.nodes)

    assert graph.nodes is not None
    rows = spmd(of_relation, outputs="rows")(model, sharded)
    expected = model(graph, jnp.asarray(graph.nodes))
    assert_close(gather_rows(rows, sharded, "node"), expected, reduction_length=2000)


def test_neighbourhoods_that_do_not_fit_are_refused() -> None:
    graph = small_graph()
    model = nn.GCN(5, WIDTH, CLASSES, num_layers=3, rngs=nnx.Rngs(0))
    blocks, nodes = blocks_of(graph, np.array([3]), 3)
    assert graph.nodes is not None
    x = jnp.asarray(graph.nodes[nodes])
    with pytest.raises(ValueError, match="2 neighbourhoods for 3 layers"):
        model(blocks[:2], x)
    with pytest.raises(ValueError, match="neighbourhood 0 has"):
        model([blocks[0], blocks[0], blocks[2]], x)
    with pytest.raises(ValueError, match=r"3 layers .*one Bipartite"):
        model(blocks[0], x)
