"""Dropping edges: weighted degrees, features with their aggregate, and layers that refuse it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import layers, nn
from jaxgraph.layers import dropout_edge
from jaxgraph.layers.aggregated import AggregatedFeatures
from jaxgraph.layers.aggregations import NeighborReduction
from jaxgraph.ops import sddmm
from jaxgraph.parallel import bipartite, keep_edges, propagate, spmd
from jaxgraph.train import fit
from tests.layers.convolution_cases import TERMS, refused
from tests.layers.neighborhood_cases import CASES, of
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import crooked_graph, crooked_sharded

KEY = jax.random.key(5)
SAGE = of("sage", 7).params
drop = partial(dropout_edge, key=KEY, rate=0.4)


def test_a_graph_is_as_if_its_edges_were_left_out() -> None:
    """Weighted degrees among its data; twice dropped is dropped by both keys."""
    graph = crooked_graph(edge_weight=True)
    other = jax.random.key(6)
    keep = np.asarray(keep_edges(graph, KEY, 0.4) & keep_edges(graph, other, 0.2))
    assert graph.edge_weight is not None and 0.3 < keep.mean() < 0.7
    fewer = graph.replace(
        senders=graph.senders[keep],
        receivers=graph.receivers[keep],
        edge_weight=graph.edge_weight[keep],
    )
    params = CASES["gcn-narrow"].params
    dropped = dropout_edge(drop(graph), other, rate=0.2)
    x: Any = graph.nodes
    expected = layers.gcn_conv(params, fewer, x)
    assert_close(layers.gcn_conv(params, dropped, x), expected, reduction_length=TERMS)
    dropped, fewer = dropped.replace(edge_weight=None), fewer.replace(edge_weight=None)
    case = CASES["gin"]
    expected = case.conv(case.params, fewer, x)
    assert_close(case.conv(case.params, dropped, x), expected, reduction_length=TERMS)


def test_an_aggregate_of_all_edges_is_not_taken() -> None:
    graph, mean = crooked_graph(), NeighborReduction("mean")
    x = jnp.asarray(graph.nodes)
    shard = drop(graph)
    of_all = propagate(graph, lambda s, r, e: s, x, reduce="mean")
    for aggregate in (of_all, jnp.concatenate((x, of_all), 1)):
        given = AggregatedFeatures(x, aggregate, mean)
        found = layers.sage_conv(SAGE, shard, given)
        assert_close(found, layers.sage_conv(SAGE, shard, x), reduction_length=TERMS)


class Dropping(nn.GraphSAGE):
    """Drops other edges in every epoch."""

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        if train:
            shard = dropout_edge(shard, jax.random.fold_in(key, 99), rate=0.4)
        return super().__call__(shard, x, key=key, train=train)


@pytest.mark.slow
def test_training_is_the_same_on_one_device_and_on_three() -> None:
    """Also where `fit` has aggregated the features, of all edges, beforehand."""

    def losses(model: type[nn.GraphSAGE], num_parts: int) -> list[float]:
        made = model(NUM_FEATURES, 7, NUM_CLASSES, num_layers=2, rngs=nnx.Rngs(0))
        sharded = crooked_sharded(num_parts, "hash", "sar")
        history = fit(made, sharded, optax.sgd(0.1), epochs=3)
        return [record.loss for record in history.records]

    alone = losses(Dropping, 1)
    assert_close(losses(Dropping, 3), alone, reduction_length=TERMS)
    assert abs(losses(nn.GraphSAGE, 1)[0] - alone[0]) > 1e-3


REFUSED = {
    "gat": ("attention runs over all edges.*pass dropout= to its layer", CASES["gat"]),
    "gatv2": ("attention runs over all edges", CASES["gatv2"]),
    "transformer": ("attention runs over all edges", CASES["transformer"]),
    "sage-max": ("a maximum or minimum runs over all edges", CASES["sage-max"]),
    "pna": ("a maximum or minimum runs over all edges", CASES["pna"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_do_not_sum_refuse_it(name: str) -> None:
    message, case = REFUSED[name]
    refused(ValueError, message, lambda s: case.conv(case.params, drop(s), s.nodes))


def test_what_cannot_drop_edges_says_so() -> None:
    refused(
        ValueError,
        "an op on edge values runs over all edges",
        lambda s: sddmm(drop(s), s.nodes, s.nodes),
    )
    refused(
        ValueError,
        "this reduction runs over all edges",
        lambda s: propagate(drop(s), lambda s, r, e: s, s.nodes, self_loops=True),
    )
    block: Any = bipartite([0], [1], num_senders=2, num_receivers=2)
    with pytest.raises(ValueError, match="given a Bipartite; expected a graph or the shard"):
        drop(block)
    with pytest.raises(ValueError, match="expected a probability of dropping"):
        dropout_edge(crooked_graph(), KEY, rate=1.0)
    with pytest.raises(ValueError, match="an aggregation of features that are split by column"):
        spmd(lambda s: layers.sage_conv(SAGE, drop(s), s.nodes), outputs="rows")(
            crooked_sharded(4, "hash", "p3-sar")
        )
