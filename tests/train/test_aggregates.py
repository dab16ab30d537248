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
from jaxgraph.parallel import make_mesh, place, shard
from jaxgraph.parallel.placement import AbstractSource
from jaxgraph.partition import partition
from jaxgraph.train import compile_train_step, fit, loss_and_grad, predict
from jaxgraph.train.aggregates import LEAST_WIDTH, aggregate_once, with_aggregates
from tests.oracles.models import Model
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.tolerance import assert_close
from tests.train.small_model import (
    CLASSES,
    FEATURES,
    SmallNet,
    memory_of,
    on_devices,
    random_partition,
    small_graph,
)
from tests.training import (
    crooked_graph,
    crooked_sharded,
    gradient_errors,
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


@pytest.mark.expensive
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dropout", [0.0, 0.4], ids=["", "dropout"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradient_are_those_of_the_reference(
    name: str, dropout: float, train: bool
) -> None:
    model = replace(MODELS[name], dropout=dropout)
    module = module_of(model, random_params(model))
    has_weights = model.conv == "gcn"
    plain = crooked_sharded(3, "hash", "sar", edge_weight=has_weights)
    other = nn.GCN(NUM_FEATURES, 1, 1, rngs=nnx.Rngs(0))
    sharded = aggregate_once(other if module.first_aggregation is None else module, plain)
    actual = sharded_pass(module, sharded, train)
    graph = crooked_graph(edge_weight=has_weights)
    errors = gradient_errors(actual, oracle_pass(model, random_params(model), graph, train))
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["p3-sar", "p3-domain-pushed"])
@pytest.mark.parametrize("name", MODELS)
def test_columns_are_aggregated_once(name: str, mode: str) -> None:
    """Every model that aggregates without a parameter, in the order that it chooses for rows."""
    model = replace(MODELS[name], residual=False)
    module = module_of(model, random_params(model))
    has_weights = model.conv == "gcn"
    plain = crooked_sharded(3, "hash", mode, edge_weight=has_weights)
    sharded = aggregate_once(module, plain)
    held: Any = sharded.shards.nodes
    assert held.aggregate.shape == held.features.values.shape
    graph = crooked_graph(edge_weight=has_weights)
    expected = oracle_pass(model, random_params(model), graph)
    errors = gradient_errors(sharded_pass(module, sharded), expected)
    assert max(errors.values()) <= TOLERANCE, errors


def test_devices_that_share_columns_aggregate_for_their_own_nodes() -> None:
    graph = crooked_graph()
    sharded = shard(
        graph,
        partition(graph, 4, method="hash", seed=0),
        make_mesh(4),
        "p3",
        feature_budget=40_000,
        chunks=2,
    )
    assert len(sharded.mesh.axis_names) == 2
    model = MODELS["sage"]
    module = module_of(model, random_params(model))
    errors = gradient_errors(
        sharded_pass(module, aggregate_once(module, sharded)),
        oracle_pass(model, random_params(model), graph),
    )
    assert max(errors.values()) <= TOLERANCE, errors


RUNS = [
    ("GCN", {"norm": "batch"}, 1, {}),
    ("GCN", {"norm": "batch"}, 4, {"mode": "domain"}),
    ("GraphSAGE", {"residual": True}, 4, {"mode": "sar"}),
    ("GraphSAGE", {"residual": True}, 3, {"prefetch": True}),
    ("GraphSAGE", {"reduce": "max", "dropout": 0.3}, 3, {"mode": "domain"}),
    ("GIN", {"hidden": 2 * FEATURES}, 4, {"mode": "sar"}),
    ("DeepGCN", {"num_layers": 3}, 1, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model_options", "parts", "options"), RUNS)
def test_training_is_the_same(
    name: str, model_options: dict[str, Any], parts: int, options: dict[str, Any]
) -> None:
    sharded = on_devices(small_graph(), parts, **options)
    models = [make(name, **model_options) for _ in range(2)]
    once, anew = (
        fit(model, sharded, ADAM, epochs=5, seed=1, aggregate_once=choice)
        for model, choice in zip(models, (True, False), strict=True)
    )
    assert anew.loss[-1] < anew.loss[0]
    assert_close(once.loss, anew.loss, reduction_length=60, name="loss")
    assert_close(once.val_loss, anew.val_loss, reduction_length=60, name="val_loss")
    assert_close(predict(models[0], sharded), predict(models[1], sharded), reduction_length=240)


def test_features_that_are_not_0_in_padding_reach_nothing() -> None:
    model = nn.GraphSAGE(NUM_FEATURES, 4, NUM_CLASSES, norm="batch", rngs=nnx.Rngs(0))
    sharded = crooked_sharded(4, "hash", "domain")
    passes = [
        sharded_pass(model, aggregate_once(model, graph)) for graph in (sharded, poisoned(sharded))
    ]
    assert np.isfinite(passes[0].loss)
    assert passes[0].loss == passes[1].loss
    jax.tree.map(np.testing.assert_array_equal, passes[0].gradients, passes[1].gradients)


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


def test_abstract_graphs_compile_to_the_same_step() -> None:
    model, sharded = make("GCN"), on_devices(small_graph(), 4)
    abstract = place(AbstractSource(sharded.manifest), make_mesh(4))
    steps = [
        compile_train_step(model, aggregate_once(model, graph), ADAM)
        for graph in (sharded, abstract)
    ]
    assert traffic(steps[0]) == traffic(steps[1])
    sizes = [memory_of(step).argument_size_in_bytes for step in steps]
    assert sizes[0] == sizes[1]
