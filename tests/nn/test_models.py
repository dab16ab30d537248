"""Ready models: their layers, their options against the oracle, and their traffic."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export

from jaxgraph import nn
from jaxgraph.analysis import traffic
from jaxgraph.layers import elu
from jaxgraph.parallel import (
    ShardedGraph,
    gather_edges,
    gather_rows,
    make_mesh,
    place_rows,
    shard,
    spmd,
)
from jaxgraph.parallel.exchange import WHOLE_ANSWER_RATIO
from jaxgraph.partition import partition
from tests.oracles import convolutions, functions, losses
from tests.oracles.models import Model
from tests.oracles.tape import differentiate
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import (
    Pass,
    by_layer,
    crooked_features,
    crooked_graph,
    crooked_sharded,
    gradient_errors,
    masked_cross_entropy,
    module_of,
    oracle_edges,
    oracle_pass,
    poisoned,
    random_params,
    sharded_pass,
)

TOLERANCE = 2e-5
KEY = jax.random.key(13)
MODELS = {"GCN": nn.GCN, "GraphSAGE": nn.GraphSAGE, "GAT": nn.GAT, "GATv2": nn.GATv2, "GIN": nn.GIN}


def make(name: str, **options: Any) -> Any:
    heads = {"num_heads": 2} if name.startswith("GAT") else {}
    return MODELS[name](NUM_FEATURES, 4, NUM_CLASSES, rngs=nnx.Rngs(0), **heads, **options)


@pytest.mark.slow
def test_attention_of_every_layer_is_that_of_its_convolution() -> None:
    model = make("GAT", norm="layer", dropout=0.5, jumping="cat")
    graph, sharded = crooked_graph(), crooked_sharded(2, "hash", "sar")
    found = model.attention_weights(graph, graph.nodes)
    first, second = (layer.convolution for layer in model.layers[:2])
    between = elu(model.layers[0].norm(graph, first(graph, graph.nodes)))
    assert len(found) == 2 and found[0].shape == (graph.num_edges, 2)
    assert_close(found[0], first.attention_weights(graph, graph.nodes))
    assert_close(found[1], second.attention_weights(graph, between))
    on_two = spmd(lambda m, own: m.attention_weights(own, own.nodes), outputs="edges")
    parts = partition(graph, 2, method="hash", seed=0)
    for slots, mine in zip(on_two(model, sharded), found, strict=True):
        assert_close(gather_edges(slots, sharded, graph, parts), mine)
    with pytest.raises(ValueError, match="GCN has no attention: its layers are GCNConv"):
        make("GCN").attention_weights(graph, graph.nodes)


def test_heads_of_each_layer_are_refused_with_the_convolutions_to_use() -> None:
    for kind in (nn.GAT, nn.GATv2, nn.Transformer):
        with pytest.raises(ValueError, match=r"num_heads is \(8, 1\).*GATConv"):
            kind(4, 4, 2, num_heads=(8, 1), rngs=nnx.Rngs(0))  # type: ignore[arg-type]


# ------------------------------------------------------------------ structure


def test_default_activations() -> None:
    activations = {name: make(name).activation for name in MODELS}
    assert activations.pop("GAT") is elu
    assert set(activations.values()) == {jax.nn.relu}


@pytest.mark.parametrize("activation", [jax.nn.relu, jax.nn.silu, jnp.tanh, elu, jax.nn.gelu, abs])
def test_a_model_survives_pickle(activation: Callable[[jax.Array], jax.Array]) -> None:
    model = nn.GCN(3, 4, 2, activation=activation, norm="batch", rngs=nnx.Rngs(0))
    read = pickle.loads(pickle.dumps(model))
    assert type(read) is nn.GCN and read.activation is model.activation is activation
    jax.tree.map(np.testing.assert_array_equal, nnx.state(read), nnx.state(model))


@pytest.mark.parametrize("name", ["GCN", "GAT"])
def test_a_model_on_a_graph_sharded_for_xla_is_exported(name: str) -> None:
    graph = crooked_graph()
    model = getattr(nn, name)(NUM_FEATURES, 4, NUM_CLASSES, rngs=nnx.Rngs(0))
    sharded = shard(graph, None, make_mesh(1), implementation="xla")
    rows = place_rows(graph.nodes, sharded)
    run = spmd(lambda model, part, rows: model(part, rows), outputs="rows")
    exported = export.export(jax.jit(lambda rows: run(model, sharded, rows)))(rows)
    if find_spec("flatbuffers"):
        exported = export.deserialize(exported.serialize())
    found = gather_rows(exported.call(rows), sharded)
    assert_close(found, model(graph, graph.nodes), reduction_length=graph.num_nodes)


def test_jumping_knowledge_adds_a_linear_map() -> None:
    module = nn.DeepGCN(4, 3, 2, num_layers=3, jumping="cat", rngs=nnx.Rngs(0))
    kinds = [type(layer.convolution) for layer in module.layers]
    assert kinds == [nn.GCNConv, nn.GCNConv, nn.GCNConv, nn.Linear]
    last: Any = module.layers[3]
    assert last.convolution.kernel.get_value().shape == (9, 2)
    assert not last.has_residual and all(layer.has_residual for layer in module.layers[:3])
    joined: Any = make("GAT", num_layers=3, jumping="max").layers[3]
    assert joined.convolution.kernel.get_value().shape == (8, NUM_CLASSES)


def test_a_layer_can_be_the_only_one() -> None:
    assert len(make("GCN", num_layers=1, norm="batch", residual=True).layers) == 1
    assert nn.SAGE is nn.GraphSAGE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0; expected a positive integer"),
        ({"norm": "group"}, "norm is 'group'; expected None or one of batch, layer"),
        ({"dropout": 1.0}, "dropout is 1.0; expected a probability of dropping"),
        ({"jumping": "sum"}, "jumping is 'sum'; expected 'cat', 'max' or None"),
    ],
)
@pytest.mark.parametrize("name", ["GCN", "GAT"])
def test_bad_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(name, **options)


# ------------------------------------------------------------------ values and gradients


def test_outside_of_training_nothing_is_dropped_or_updated() -> None:
    model = Model("gcn", norm="batch", dropout=0.5)
    params = random_params(model)
    module = module_of(model, params)
    actual = sharded_pass(module, crooked_sharded(3, "hash", "sar"), train=False)
    expected = oracle_pass(model, params, crooked_graph(), train=False)
    assert max(gradient_errors(actual, expected).values()) <= TOLERANCE
    for name, start in (("mean", 0.0), ("var", 1.0)):
        np.testing.assert_array_equal(actual.statistics[0][name], start)


def test_deep_gcn() -> None:
    """ROC, section 7.5: residual connections around every layer, the last one too."""
    module = nn.DeepGCN(NUM_FEATURES, 6, NUM_CLASSES, num_layers=3, rngs=nnx.Rngs(0))
    assert len(nn.DeepGCN(4, 4, 4, rngs=nnx.Rngs(0)).layers) == 8
    assert [layer.residual is not None for layer in module.layers] == [True, False, True]
    actual = sharded_pass(module, crooked_sharded(3, "hash", "domain"))

    params, graph = by_layer(module, nnx.Param), crooked_graph()
    assert graph.labels is not None and graph.train_mask is not None
    labels, mask, edges = graph.labels, graph.train_mask, oracle_edges(graph)

    def loss_of(params: Any) -> Any:
        h = crooked_features()
        for index, layer in enumerate(params):
            y = convolutions.gcn(layer["conv"], edges, h)
            skip = functions.linear(layer["residual"], h) if "residual" in layer else h
            h = (functions.relu(y) if index < 2 else y) + skip
        return losses.mean_cross_entropy(h, labels, mask)

    loss, backward = differentiate(loss_of, params)
    expected = Pass(float(loss), backward(1.0)[0], actual.statistics)
    assert max(gradient_errors(actual, expected).values()) <= TOLERANCE


# ------------------------------------------------------------------ inputs


def test_a_residual_connection_without_a_map_takes_the_rows_of_columns() -> None:
    module = nn.GCN(NUM_FEATURES, NUM_FEATURES, 3, residual=True, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(module)

    def step(state: Any, shard: Any) -> list[jax.Array]:
        model = nnx.merge(graphdef, state)
        return [model(shard, x) for x in (shard.to_nodes(shard.nodes), shard.nodes)]

    sharded = crooked_sharded(2, "hash", "p3-sar")
    rows, columns = (gather_rows(y, sharded) for y in spmd(step, outputs="rows")(state, sharded))
    assert_close(columns, rows, reduction_length=1000)


def test_a_graph_without_features_asks_for_an_embedding() -> None:
    graphdef, state = nnx.split(make("GCN"))
    sharded = crooked_sharded(2, "hash", "sar")
    bare = replace(sharded, shards=replace(sharded.shards, nodes=None))

    def step(state: Any, shard: Any) -> jax.Array:
        return nnx.merge(graphdef, state)(shard, shard.nodes)

    with pytest.raises(ValueError, match=r"use jaxgraph\.nn\.NodeEmbedding"):
        spmd(step, outputs="rows")(state, bare)


@pytest.mark.expensive
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODELS)
def test_padding_reaches_nothing(name: str, train: bool) -> None:
    """NaN in the rows of padding changes no loss, gradient or statistic, not in the last bit."""
    width = NUM_FEATURES // 2 if name.startswith("GAT") else NUM_FEATURES
    options = {"num_heads": 2} if name.startswith("GAT") else {}
    module = MODELS[name](
        NUM_FEATURES,
        width,
        NUM_CLASSES,
        norm="batch",
        residual=True,
        activation=jax.nn.elu,
        rngs=nnx.Rngs(0),
        **options,
    )
    sharded = crooked_sharded(4, "hash", "domain")
    clean, dirty = (sharded_pass(module, graph, train) for graph in (sharded, poisoned(sharded)))
    assert np.isfinite(clean.loss)
    assert dirty.loss == clean.loss
    jax.tree.map(np.testing.assert_array_equal, dirty.gradients, clean.gradients)
    jax.tree.map(np.testing.assert_array_equal, dirty.statistics, clean.statistics)


# ------------------------------------------------------------------ communication


def bytes_sent(module: Any, sharded: ShardedGraph) -> tuple[float, float]:
    """Bytes of features that leave a device, without and with the backward."""
    graphdef, params, rest = nnx.split(module, nnx.Param, ...)

    def loss(params: Any, rest: Any, shard: Any) -> jax.Array:
        model = nnx.merge(graphdef, params, rest, copy=True)
        return masked_cross_entropy(model(shard, shard.nodes, train=True), shard)

    def halos(function: Any) -> float:
        sent = traffic(jax.jit(function).lower(params, rest, sharded).compile())
        return sum(value for name, value in sent.items() if name != "all-reduce")

    return halos(spmd(loss)), halos(jax.grad(spmd(loss)))


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_the_backward_of_a_sum_sends_what_the_forward_sends(mode: str) -> None:
    """Nothing is fetched twice; an answer may travel with the padding of its table."""
    forward, both = bytes_sent(make("GCN", norm="batch"), crooked_sharded(4, "hash", mode))
    assert forward > 0
    most = WHOLE_ANSWER_RATIO if mode == "sar" else 1
    assert 2 * forward <= both <= (1 + most) * forward


def test_attention_under_domain_fetches_once() -> None:
    forward, both = bytes_sent(make("GAT", norm="batch"), crooked_sharded(4, "hash", "domain"))
    assert both == 2 * forward
