"""Features that are aggregated once: training, evaluation and prediction equal those without."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.analysis import traffic
from jaxgraph.layers.aggregated import AggregatedFeatures
from jaxgraph.layers.aggregations import SymmetricSum
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.partition import partition
from jaxgraph.train import fit, loss_and_grad, predict
from jaxgraph.train.aggregates import LEAST_WIDTH, aggregate_once, with_aggregates
from tests.oracles.models import Model
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.tolerance import assert_close
from tests.train.small_model import (
    CLASSES,
    FEATURES,
    SmallNet,
    on_devices,
    random_partition,
    small_graph,
)
from tests.training import (
    crooked_graph,
    crooked_sharded,
    gradient_errors,
    mode_options,
    module_of,
    oracle_pass,
    poisoned,
    random_params,
    sharded_pass,
)

ADAM = optax.adam(0.02)
TOLERANCE = 2e-5


def make(name: str, hidden: int = 4, **options: Any) -> Any:
    return getattr(nn, name)(FEATURES, hidden, CLASSES, rngs=nnx.Rngs(0), **options)


# ------------------------------------------------------------------ the same numbers

MODELS = {
    "gcn": Model("gcn", norm="batch", residual=True),
    "gcn-no-loops": Model("gcn", add_self_loops=False),
    "sage": Model("sage", norm="batch"),
    "sage-max": Model("sage", reduce="max", residual=True),
    "gin": Model("gin", norm="layer"),
}


SHARED_COLUMNS: dict[str, Any] = {"mode": "p3", "feature_budget": 40_000, "chunks": 2}
"""Of four devices, two and two hold the same columns."""


@pytest.mark.expensive
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dropout", [0.0, 0.4], ids=["", "dropout"])
@pytest.mark.parametrize("mode", ["sar", "domain", "p3-sar", "p3-domain-pushed", "shared"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradient_are_those_of_the_reference(
    name: str, mode: str, dropout: float, train: bool
) -> None:
    by_column = mode not in ("sar", "domain")
    model = replace(MODELS[name], dropout=dropout)
    model = replace(model, residual=False) if by_column else model
    module = module_of(model, random_params(model))
    graph = crooked_graph(edge_weight=model.conv == "gcn")
    options = SHARED_COLUMNS if mode == "shared" else mode_options(mode)
    parts = 4 if mode == "shared" else 3
    plain = shard(graph, partition(graph, parts, "hash"), make_mesh(parts), **options)
    assert len(plain.mesh.axis_names) == (2 if mode == "shared" else 1)
    other = nn.GCN(NUM_FEATURES, 1, 1, rngs=nnx.Rngs(0))
    aggregates = module if module.first_aggregation is not None else None if by_column else other
    sharded = plain if aggregates is None else aggregate_once(aggregates, plain)
    actual = sharded_pass(module, sharded, train)
    errors = gradient_errors(actual, oracle_pass(model, random_params(model), graph, train))
    assert max(errors.values()) <= TOLERANCE, errors


def test_features_that_are_not_0_in_padding_reach_nothing() -> None:
    model = nn.GraphSAGE(NUM_FEATURES, 4, NUM_CLASSES, norm="batch", rngs=nnx.Rngs(0))
    sharded = crooked_sharded(4, "hash", "domain")
    passes = [
        sharded_pass(model, aggregate_once(model, graph)) for graph in (sharded, poisoned(sharded))
    ]
    assert np.isfinite(passes[0].loss)
    assert passes[0].loss == passes[1].loss
    jax.tree.map(np.testing.assert_array_equal, passes[0].gradients, passes[1].gradients)


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["sar", "domain", "p3-domain", "stream"])
def test_all_steps_of_sgc_are_aggregated_once(mode: str) -> None:
    model = nn.SGC(NUM_FEATURES, NUM_CLASSES, steps=3, rngs=nnx.Rngs(0))
    graph = crooked_graph(edge_weight=True)
    mesh = make_mesh(1 if mode == "stream" else 3)
    plain = shard(graph, partition(graph, 3, "hash"), mesh, **mode_options(mode))
    aggregated = aggregate_once(model, plain)
    loss, gradient = loss_and_grad(model, plain)
    found, gradient_of_aggregated = loss_and_grad(model, aggregated)
    assert_close(found, loss, reduction_length=1000)
    for mine, other in zip(*map(jax.tree.leaves, (gradient_of_aggregated, gradient)), strict=True):
        assert_close(mine, other, reduction_length=1000)
    assert_close(predict(model, aggregated), predict(model, graph), reduction_length=1000)


def test_training_of_sgc_sends_no_rows() -> None:
    programs: list[Any] = []
    model = nn.SGC(FEATURES, CLASSES, rngs=nnx.Rngs(0))
    fit(model, on_devices(small_graph(), 2), ADAM, epochs=2, on_compile=programs.extend)
    # Gradients and metrics alone are summed over the devices.
    assert traffic(programs[0]).keys() == {"all-reduce"}


# ------------------------------------------------------------------ models that get it


def test_fit_aggregates_once_unless_told_not_to() -> None:
    sharded = on_devices(small_graph(), 2)

    def sent(**options: Any) -> int:
        programs: list[Any] = []
        fit(make("GCN"), sharded, ADAM, epochs=2, on_compile=programs.extend, **options)
        return sum(traffic(programs[0]).values())

    assert sent() < sent(aggregate_once=False)


def test_models_that_say_nothing_of_their_first_layer_are_given_features() -> None:
    sharded = on_devices(small_graph(), 2)
    aggregated = aggregate_once(make("GCN"), sharded)
    model = SmallNet()
    expected, _ = loss_and_grad(model, sharded)
    assert float(loss_and_grad(model, aggregated)[0]) == float(expected)
    fit(model, aggregated, ADAM, epochs=1)


@pytest.mark.parametrize(
    ("options", "is_counted", "epochs", "pays"),
    [
        # Once 6 columns; in each of 3 passes, or in evaluation alone, 1 column.
        ({"hidden": 1}, False, 2, True),
        ({"hidden": 1}, False, 1, False),
        ({"hidden": 1, "dropout": 0.5}, False, 6, True),
        ({"hidden": 1, "dropout": 0.5}, False, 5, False),
        ({"hidden": FEATURES}, False, 1, True),
        # With 4 edges to a node, 6 * 5 numbers of it; in a pass 5, and 6 * 2 for a copy.
        ({"hidden": 1}, True, 1, True),
        ({"hidden": 1, "dropout": 0.5}, True, 2, True),
        ({"hidden": 1, "dropout": 0.5}, True, 1, False),
    ],
)
def test_it_pays_where_fewer_numbers_are_moved(
    options: dict[str, Any], is_counted: bool, epochs: int, pays: bool
) -> None:
    graph = on_devices(small_graph(), 2)
    assert FEATURES == 6 and graph.counts is not None
    assert graph.counts.num_edges == 4 * graph.counts.num_nodes
    graph = graph if is_counted else replace(graph, counts=None)
    (found,) = with_aggregates(make("GCN", **options), (graph,), epochs)
    assert isinstance(found.shards.nodes, AggregatedFeatures) == pays


def test_graphs_without_features_and_attention_are_left_alone() -> None:
    graph, bare = (on_devices(each, 2) for each in (small_graph(), small_graph(nodes=None)))
    for model, given in ((make("GAT"), graph), (make("GCN"), bare), (SmallNet(), graph)):
        assert with_aggregates(model, (given,), 100) == (given,)


# ------------------------------------------------------------------ the aggregated graph


def test_features_are_held_twice_where_they_share_a_product() -> None:
    sharded: Any = on_devices(small_graph(), 2)
    once: Any = aggregate_once(make("GCN"), sharded).shards.nodes
    assert once.features is sharded.shards.nodes and once.aggregation == SymmetricSum()
    certain: Any = aggregate_once(make("GraphSAGE"), sharded).shards.nodes
    random: Any = aggregate_once(make("GraphSAGE", dropout=0.5), sharded).shards.nodes
    assert random.aggregate.shape == sharded.shards.nodes.shape
    assert certain.aggregate.shape[-1] == 2 * FEATURES and certain.is_joined_with_features
    np.testing.assert_array_equal(certain.aggregate[..., :FEATURES], sharded.shards.nodes)
    np.testing.assert_array_equal(certain.aggregate_alone(), random.aggregate)


def test_features_wider_than_are_aggregated_at_once() -> None:
    rng = np.random.default_rng(1)
    graph = small_graph(40)
    graph = graph.replace(nodes=rng.standard_normal((40, LEAST_WIDTH + 9)).astype(np.float32))
    model = nn.GCN(LEAST_WIDTH + 9, 4, CLASSES, rngs=nnx.Rngs(0))
    sharded = shard(graph, random_partition(graph, 3), make_mesh(3))
    plain, aggregated = (predict(model, each) for each in (sharded, aggregate_once(model, sharded)))
    assert_close(aggregated, plain, reduction_length=LEAST_WIDTH)
