"""Laws 1 and 5 of mini-batches: with all neighbours they are the whole graph, whatever the devices.

With some of the neighbours, the mean gradient of a linear model is that of the whole graph.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import Graph, nn, train
from jaxgraph.parallel import ShardedGraph, keep_edges, make_mesh, propagate, shard, spmd
from jaxgraph.sampling import Loader
from tests.law.passes import TOLERANCE, WIDE, graph_of, parts_of
from tests.law.test_message_flow import MODELS, TRAINED, check, with_few_trained
from tests.strategies import NUM_CLASSES
from tests.tolerance import relative_error
from tests.training import HIDDEN, SEED

MODES = ["sar-3", "domain-2", "sar-1", "domain-3", "p3-3", "p3-2", "p3-4-copied"]
IN_CORE = {"gat": "domain-2", "sage": "p3-3"}
LAYERS = 2
ALL = 200
"""More neighbours than any node has."""


def each_model() -> list[Any]:
    """Every model in every mode; a few are core."""
    return [
        pytest.param(name, mode, marks=() if IN_CORE.get(name) == mode else pytest.mark.slow)
        for name in MODELS
        for mode in MODES
    ]


def placed(graph: Graph, mode: str) -> ShardedGraph:
    """The graph by a schedule on so many devices, half of which may hold copies of columns."""
    schedule, parts, *copied = mode.split("-")
    options: dict[str, Any] = {"topology": "pushed", "feature_budget": 24_000} if copied else {}
    mesh = make_mesh(int(parts))
    sharded = shard(graph, parts_of(int(parts), "hash"), mesh, schedule, **options)
    columns = sharded.shards.manifest.columns
    assert columns is None or columns.replicas == (2 if copied else 1)
    return sharded


def only_batch(loader: Loader) -> ShardedGraph:
    """The batch of a loader that has one."""
    (batch,) = loader.batches(0)
    return batch


@pytest.mark.law(1)
@pytest.mark.parametrize(("name", "mode"), each_model())
def test_gradients(name: str, mode: str) -> None:
    graph = with_few_trained(MODELS[name].edge_features > 0)
    fanouts = [-1, ALL] if mode.startswith("sar") else [ALL, -1]
    # Rows of 29 features and some masks: about 30 of the 120 nodes.
    cache = 4_000 if mode in ("sar-3", "domain-3") else 0
    loader = Loader(graph, fanouts, sharded=placed(graph, mode), cache_bytes=cache)
    assert loader.has_cache == bool(cache)
    check(name, graph, only_batch(loader))


class OwnModel(nnx.Module):
    """Every reduction, along edges with data of each kind, of which some are dropped."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first = nn.Linear(WIDE, HIDDEN, rngs=rngs)
        self.of_type = nnx.Param(jnp.asarray([0.5, 1.0, 2.0]))
        self.of_edges = nn.Linear(2, HIDDEN, rngs=rngs)
        # Without a bias, whose gradient is 0.
        self.logits = nn.Linear(HIDDEN, 2, use_bias=False, rngs=rngs)
        self.last = nn.Linear(2 * HIDDEN, NUM_CLASSES, rngs=rngs)

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        first, second = shard if isinstance(shard, list) else (shard, shard)
        h = jnp.tanh(self.first(first.senders, x))
        kept = keep_edges(first, jax.random.fold_in(key, 1), 0.3)
        edge = (first.edges, first.edge_weight, first.edge_type, first.edge_data["length"], kept)
        kernel, of_type = self.of_edges.kernel[...], self.of_type[...]

        def message(sender: Any, receiver: Any, edge: Any) -> Any:
            edges, weight, kind, length, kept = edge
            scale = (weight * length * kept * jnp.take(of_type, kind))[:, None]
            return scale * (sender + edges @ kernel) * receiver

        own = first.own_rows(h)
        sums = propagate(first, message, h, own, edge)
        means = propagate(first, lambda s, r, e: s - r, h, own, reduce="mean", self_loops=True)
        most = propagate(first, lambda s, r, e: s * r, h, own, reduce="max", self_loops=True)
        looped = propagate(first, lambda s, r, e: s, h, reduce="sum", self_loops=True)
        h = jnp.tanh(sums + means + most + looped / (1 + first.receivers.degree[:, None]))
        logits = self.logits(second.senders, h)
        attended = propagate(
            second,
            lambda s, r, e: (s[0], s[1]),
            (logits, h.reshape(len(h), 2, -1)),
            reduce="softmax",
            self_loops=True,
            dropout=0.3,
            key=jax.random.fold_in(key, 2),
        )
        least = propagate(second, lambda s, r, e: s, h, reduce="min")
        joined = [attended.reshape(len(attended), -1), least]
        return self.last(second.receivers, jnp.concatenate(joined, 1))


