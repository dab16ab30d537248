"""Laws 1 and 5 of rows of whole graphs: the oracle's, on any devices and in mini-batches.

Nodes of a graph lie on several devices, and the row of a graph on yet another.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse as sp
from flax import nnx

from jaxgraph import Graph, TypedGraph, nn, train, transforms
from jaxgraph.parallel import ShardedGraph, make_mesh, shard, spmd
from jaxgraph.sampling import Loader
from tests.law.passes import TOLERANCE
from tests.oracles import functions, losses, models
from tests.oracles.edge_ops import reduce_messages
from tests.oracles.edges import Edges
from tests.oracles.tape import differentiate
from tests.parallel.typed_shards import scattered
from tests.strategies import NUM_CLASSES, NUM_FEATURES, SMALL_GRAPHS
from tests.tolerance import relative_error
from tests.training import HIDDEN, SEED, mode_options, module_of, random_params

GIN = models.Model("gin", norm="batch")
IN_CORE = {"sum": ("sar", 2), "mean": ("domain", 3), "max": ("sar", 3)}


@cache
def graphs() -> TypedGraph:
    """Small graphs of every shape and some random ones, half of them for training."""
    rng, found = np.random.default_rng(0), []
    for count in [each.num_nodes for each in SMALL_GRAPHS] + [6, 9, 14, 5, 8]:
        ends = rng.integers(0, count, (2, 3 * count))
        x = rng.standard_normal((count, NUM_FEATURES), np.float32)
        found.append(Graph.from_edges(*ends, num_nodes=count, nodes=x))
    for number, each in enumerate(SMALL_GRAPHS):
        ends = {"senders": each.senders, "receivers": each.receivers}
        found[number] = found[number].replace(**ends)
    order = np.arange(len(found))
    masks = {"train_mask": order % 2 == 0, "val_mask": order % 4 == 1, "test_mask": order % 4 == 3}
    return Graph.batch(found, labels=rng.integers(0, NUM_CLASSES, len(found)), **masks)


def on_devices(graph: TypedGraph, parts: int, mode: str) -> ShardedGraph:
    """The graph by a partition that cuts most graphs."""
    return shard(graph, scattered(graph, parts), make_mesh(parts), **mode_options(mode))


def module(layers: list[Any], head: Any, reduce: str) -> nn.GraphReadout:
    """The library's model with these parameters, which may be gradients."""
    linear = nn.Linear(NUM_CLASSES, NUM_CLASSES, rngs=nnx.Rngs(0))
    for name, array in head.items():
        getattr(linear, name).set_value(jnp.asarray(array, jnp.float32))
    return nn.GraphReadout(module_of(GIN, layers), linear, reduce=reduce)


@cache
def expected(reduce: str) -> tuple[Any, float, Any, np.ndarray]:
    """A model; its loss, gradient and outputs by the oracle."""
    graph, layers, rng = graphs(), random_params(GIN), np.random.default_rng(4)
    shapes = {"kernel": (NUM_CLASSES, NUM_CLASSES), "bias": (NUM_CLASSES,)}
    head = {
        name: rng.standard_normal(shape, np.float32).astype(np.float64)
        for name, shape in shapes.items()
    }
    nodes, of_graphs = graph.node_sets["node"], graph.node_sets["graph"]
    (_, edges), (_, members) = graph.edge_sets.items()
    ends = Edges.of(edges.senders, edges.receivers, nodes.num_nodes)
    into = Edges.of(members.senders, members.receivers, of_graphs.num_nodes)
    labels, mask = np.asarray(of_graphs.labels), np.asarray(of_graphs.train_mask)
    outputs = []

    def loss(layers: Any, head: Any) -> Any:
        statistics = models.init_statistics(layers)
        x = np.asarray(nodes.nodes, np.float64)
        rows, _ = models.forward(GIN, layers, ends, x, statistics=statistics, train=True)
        outputs.append(functions.linear(head, reduce_messages(into, rows, reduce)))
        return losses.mean_cross_entropy(outputs[-1], labels, mask)

    value, backward = differentiate(loss, layers, head)
    of_layers, of_head = backward(1.0)
    gradient = nnx.state(module(of_layers, of_head, reduce), nnx.Param)
    return module(layers, head, reduce), float(value), gradient, outputs[-1].array


def check(found: Any, loss: Any, gradient: Any) -> None:
    """The loss and each gradient of a pass."""
    assert relative_error(found[0], loss) < TOLERANCE
    of_found, of_expected = (jax.tree.leaves_with_path(x) for x in (found[1], gradient))
    for (path, one), (_, other) in zip(of_found, of_expected, strict=True):
        assert relative_error(one, other) < TOLERANCE, jax.tree_util.keystr(path)


def each_reduction() -> list[Any]:
    """Every reduction in every mode; a few are core."""
    modes = [("sar", 1), ("sar", 2), ("sar", 3), ("domain", 3), ("prefetch", 2)]
    return [
        pytest.param(reduce, *mode, marks=() if IN_CORE.get(reduce) == mode else pytest.mark.slow)
        for reduce in ("sum", "mean", "max", "min")
        for mode in modes
    ]


