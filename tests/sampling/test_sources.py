"""Batches of typed graphs and of parts on disk: values, gradients and curves."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph.train.fit_state import place_variables, random_key
from jaxgraph.train.objective import gradients, split_model
from tests.parallel.typed_shards import scattered

PAPERS, AUTHORS = 90, 50


def typed_graph() -> jg.TypedGraph:
    """Papers and authors, some without edges; data on the edges of one set, and equal edges."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, PAPERS)
    is_train = random.random(PAPERS) < 0.5
    papers = {"labels": labels, "train_mask": is_train, "val_mask": ~is_train}
    papers["nodes"] = random.normal(size=(PAPERS, 8)) + labels[:, None]

    def edges(senders: int, receivers: int, **data: Any) -> dict[str, Any]:
        ends = random.integers(0, senders, 200), random.integers(0, receivers, 200)
        return {"senders": ends[0], "receivers": ends[1], **data}

    weights = random.random(200) + 0.5
    return jg.TypedGraph(
        {"paper": papers, "author": {"nodes": random.normal(size=(AUTHORS, 8))}},
        {
            ("author", "writes", "paper"): edges(AUTHORS, PAPERS),
            ("paper", "written", "author"): edges(PAPERS, AUTHORS),
            ("paper", "cites", "paper"): edges(PAPERS, PAPERS, edge_weight=weights),
        },
        target="paper",
    )


