"""Random bits of several sets: each has its own, on any number of devices the same."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph.layers import dropout_edge, gat_conv
from jaxgraph.layers.attention import gat_stages
from jaxgraph.nn import GCNConv, HeteroConv, SAGEConv, dropout
from jaxgraph.ops.core.randomness import edge_keep_mask, of_set
from jaxgraph.parallel import gather_rows, keep_edges, make_mesh, propagate, shard, spmd
from jaxgraph.parallel.conv_stages import run_together
from jaxgraph.typed_graph import TypedGraph
from tests.layers.neighborhood_cases import CASES
from tests.parallel.typed_shards import scattered
from tests.strategies import NUM_FEATURES

NODES, EDGES, RATE, KEY = 40, 200, 0.4, jax.random.key(5)
RNG = np.random.default_rng(0)
NAMES = ("reads", "likes")


def twins() -> TypedGraph:
    """Two sets of nodes that are equal, and two equal sets of edges from the one to the other."""
    x = RNG.normal(size=(NODES, NUM_FEATURES))
    edges = {"senders": RNG.integers(0, NODES, EDGES), "receivers": RNG.integers(0, NODES, EDGES)}
    nodes = {"user": {"nodes": x}, "item": {"nodes": x}}
    return TypedGraph(nodes, {("user", name, "item"): edges for name in NAMES})


GRAPH = twins()


def run(function: Any, parts: int, graph: TypedGraph = GRAPH, mode: str = "sar") -> Any:
    """Rows of items and of users in the graph's order, by the name of the set."""
    sharded = shard(graph, scattered(graph, parts), make_mesh(parts), mode)
    found = spmd(function, outputs="rows")(sharded)
    return {name: gather_rows(y, sharded, name.split()[0]) for name, y in found.items()}


def dropped(shard: Any) -> dict[str, jax.Array]:
    """Ones of each set of nodes, and sums over edges by relation, dropped by one key."""
    ones = {n: jnp.ones((t.num_rows, 8)) for n, t in shard.tables.items()}
    found = {n: dropout(shard.tables[n], y, KEY, rate=RATE) for n, y in ones.items()}
    x, params = (shard.tables["user"].nodes, shard.tables["item"].nodes), CASES["gat"].params
    for name, relation in shard.relations.items():
        one_of = {"dropout": RATE, "key": KEY, "add_self_loops": False}
        found[f"item {name}"] = gat_conv(params, relation, x, **one_of)
        keep = keep_edges(relation, KEY, RATE).astype(jnp.float32)
        found[f"item kept {name}"] = propagate(relation, lambda s, r, kept: kept, edge=keep)
    return found


@pytest.mark.law(5)
@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_sets_with_equal_ids_have_bits_of_their_own(mode: str) -> None:
    alone, several = run(dropped, 1), run(dropped, 3, mode=mode)
    for name, expected in alone.items():
        np.testing.assert_allclose(several[name], expected, atol=1e-5, err_msg=name)
    for one, other in (("user", "item"), ("item reads", "item likes")):
        # Of two draws of their own, half are alike.
        assert np.mean(alone[one] != alone[other]) > 0.4
    assert np.any(alone["item kept reads"] != alone["item kept likes"])


def test_sets_that_are_folded_together_keep_their_bits() -> None:
    def differences(shard: Any) -> dict[str, jax.Array]:
        x, params = (shard.tables["user"].nodes, shard.tables["item"].nodes), CASES["gat"].params
        options = {"dropout": RATE, "key": KEY, "add_self_loops": False}
        stages = gat_stages(params, **options)
        found = run_together([(stages, params, each, x) for each in shard.relations.values()])
        alone = [gat_conv(params, each, x, **options) for each in shard.relations.values()]
        pairs = zip(NAMES, found, alone, strict=True)
        return {f"item {name}": together - one for name, together, one in pairs}

    for parts in (1, 3):
        for difference in run(differences, parts).values():
            np.testing.assert_allclose(difference, 0, atol=1e-5)


@pytest.mark.expensive
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_set_of_edges_is_as_if_those_dropped_were_left_out(name: str, parts: int) -> None:
    rngs = nnx.Rngs(0)
    sizes = (NUM_FEATURES, 3)
    layer = HeteroConv({"reads": GCNConv(*sizes, rngs=rngs), "likes": SAGEConv(*sizes, rngs=rngs)})

    def outputs(shard: Any, *, drops: bool) -> Any:
        if drops:
            shard = dropout_edge(shard, KEY, rate=RATE, relation=name)
        return layer(shard, {name: table.nodes for name, table in shard.tables.items()})

    edges = GRAPH.edge_sets["user", name, "item"]
    ends, repetition = (edges.receivers, edges.senders), np.zeros(EDGES, np.int32)
    seen: dict[Any, int] = {}
    for at, pair in enumerate(zip(*ends, strict=True)):
        repetition[at] = seen[pair] = seen.get(pair, -1) + 1
    key = of_set(KEY, NAMES.index(name))
    keep = np.asarray(edge_keep_mask(key, *ends, repetition, 1, RATE)[:, 0])
    fewer = {"senders": edges.senders[keep], "receivers": edges.receivers[keep]}
    assert 0.3 < keep.mean() < 0.8
    sets = {**GRAPH.edge_sets, ("user", name, "item"): fewer}
    expected = run(partial(outputs, drops=False), 1, TypedGraph(GRAPH.node_sets, sets))
    found = run(partial(outputs, drops=True), parts)
    np.testing.assert_allclose(found["item"], expected["item"], atol=1e-5)


def test_one_of_several_sets_of_edges_is_named() -> None:
    shards: Any = shard(GRAPH, None, make_mesh(1)).shards
    with pytest.raises(ValueError, match=r"relations 'likes', 'reads', and none was named"):
        dropout_edge(shards, KEY, rate=RATE)
    with pytest.raises(ValueError, match="got 'buys'"):
        dropout_edge(shards, KEY, rate=RATE, relation="buys")
