"""Named arrays on devices: every mode, several parts per device, padding, abstract sources."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from jaxgraph import Graph
from jaxgraph.parallel import common_shapes, make_mesh, place, shard, spmd
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.parallel.whole_graph import on_device
from jaxgraph.partition import partition
from tests.strategies import complete, random_edges

WAYS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "one": (1, 1, {"mode": "domain"}),
    "domain": (4, 4, {"mode": "domain"}),
    "sar": (4, 4, {"mode": "sar"}),
    "several": (4, 2, {"mode": "sar"}),
    "p3": (2, 2, {"mode": "p3", "rest": "sar"}),
    "p3-pushed": (2, 2, {"mode": "p3", "topology": "pushed"}),
}


def named_graph(num_nodes: int = 45, seed: int = 0) -> Graph:
    rng = np.random.default_rng(seed)
    made = complete(*random_edges(num_nodes, 4 * num_nodes, seed), num_nodes, "random", seed)
    return made.with_nodes(
        target=rng.standard_normal((num_nodes, 2, 3)), rank=np.arange(1, num_nodes + 1)
    ).with_edges(length=rng.standard_normal(made.num_edges), open=rng.random(made.num_edges) < 0.7)


def weighted(neighborhood: Any) -> jax.Array:
    """y_i = sum over open edges e: j -> i of length_e rank_j target_j[0]."""
    values = neighborhood.node_data["target"][:, 0] * neighborhood.node_data["rank"][:, None]
    return jg.parallel.propagate(
        neighborhood,
        lambda s, r, e: s * jnp.where(e["open"], e["length"], 0)[:, None],
        values,
        None,
        dict(neighborhood.edge_data),
    )


def expected(graph: Graph) -> np.ndarray:
    found = np.zeros((graph.num_nodes, 3))
    values = graph.node_data["target"][:, 0] * graph.node_data["rank"][:, None]
    coefficients = graph.edge_data["length"] * graph.edge_data["open"]
    np.add.at(found, graph.receivers, values[graph.senders] * coefficients[:, None])
    return found


@pytest.mark.expensive
@pytest.mark.parametrize("way", WAYS)
def test_named_arrays_reach_every_shard(way: str) -> None:
    parts, devices, options = WAYS[way]
    graph = named_graph()
    sharded = shard(graph, partition(graph, parts, method="hash"), make_mesh(devices), **options)
    shards = sharded.shards
    assert shards.node_data["target"].dtype == np.float32
    assert shards.edge_data["length"].shape[1:] == (shards.edge_slots,)
    result = jg.parallel.gather_rows(spmd(weighted, outputs="rows")(sharded), sharded)
    np.testing.assert_allclose(result, expected(graph), rtol=2e-4, atol=2e-4)
    padding = ~np.asarray(shards.node_mask)
    assert padding.any() or parts == 1
    assert not np.asarray(shards.node_data["rank"])[padding].any()


def test_graphs_padded_to_the_same_shapes_and_abstract_ones_run_one_program() -> None:
    pairs = [(g, partition(g, 2, method="hash")) for g in (named_graph(45), named_graph(52, 1))]
    shapes, mesh = common_shapes(*pairs), make_mesh(2)
    abstract = place(AbstractSource(shapes), mesh)
    compiled = jax.jit(spmd(weighted, outputs="rows")).lower(abstract).compile()
    for graph, parts in pairs:
        sharded = shard(graph, parts, mesh, pad_to=shapes)
        result = jg.parallel.gather_rows(compiled(sharded), sharded)
        np.testing.assert_allclose(result, expected(graph), rtol=2e-4, atol=2e-4)
    # A sharded graph holds them in 32 bits, and its shapes serve a graph that has 64.
    small = shard(*pairs[0], mesh)
    assert shard(*pairs[0], mesh, pad_to=small).manifest == small.manifest
    with pytest.raises(ValueError, match=r"graphs with and without node_data\.rank"):
        shard(pairs[0][0].with_nodes(rank=None), pairs[0][1], mesh, pad_to=shapes)


@pytest.mark.parametrize("value", [np.int64(2**40), np.float64(1e200)])
def test_values_that_a_device_cannot_hold_are_refused(value: Any) -> None:
    graph = named_graph().with_nodes(big=np.full(45, value))
    for function in (lambda: shard(graph, None, make_mesh(1)), lambda: on_device(graph)):
        with pytest.raises(ValueError, match=r"node_data\['big'\]: values run.*jax_enable_x64"):
            function()
