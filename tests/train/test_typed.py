"""Training of a graph of one typed set: alike on any number of devices, and AIFB."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph.typed_graph import TypedGraph
from tests.parallel.test_typed_parts import AUTHORS, GRAPH
from tests.parallel.typed_shards import scattered
from tests.tolerance import relative_error

NODES, TYPES = 90, 5


def typed_graph() -> TypedGraph:
    rng = np.random.default_rng(0)
    edges = {"senders": rng.integers(0, NODES, 700), "receivers": rng.integers(0, NODES, 700)}
    edges["edge_type"] = rng.integers(0, TYPES, 700)
    train = rng.random(NODES) < 0.5
    nodes: dict[str, Any] = {
        "nodes": rng.normal(size=(NODES, 6)),
        "labels": rng.integers(0, 3, NODES),
    }
    return TypedGraph(
        {"entity": nodes | {"train_mask": train, "test_mask": ~train}},
        {("entity", "related", "entity"): edges},
    )


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_curves_do_not_depend_on_the_number_of_devices(mode: str) -> None:
    graph, found = typed_graph(), {}
    for parts in (1, 3):
        mesh = jg.parallel.make_mesh(parts)
        sharded = jg.parallel.shard(graph, scattered(graph, parts), mesh, mode)
        options: dict[str, Any] = {"num_types": TYPES, "num_bases": 2, "dropout": 0.3}
        model = jg.nn.RGCN(6, 8, 3, norm="batch", **options, rngs=nnx.Rngs(0))
        jg.train.fit(model, sharded, optax.adam(1e-2), epochs=6, seed=1)
        metrics, outputs = jg.train.evaluate(model, sharded), jg.train.predict(model, sharded)
        found[parts] = metrics["train"]["loss"], metrics["test"]["accuracy"], outputs
    np.testing.assert_allclose(found[3][:2], found[1][:2], rtol=1e-4)
    np.testing.assert_allclose(found[3][2], found[1][2], atol=1e-4)


KINDS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduce": "sum", "num_bases": 2},
    "blocks": {"num_blocks": 3},
}


@pytest.mark.expensive
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_all_neighbours_give_the_gradients_of_the_graph(kind: str, parts: int) -> None:
    graph = typed_graph()
    ((ends, edges),) = graph.edge_sets.items()
    weighted = dataclasses.replace(edges, edge_weight=np.linspace(0.5, 2, edges.num_edges))
    graph = dataclasses.replace(graph, edge_sets={ends: weighted})
    mesh = jg.parallel.make_mesh(parts)
    sharded = jg.parallel.shard(graph, scattered(graph, parts), mesh, "sar")
    model = jg.nn.RGCN(6, 9, 3, num_types=TYPES, **KINDS[kind], rngs=nnx.Rngs(0))
    loader = jg.sampling.Loader(graph, [-1, -1], sharded=sharded, batch_size=NODES)
    (batch,) = loader.batches(0)
    expected, found = (jg.train.loss_and_grad(model, each) for each in (sharded, batch))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert relative_error(one, other) < 2e-5


def test_few_neighbours_of_a_typed_graph_are_enough_to_learn_from() -> None:
    graph = typed_graph()
    model = jg.nn.RGCN(6, 8, 3, num_types=TYPES, rngs=nnx.Rngs(0))
    loader = jg.sampling.Loader(graph, [3, 3], batch_size=20)
    history = jg.train.fit(model, loader, optax.adam(1e-2), epochs=20)
    assert history.loss[-1] < 0.8 * history.loss[0]
    with pytest.raises(ValueError, match="the edges have 5 types, and the layer has matrices"):
        jg.train.fit(
            jg.nn.RGCN(6, 8, 3, num_types=4, rngs=nnx.Rngs(0)), loader, optax.sgd(0.1), epochs=1
        )


def test_a_graph_that_is_not_sharded_trains_on_one_device() -> None:
    graph, found = typed_graph(), []
    for given in (graph, jg.parallel.shard(graph, None, jg.parallel.make_mesh(1))):
        model = jg.nn.RGCN(6, 8, 3, num_types=TYPES, rngs=nnx.Rngs(0))
        history = jg.train.fit(model, given, optax.adam(1e-2), epochs=2)
        outputs = jg.train.predict(model, given)
        found.append((history.loss, jg.train.evaluate(model, given), outputs.tolist()))
    assert found[0] == found[1]


def test_a_model_of_one_set_reads_that_of_the_target() -> None:
    graph, found = typed_graph(), []
    for others in ({}, {"other": {"nodes": np.ones((3, 2), np.float32)}}):
        sets = {**graph.node_sets, **others}
        given = dataclasses.replace(graph, node_sets=sets, target="entity")
        model = jg.nn.RGCN(6, 8, 3, num_types=TYPES, rngs=nnx.Rngs(0))
        # A model that has one is given the target's features to aggregate.
        assert model.first_aggregation is None
        found.append(jg.train.predict(model, given))
    np.testing.assert_array_equal(*found)


class OfSets(nnx.Module):
    """Two rounds of convolutions between papers and authors, who have learned rows, too."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.rows = jg.nn.NodeEmbedding(AUTHORS, 8, table="author", rngs=rngs)
        self.maps = nnx.Dict(
            {"paper": jg.nn.Linear(3, 8, rngs=rngs), "author": jg.nn.Linear(2, 8, rngs=rngs)}
        )
        widths = ((8, 8), (8, 4))
        self.layers = nnx.List(
            jg.nn.HeteroConv(
                {
                    "writes": jg.nn.SAGEConv(*ends, rngs=rngs),
                    "cites": jg.nn.RGCNConv(*ends, num_types=3, rngs=rngs),
                    "written by": jg.nn.GATConv(*ends, rngs=rngs),
                }
            )
            for ends in widths
        )

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        x = {name: own(shard.table(name), x[name]) for name, own in self.maps.items()}
        x["author"] = x["author"] + self.rows(shard)
        if train:
            x = {n: jg.nn.dropout(shard.table(n), y, key, rate=0.2) for n, y in x.items()}
        first, second = self.layers
        x = jax.tree.map(jax.nn.relu, first(shard, x))
        return second(shard, x)["paper"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_a_graph_of_several_sets_learns_its_target(mode: str, tmp_path: Path) -> None:
    found: dict[int, Any] = {}
    for parts in (1, 2, 3):
        mesh = jg.parallel.make_mesh(parts)
        jg.parallel.write_parts(GRAPH, scattered(GRAPH, parts), tmp_path / f"{parts}", mode)
        sharded = jg.parallel.place(jg.parallel.open_parts(tmp_path / f"{parts}"), mesh)
        model = OfSets(nnx.Rngs(0))
        folder, epochs = tmp_path / "run", 2 * parts
        saved = jg.train.Checkpoints(folder, every=2, resume=folder.exists())
        jg.train.fit(model, sharded, optax.adam(1e-2), epochs=epochs, seed=1, checkpoint=saved)
        whole = OfSets(nnx.Rngs(0))
        history = jg.train.fit(whole, sharded, optax.adam(1e-2), epochs=6, seed=1)
        outputs = jg.train.predict(whole, sharded)
        assert outputs.shape == (47, 4)
        if parts == 3:  # It continued the runs of one device and of two.
            np.testing.assert_allclose(jg.train.predict(model, sharded), outputs, atol=1e-4)
        rows = np.asarray(whole.rows.rows.get_value())
        found[parts] = outputs, jg.train.evaluate(whole, sharded)["train"]["loss"], rows
        assert history.records[-1].loss < history.records[0].loss
    for parts in (2, 3):
        for value, expected in zip(found[parts], found[1], strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)
    assert found[1][2].shape == (AUTHORS, 8)


def test_a_target_is_a_set_of_nodes() -> None:
    sets = GRAPH.node_sets, GRAPH.edge_sets
    assert GRAPH.target == "paper"
    with pytest.raises(ValueError, match=r"target is 'venue'.*'paper', 'author'"):
        TypedGraph(*sets, target="venue")
    sharded = jg.parallel.shard(TypedGraph(*sets, target="author"), None, jg.parallel.make_mesh(1))
    assert sharded.shards.num_rows == sharded.shards.table("author").num_rows
    with pytest.raises(ValueError, match="no labels"):
        jg.train.fit(OfSets(nnx.Rngs(0)), sharded, optax.adam(1e-2), epochs=1)


def test_a_run_continues_on_another_number_of_devices(tmp_path: Path) -> None:
    def run(parts: int, epochs: int, folder: Path | None, graph: TypedGraph) -> np.ndarray:
        mesh = jg.parallel.make_mesh(parts)
        sharded = jg.parallel.shard(graph, scattered(graph, parts), mesh)
        model = jg.nn.RGCN(6, 8, 3, num_types=TYPES, rngs=nnx.Rngs(0))
        checkpoint = None
        if folder is not None:
            checkpoint = jg.train.Checkpoints(folder, every=2, resume=any(folder.iterdir()))
        options: dict[str, Any] = {"epochs": epochs, "checkpoint": checkpoint}
        jg.train.fit(model, sharded, optax.adam(1e-2), seed=1, **options)
        return jg.train.predict(model, sharded)

    graph = typed_graph()
    run(3, 4, tmp_path, graph)
    continued, whole = run(1, 8, tmp_path, graph), run(1, 8, None, graph)
    np.testing.assert_allclose(continued, whole, atol=1e-4)
    ((ends, edges),) = graph.edge_sets.items()
    other = dataclasses.replace(edges, edge_type=(edges.edge_type + 1) % TYPES)  # type: ignore
    with pytest.raises(ValueError, match="edge_type"):
        run(1, 9, tmp_path, TypedGraph(graph.node_sets, {ends: other}))


class Classifier(nnx.Module):
    """R-GCN on rows of an embedding, for a graph without features."""

    def __init__(self, num_nodes: int, num_types: int, rngs: nnx.Rngs) -> None:
        self.rows = jg.nn.NodeEmbedding(num_nodes, 64, rngs=rngs)
        self.model = jg.nn.RGCN(64, 64, 4, num_types=num_types, rngs=rngs)

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        return self.model(shard, self.rows(shard), key=key, train=train)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_aifb_is_learned(data_dir: Path, parts: int) -> None:
    graph = jg.datasets.load_aifb(data_dir)
    (edges,) = graph.edge_sets.values()
    mesh = jg.parallel.make_mesh(parts)
    sharded = jg.parallel.shard(graph, scattered(graph, parts), mesh)
    accuracies = []
    for seed in range(3):
        model = Classifier(graph.num_nodes, edges.num_edge_types, nnx.Rngs(seed))
        jg.train.fit(model, sharded, optax.adam(1e-2), epochs=50, seed=seed)
        accuracies.append(jg.train.evaluate(model, sharded)["test"]["accuracy"])
    # 36 nodes: the paper's mean is 95.8.
    assert np.mean(accuracies) >= 0.92