@cache
def with_edge_data() -> Graph:
    """The crooked graph with data of every kind on its edges, of which few nodes have a loss."""
    graph = graph_of(weights=True, edges=True)
    rng = np.random.default_rng(2)
    types = rng.integers(0, 3, graph.num_edges)
    mask = np.isin(np.arange(graph.num_nodes), [*TRAINED, 119])
    graph = graph.replace(edge_type=types, train_mask=mask, val_mask=None, test_mask=None)
    return graph.with_edges(length=rng.uniform(0.5, 2, graph.num_edges))


def deep_gcn() -> Any:
    """Outer residual connections around a norm, with weights of edges."""
    sizes = (WIDE, HIDDEN, NUM_CLASSES)
    return nn.DeepGCN(*sizes, num_layers=LAYERS, norm="layer", dropout=0.2, rngs=nnx.Rngs(0))


@pytest.mark.law(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "mode"), [(make, mode) for make in (OwnModel, deep_gcn) for mode in MODES]
)
def test_layers_of_ones_own_and_data_of_edges(make: Any, mode: str) -> None:
    graph, model = with_edge_data(), make()
    if make is not OwnModel:
        graph = graph.replace(edges=None, edge_type=None, edge_data={})
    whole = train.loss_and_grad(model, placed(graph, "sar-1"), seed=SEED, train=True)
    batch = only_batch(Loader(graph, [-1, ALL], sharded=placed(graph, mode)))
    found = train.loss_and_grad(model, batch, seed=SEED, train=True)
    for (path, one), other in zip(
        jax.tree.leaves_with_path(found), jax.tree.leaves(whole), strict=True
    ):
        assert relative_error(one, other) < TOLERANCE, jax.tree_util.keystr(path)


@pytest.mark.law(1)
@pytest.mark.parametrize("mode", ["sar-1", pytest.param("domain-3", marks=pytest.mark.slow)])
def test_outputs_at_all_nodes(mode: str) -> None:
    """Nodes without edges are among the seeds, and batches do not fill the devices."""
    graph = graph_of()
    sharded, count = placed(graph, mode), graph.num_nodes
    model = nn.GAT(WIDE, HIDDEN, NUM_CLASSES, num_layers=LAYERS, num_heads=2, rngs=nnx.Rngs(0))
    expected = train.predict(model, sharded)

    @spmd
    def at_seeds(model: Any, batch: Any) -> jax.Array:
        flow = batch.flow
        outputs = model(list(flow), flow[0].senders.nodes)
        seeds = flow[-1].receivers
        rows = jnp.zeros((count, NUM_CLASSES)).at[seeds.node_ids]
        return batch.sum(rows.add(jnp.where(seeds.node_mask[:, None], outputs, 0)))

    nodes = np.arange(count)
    loader = Loader(graph, [-1, -1], sharded=sharded, nodes=nodes, batch_size=59)
    found = sum(np.asarray(at_seeds(model, batch)) for batch in loader.batches(3))
    assert relative_error(found, expected) < TOLERANCE


class LinearModel(nnx.Module):
    """Two linear layers of a kind."""

    def __init__(self, kind: str) -> None:
        rngs = nnx.Rngs(0)
        make = nn.GCNConv if kind == "gcn" else partial(nn.SAGEConv, reduce=kind)
        self.first, self.second = make(WIDE, 3, rngs=rngs), make(3, 2, rngs=rngs)

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        first, second = shard if isinstance(shard, list) else (shard, shard)
        return self.second(second, self.first(first, x))