class Model(nnx.Module):
    """Two layers of convolutions by relation, of a shard or of a batch."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        of_papers = {
            "writes": jg.nn.SAGEConv(8, 8, rngs=rngs),
            "cites": jg.nn.GCNConv(8, 8, rngs=rngs),
        }
        written = {"written": jg.nn.GATConv(8, 8, rngs=rngs)}
        self.first = jg.nn.HeteroConv({**of_papers, **written})
        last = {"writes": jg.nn.GINConv(8, 3, rngs=rngs), "cites": jg.nn.GCNConv(8, 3, rngs=rngs)}
        self.last = jg.nn.HeteroConv(last)

    def __call__(self, shard: Any, x: Any, key: Any = None, train: bool = False) -> jax.Array:
        first, last = shard if isinstance(shard, list) else (shard, shard)
        hidden = self.first(first, x)
        return self.last(last, jax.tree.map(jax.nn.relu, hidden))["paper"]


def sharded(graph: Any, parts: int) -> jg.parallel.ShardedGraph:
    partition = jg.partition.partition(graph, parts) if parts > 1 else None
    return jg.parallel.shard(graph, partition, jg.parallel.make_mesh(parts))


@pytest.mark.law(1)
@pytest.mark.parametrize(
    "parts", [pytest.param(x, marks=[pytest.mark.slow] * (x < 3)) for x in (1, 2, 3)]
)
def test_all_neighbours_of_a_typed_graph_give_its_gradients(parts: int) -> None:
    graph, model = typed_graph(), Model()
    whole = sharded(graph, parts)
    loss, expected = jg.train.loss_and_grad(model, whole)
    task = jg.train.NodeClassification()
    for cache_bytes in {0, 4000 * (parts > 1)}:
        loader = jg.sampling.Loader(
            graph, [-1, {"writes": -1, "cites": 1000}], sharded=whole, cache_bytes=cache_bytes
        )
        (batch,) = loader.batches(0)
        split = place_variables(split_model(model), batch)
        found, _, _, of_batch = jax.jit(
            lambda split, batch, key: gradients(split, batch, key, task, True)
        )(split, batch, random_key(0, batch))
        np.testing.assert_allclose(found, loss, rtol=2e-6)
        for one, other in zip(jax.tree.leaves(of_batch), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5 * abs(other).max())


@pytest.mark.law(5)
def test_curves_of_a_typed_graph_do_not_depend_on_devices() -> None:
    graph, curves = typed_graph(), []
    for parts in (1, 2):
        loader = jg.sampling.Loader(graph, [3, 2], sharded=sharded(graph, parts), batch_size=16)
        curves.append(jg.train.fit(Model(), loader, optax.adam(1e-2), epochs=3).loss)
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-5)
    assert curves[0][-1] < curves[0][0]


def test_relations_that_are_left_out_have_no_edges() -> None:
    loader = jg.sampling.Loader(typed_graph(), [{"cites": 2}, {"cites": 2}], batch_size=16)
    batch = next(iter(loader.batches(0)))
    flow = jg.parallel.spmd(
        lambda shard: {
            name: shard.sum(relation.edge_mask.sum())
            for name, relation in shard.flow[0].relations.items()
        }
    )(batch)
    assert flow["writes"] == 0 and flow["written"] == 0 and flow["cites"] > 0


def test_parts_on_disk_have_the_batches_of_the_graph(tmp_path: Path) -> None:
    graph = jg.datasets.stochastic_block_model(300, seed=0)
    random = np.random.default_rng(0)
    graph = graph.replace(edge_weight=random.random(graph.num_edges) + 0.5)

    def curve(loader: jg.sampling.Loader) -> list[float]:
        model = jg.nn.GCN(graph.num_features, 8, graph.num_classes, rngs=nnx.Rngs(0))
        return jg.train.fit(model, loader, optax.adam(1e-2), epochs=3).loss

    expected = curve(jg.sampling.Loader(graph, [3, 3], batch_size=64))
    for parts in (1, 2):
        folder = tmp_path / str(parts)
        jg.parallel.write_parts(graph, jg.partition.partition(graph, parts), folder)
        source = jg.parallel.open_parts(folder)
        placed = jg.parallel.place(source, jg.parallel.make_mesh(parts)) if parts > 1 else None
        found = curve(jg.sampling.Loader(source, [3, 3], sharded=placed, batch_size=64))
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def batch_of_graphs(members: int = 0) -> jg.TypedGraph:
    """Rings with a class each; the first node is also a member of so many other graphs."""
    random, sizes = np.random.default_rng(0), range(3, 15)
    rings = []
    for size in sizes:
        ring = np.arange(size)
        rows = random.normal(size=(size, 4))
        rings.append(jg.Graph.from_edges(ring, np.roll(ring, 1), nodes=rows))
    mask = np.arange(len(rings)) % 3 == 0
    classes = np.arange(len(rings)) % 2
    graph = jg.Graph.batch(rings, labels=classes, train_mask=~mask, val_mask=mask)
    ends = ("node", "member", "graph")
    of = graph.edge_sets[ends]
    more = {"senders": np.append(of.senders, np.zeros(members, int))}
    more |= {"receivers": np.append(of.receivers, np.arange(1, 1 + members))}
    return dataclasses.replace(graph, edge_sets={**graph.edge_sets, ends: more})


def fitted(graph: jg.TypedGraph, parts: int) -> list[float]:
    gin = jg.nn.GIN(4, 8, 8, norm="batch", rngs=nnx.Rngs(0))
    model = jg.nn.GraphReadout(gin, jg.nn.Linear(8, 2, rngs=nnx.Rngs(1)), reduce="mean")
    sharded = jg.parallel.shard(graph, scattered(graph, parts), jg.parallel.make_mesh(parts))
    loader = jg.sampling.Loader(graph, [-1, -1], sharded=sharded, batch_size=4)
    return [
        record.loss for record in jg.train.fit(model, loader, optax.adam(0.01), epochs=3).records
    ]


@pytest.mark.slow
def test_batch_norm_of_whole_graphs_does_not_depend_on_the_number_of_devices() -> None:
    graph = batch_of_graphs()
    np.testing.assert_allclose(fitted(graph, 2), fitted(graph, 1), rtol=1e-4)


def test_batch_norm_is_refused_where_graphs_share_a_node() -> None:
    with pytest.raises(ValueError, match="some nodes are in several devices' share"):
        fitted(batch_of_graphs(members=1), 2)
