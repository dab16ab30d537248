"""NeuGraph's layers equal layers written by hand, on any number of devices."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgraph as jg
from tests.oracles import edge_ops
from tests.oracles.functions import sigmoid
from tests.strategies import random_edges
from tests.tolerance import assert_close
from tests.training import oracle_edges

NODES, EDGES, INS, OUTS, TYPES = 37, 260, 6, 5, 3


@pytest.fixture(scope="module")
def graph():
    senders, receivers = random_edges(NODES, EDGES, seed=4)
    rng = np.random.default_rng(0)
    made = jg.Graph(
        senders=senders,
        receivers=receivers,
        num_nodes=NODES,
        nodes=rng.normal(size=(NODES, INS)).astype(np.float32),
        edges=rng.normal(size=(EDGES, 2)).astype(np.float32),
        edge_weight=rng.uniform(0.5, 1.5, EDGES).astype(np.float32),
        edge_type=rng.integers(0, TYPES, EDGES).astype(np.int32),
        labels=rng.integers(0, OUTS, NODES).astype(np.int32),
    )
    return jg.transforms.with_edge_rank(made)


def with_only(graph, data):
    """The graph without the edge data that a layer does not use."""
    names = {"edges", "edge_weight", "edge_type"} - {data}
    return graph.replace(**dict.fromkeys(names))


def dense(x):
    return np.asarray(x, np.float64)


def summed(messages, graph):
    return oracle_edges(graph).sum_by_receiver(messages)


def gated(layer, graph, x):
    edge, vertex = layer.apply_edge, layer.apply_vertex
    gate = sigmoid(
        x[graph.receivers] @ dense(edge.receiver) + x[graph.senders] @ dense(edge.sender)
    )
    return summed(gate * x[graph.senders], graph) @ dense(vertex.kernel) + dense(vertex.bias)


def comm(layer, graph, x):
    vertex = layer.apply_vertex
    sums = summed(x[graph.senders], graph)
    return sums @ dense(vertex.kernel) + x @ dense(vertex.own) + dense(vertex.bias)


def weighted(layer, graph, x):
    vertex = layer.apply_vertex
    sums = summed(x[graph.senders] * dense(graph.edge_weight)[:, None], graph)
    return sums @ dense(vertex.kernel) + dense(vertex.bias)


def gated_graph(layer, graph, x):
    h = x @ dense(layer.lift)
    of_types = dense(layer.apply_edge.kernel).reshape(OUTS, TYPES, OUTS)
    messages = np.einsum(
        "ef,efg->eg", h[graph.senders], of_types[:, graph.edge_type].swapaxes(0, 1)
    )
    sums, cell = summed(messages, graph), layer.apply_vertex
    mapped = sums @ dense(cell.of_accumulated) + dense(cell.bias)
    gates = sigmoid(mapped[:, : 2 * OUTS] + h @ dense(cell.of_gates))
    update, reset = gates[:, :OUTS], gates[:, OUTS:]
    new = np.tanh(mapped[:, 2 * OUTS :] + (reset * h) @ dense(cell.of_reset))
    return (1 - update) * h + update * new


LAYERS = {
    "gated": (jg.saga.GatedConv, {}, gated),
    "comm": (jg.saga.CommConv, {}, comm),
    "weighted": (jg.saga.WeightedConv, {}, weighted),
    "gated graph": (jg.saga.GatedGraphConv, {"num_edge_types": TYPES}, gated_graph),
}


@pytest.mark.expensive
@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_those_by_hand(graph, name):
    make, options, by_hand = LAYERS[name]
    layer = make(INS, OUTS, rngs=nnx.Rngs(0), **options)
    graph = with_only(graph, layer.data)
    expected = by_hand(layer, graph, dense(graph.nodes))
    assert_close(layer(graph, graph.nodes), expected, reduction_length=EDGES)


def test_one_edge_type_needs_no_types(graph):
    layer = jg.saga.GatedGraphConv(INS, INS, rngs=nnx.Rngs(0))
    plain = jg.Graph(senders=graph.senders, receivers=graph.receivers, num_nodes=NODES)
    typed = plain.replace(edge_type=np.zeros(EDGES, np.int32))
    many = jg.saga.GatedGraphConv(INS, INS, num_edge_types=2, rngs=nnx.Rngs(0))
    many.apply_vertex = layer.apply_vertex
    kernel = layer.apply_edge.kernel.get_value()
    many.apply_edge.kernel = nnx.Param(jnp.concatenate([kernel, 2 * kernel], 1))
    expected = many(typed, graph.nodes)
    assert_close(layer(plain, graph.nodes), expected, reduction_length=EDGES)
    with pytest.raises(ValueError, match=r"^Scatter: .*'edge_weight'.* has no data of edges"):
        jg.saga.WeightedConv(INS, INS, rngs=nnx.Rngs(0))(plain, graph.nodes)
    with pytest.raises(ValueError, match=r"^Scatter: .*'edge_type'.*graph\.replace\(edge_type="):
        many(plain, graph.nodes)


def placed(graph, parts, mode="sar"):
    partition = jg.partition.partition(graph, parts, method="hash", seed=0)
    mesh = jg.parallel.make_mesh(1 if mode == "stream" else parts)
    return jg.parallel.shard(graph, partition, mesh, mode=mode)


@pytest.mark.parametrize("place", ["graph", "1 part", "3 parts", "domain", "stream", "folder"])
def test_types_beyond_those_of_a_layer_are_refused(graph, place, tmp_path):
    import optax

    typed = with_only(graph, "edge_type").replace(train_mask=np.ones(NODES, bool))
    mode = place if place in ("domain", "stream") else "sar"
    given = typed if place == "graph" else placed(typed, 1 if place == "1 part" else 3, mode)
    if place == "folder":
        partition = jg.partition.partition(typed, 3, method="hash", seed=0)
        jg.parallel.write_parts(typed, partition, tmp_path)
        source = jg.parallel.open_parts(tmp_path)
        given = jg.parallel.place(source, jg.parallel.make_mesh(3))
    model = jg.saga.GatedGraphConv(INS, OUTS, num_edge_types=TYPES - 1, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"num_edge_types=2, .* up to 2\. .*num_edge_types=3"):
        jg.train.fit(model, given, optax.sgd(0.1), epochs=2)
    for made in (jg.saga.GatedGraphConv, jg.saga.CommConv, jg.saga.GatedConv):
        with pytest.raises(ValueError, match=rf"{made.__name__} does not use edge_type"):
            jg.train.predict(made(INS, OUTS, rngs=nnx.Rngs(0)), given)


def test_shared_shapes_have_the_types_of_all_graphs(graph):
    typed = with_only(graph, "edge_type")
    fewer = typed.replace(edge_type=np.minimum(graph.edge_type, 1))
    partition = jg.partition.partition(graph, 2, method="hash", seed=0)
    shapes = jg.parallel.common_shapes((fewer, partition), (typed, partition))
    mesh = jg.parallel.make_mesh(2)
    given = jg.parallel.shard(fewer, partition, mesh, pad_to=shapes)
    assert shapes.num_edge_types == given.manifest.num_edge_types == TYPES
    alone = jg.parallel.shard(fewer, partition, mesh)
    with pytest.raises(ValueError, match="num_edge_types 3 > 2"):
        jg.parallel.shard(typed, partition, mesh, pad_to=alone)


def test_advice_on_types_is_right(graph):
    plain = with_only(graph, None)
    far = plain.replace(edge_type=np.where(graph.edge_type == 1, 9, 4))
    layer = jg.saga.GatedGraphConv(INS, OUTS, num_edge_types=2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"numpy\.unique\(graph\.edge_type, return_inverse=True"):
        layer(far, graph.nodes)
    _, near = np.unique(far.edge_type, return_inverse=True)
    expected = layer(plain.replace(edge_type=np.where(graph.edge_type == 1, 1, 0)), graph.nodes)
    found = layer(far.replace(edge_type=near), graph.nodes)
    np.testing.assert_array_equal(found, expected)
    assert np.isfinite(expected).all()


def test_concatenation(graph):
    bound = 4

    def joined(x, accumulated):
        return accumulated.reshape(len(x), -1)

    layer = jg.saga.layer(lambda edge: edge.sender, joined, jg.saga.Concatenation(bound))
    expected = np.zeros((NODES, bound, INS))
    for sender, receiver, rank in zip(
        graph.senders, graph.receivers, graph.edge_data["edge_rank"], strict=True
    ):
        if rank < bound:
            expected[receiver, rank] = graph.nodes[sender]
    expected = expected.reshape(NODES, -1)
    np.testing.assert_array_equal(layer(graph, graph.nodes), expected.astype(np.float32))
    sharded = jg.parallel.shard(
        graph,
        jg.partition.partition(graph, 3, method="hash", seed=0),
        jg.parallel.make_mesh(3),
        mode="sar",
    )
    found = jg.train.predict(layer, sharded)
    np.testing.assert_array_equal(np.asarray(found), expected.astype(np.float32))


@pytest.mark.parametrize("accumulator", ["sum", "mean", "max", "min"])
def test_accumulators(graph, accumulator):
    layer = jg.saga.layer(
        lambda edge: edge.sender[:, :2] * edge.data, lambda x, a: a, accumulator, data="edges"
    )
    messages = dense(graph.nodes[graph.senders, :2] * graph.edges)
    expected = edge_ops.reduce_messages(oracle_edges(graph), messages, accumulator)
    assert_close(layer(graph, graph.nodes), expected, reduction_length=EDGES)


def test_softmax(graph):
    attention = jg.saga.layer(
        lambda edge: ((edge.sender * edge.receiver).sum(1)[:, None], edge.sender[:, None]),
        lambda x, accumulated: accumulated[:, 0],
        "softmax",
    )
    x = dense(graph.nodes)
    logits = (x[graph.senders] * x[graph.receivers]).sum(1)[:, None]
    expected = edge_ops.attend(oracle_edges(graph), logits, x[:, None])[:, 0]
    assert_close(attention(graph, graph.nodes), expected, reduction_length=EDGES)


def test_training(graph):
    """A layer of functions trains, and its report says what moved."""
    import optax

    model = jg.saga.GatedGCN(INS, 32, OUTS, rngs=nnx.Rngs(0))
    data = graph = with_only(graph, None).replace(train_mask=np.ones(NODES, bool))
    history = jg.train.fit(model, data, optax.adam(1e-2), epochs=3)
    assert history.loss[-1] < history.loss[0]
    layer: Any = model.layers[1].convolution
    report = layer.explain(graph, jnp.ones((NODES, 32)))
    assert set(report.moved) == {"sender", "receiver"} and report.is_fused
    assert "element-wise" in str(report)


def first(edge):
    return edge.sender


def same(x, accumulated):
    return accumulated


WRONG = [
    ((first, same, "concatenate"), {}, r"^Gather: .*needs a bound"),
    ((first, same, "median"), {}, r"^Gather: .*expected one of sum"),
    ((3, same), {}, r"^ApplyEdge: got an? int; expected a function"),
    ((lambda e: e.sender - e.sender.mean(0), same), {}, r"^ApplyEdge: .*combines edges of a chunk"),
    ((first, same, "softmax"), {}, r"^Gather: .*reduce='softmax'"),
    ((first, same), {"data": "length"}, r"^Scatter: .* reads 'length' .* edge_type, edge_rank"),
    ((first, lambda x, a: a.sum(0)), {}, r"^ApplyVertex: returned .*for each of the 37 rows"),
]


@pytest.mark.parametrize(("stages", "options", "message"), WRONG)
def test_errors_name_the_stage(graph, stages, options, message):
    with pytest.raises(ValueError, match=message):
        jg.saga.layer(*stages, **options)(graph, graph.nodes)


def test_errors_of_sums_and_bounds(graph):
    with pytest.raises(ValueError, match=r"^Gather: Concatenation\(bound=0\)"):
        jg.saga.Concatenation(0)
    mismatched = jg.saga.layer(lambda edge: edge.sender, lambda x, a: a @ np.ones((3, 3)))
    with pytest.raises(TypeError) as caught:
        mismatched(graph, graph.nodes)
    assert "ApplyVertex was given x (37, 6) and sums (37, 6)" in caught.value.__notes__[-1]
    plain = jg.Graph(senders=graph.senders, receivers=graph.receivers, num_nodes=NODES)
    joined = jg.saga.layer(lambda edge: edge.sender, lambda x, a: a[:, 0], jg.saga.Concatenation(2))
    with pytest.raises(ValueError, match="with_edge_rank"):
        joined(plain, graph.nodes)