class LinearLoss(train.NodeRegression):
    """The mean output: linear in the parameters of each layer, and in the sums over edges."""

    def sums(self, outputs: Any, shard: Any, split: str) -> Any:
        mask = shard.train_mask & shard.node_mask
        return {"loss": jnp.where(mask[:, None], outputs, 0).sum(), "count": mask.sum()}

    def metrics(self, sums: Any) -> Any:
        return {"loss": sums["loss"] / sums["count"]}


@pytest.mark.law(1)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("gcn", {}),
        pytest.param("sum", {}, marks=pytest.mark.slow),
        pytest.param("mean", {}, marks=pytest.mark.slow),
        pytest.param("sum", {"replace": True}, marks=pytest.mark.slow),
        pytest.param("mean", {"replace": True}, marks=pytest.mark.slow),
    ],
)
def test_the_mean_gradient_over_draws_is_that_of_the_whole_graph(
    kind: str, options: dict[str, Any]
) -> None:
    graph = with_few_trained(edges=False).with_nodes(target=np.zeros(120))
    model, task, draws = LinearModel(kind), LinearLoss(), 150
    gradient = partial(train.loss_and_grad, model, task=task, seed=0, train=True)

    def flat(sharded: ShardedGraph) -> np.ndarray:
        return np.concatenate([np.ravel(x) for x in jax.tree.leaves(gradient(sharded))])

    expected = flat(placed(graph, "sar-1"))
    loader = Loader(graph, [3, 4], **options)
    found = np.array([flat(only) for epoch in range(draws) for only in loader.batches(epoch)])
    error = found.std(axis=0) / np.sqrt(draws)
    assert (error > 0).sum() > 20
    # Of a few hundred numbers of a normal distribution none is further off.
    assert (np.abs(found.mean(axis=0) - expected) <= 4.5 * error + 1e-5).all()


@cache
def half_trained() -> Graph:
    """The crooked graph, half of whose nodes are for training; an odd number of them."""
    graph, nodes = graph_of(), np.arange(120)
    masks = {"train_mask": nodes % 2 == 0, "val_mask": nodes % 4 == 1, "test_mask": nodes % 4 == 3}
    masks["train_mask"] = masks["train_mask"] & (nodes != 4)
    return graph.replace(**masks)


def run(mode: str, cache: int = 0, **options: Any) -> dict[str, Any]:
    """Trains on batches whose last one has fewer seeds than there are devices."""
    graph = half_trained()
    model = nn.GraphSAGE(
        *(WIDE, HIDDEN, NUM_CLASSES), num_layers=LAYERS, dropout=0.4, norm="layer", rngs=nnx.Rngs(0)
    )
    loader = Loader(
        graph,
        [3, 2],
        sharded=placed(graph, mode),
        batch_size=28,
        cache_bytes=cache,
        seed=4,
        **options,
    )
    assert len(loader) == 3
    history = train.fit(model, loader, optax.adam(1e-2), epochs=3, seed=1)
    return {"loss": history.loss, "val_loss": history.val_loss}


@cache
def on_one_device(**options: Any) -> dict[str, Any]:
    return run("sar-1", threads=1, **options)


@pytest.mark.law(5)
@pytest.mark.parametrize(
    ("mode", "cache", "options"),
    [
        ("sar-4", 2_000, {}),
        ("p3-4", 0, {}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("sar-2", 0, {"threads": 2}),
                ("domain-4", 0, {"threads": 4}),
                ("domain-2", 100_000, {"threads": 2}),
                ("domain-3", 3_000, {"method": "labor"}),
                ("sar-3", 0, {"replace": True}),
                ("p3-4-copied", 0, {"threads": 2}),
                ("p3-8", 0, {}),
                ("p3-3", 0, {"method": "labor"}),
                ("p3-1", 0, {"replace": True}),
            )
        ),
    ],
)
def test_training_does_not_depend_on_devices_threads_and_caches(
    mode: str, cache: int, options: dict[str, Any]
) -> None:
    draws = {name: value for name, value in options.items() if name != "threads"}
    expected = on_one_device(**draws)
    for name, value in run(mode, cache, **options).items():
        assert relative_error(value, expected[name]) < TOLERANCE, name