@pytest.mark.law(1)
@pytest.mark.parametrize(("reduce", "mode", "parts"), each_reduction())
def test_rows_of_graphs_and_gradients_are_the_oracles(reduce: str, mode: str, parts: int) -> None:
    model, loss, gradient, outputs = expected(reduce)
    sharded = on_devices(graphs(), parts, mode)
    check(train.loss_and_grad(model, sharded, train=True), loss, gradient)

    @spmd
    def rows(model: Any, shard: Any) -> jax.Array:
        x = {name: shard.table(name).nodes for name in ("node", "graph")}
        y, table = model(shard, x, train=True), shard.table("graph")
        into = jnp.zeros((len(outputs), NUM_CLASSES)).at[table.node_ids]
        return shard.sum(into.add(jnp.where(table.node_mask[:, None], y, 0)))

    assert relative_error(rows(model, sharded), outputs) < TOLERANCE


def plain_model(kind: Any = nn.GIN, **options: Any) -> nn.GraphReadout:
    """A model whose norm looks at a node alone."""
    rngs = nnx.Rngs(0)
    options = {"num_layers": 2, "norm": "layer", **options}
    encoder = kind(NUM_FEATURES, HIDDEN, HIDDEN, rngs=rngs, **options)
    return nn.GraphReadout(encoder, nn.Linear(HIDDEN, NUM_CLASSES, rngs=rngs))


@pytest.mark.law(1)
@pytest.mark.parametrize(
    ("mode", "parts"),
    [("sar", 1), ("sar", 3), pytest.param("domain", 2, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    ("kind", "options"),
    [(nn.GIN, {"jumping": "cat"}), pytest.param(nn.GCN, {"dropout": 0.4}, marks=pytest.mark.slow)],
)
def test_a_batch_of_all_training_graphs_has_the_gradient_of_the_whole(
    mode: str, parts: int, kind: Any, options: dict[str, Any]
) -> None:
    graph, model = graphs(), plain_model(kind, **options)
    loss, gradient = train.loss_and_grad(model, on_devices(graph, 1, "sar"), seed=SEED, train=True)
    (batch,) = Loader(graph, [-1, -1], sharded=on_devices(graph, parts, mode)).batches(0)
    check(train.loss_and_grad(model, batch, seed=SEED, train=True), loss, gradient)


@pytest.mark.law(1)
@pytest.mark.parametrize("parts", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_batches_of_graphs_give_the_rows_of_all(parts: int) -> None:
    """The last batch has fewer graphs than there are devices."""
    graph, model = graphs(), plain_model()
    sharded = on_devices(graph, parts, "sar")
    whole, count = train.predict(model, sharded), graph.node_sets["graph"].num_nodes

    @spmd
    def at_seeds(model: Any, batch: Any) -> jax.Array:
        first = batch.flow[0]
        y = model(list(batch.flow), {name: table.nodes for name, table in first.tables.items()})
        table = batch.flow[-1].relation("member").receivers
        into = jnp.zeros((count, NUM_CLASSES)).at[table.node_ids]
        return batch.sum(into.add(jnp.where(table.node_mask[:, None], y, 0)))

    loader = Loader(
        graph, [-1, -1], sharded=sharded, nodes=np.arange(count), batch_size=count // 2 - 1
    )
    assert len(loader) == 3
    found = sum(np.asarray(at_seeds(model, batch)) for batch in loader.batches(2))
    assert relative_error(found, whole) < TOLERANCE


@pytest.mark.law(1)
def test_sparse_features_give_the_numbers_of_dense_ones() -> None:
    graph, model = graphs(), plain_model()
    nodes = graph.node_sets["node"]
    x = np.asarray(nodes.nodes) * (np.arange(nodes.num_nodes) % 3 == 0)[:, None]
    both = []
    for given in (x, sp.csr_array(x)):
        sets = {**graph.node_sets, "node": nodes.replace(nodes=given)}
        sparse = TypedGraph(sets, graph.edge_sets, "", "graph", graph.readout)
        both.append(train.loss_and_grad(model, on_devices(sparse, 2, "sar"), train=True))
    check(both[1], *both[0])


def run(parts: int, fold: TypedGraph, **sampled: Any) -> dict[str, Any]:
    """A run with dropout before and after the readout."""
    sharded = on_devices(fold, parts, "sar")
    source: Any = Loader(fold, [-1, -1], sharded=sharded, **sampled) if sampled else sharded
    model = plain_model(nn.GIN, dropout=0.4)
    history = train.fit(model, source, optax.adam(1e-2), epochs=3, seed=1)
    return {"loss": history.loss, "outputs": train.predict(model, sharded)}


@pytest.mark.expensive
@pytest.mark.law(5)
@pytest.mark.parametrize(
    ("parts", "sampled"),
    [
        (3, {}),
        (2, {"batch_size": 4}),
        pytest.param(2, {}, marks=pytest.mark.slow),
        pytest.param(4, {"batch_size": 3}, marks=pytest.mark.slow),
    ],
)
def test_training_does_not_depend_on_devices(parts: int, sampled: dict[str, Any]) -> None:
    (fold, *_) = transforms.folds(graphs(), 3)
    of_one, found = run(1, fold, **sampled), run(parts, fold, **sampled)
    for name, value in found.items():
        assert relative_error(value, of_one[name]) < TOLERANCE, name
