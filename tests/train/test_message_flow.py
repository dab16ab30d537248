"""Training on graphs with message flow: runs, bytes, parts in files, and bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import Graph, TypedGraph, datasets, nn, saga, train, transforms
from jaxgraph.analysis import traffic
from jaxgraph.layout.part_files import open_parts
from jaxgraph.parallel import gather_edges, make_mesh, place, shard, spmd, write_parts
from jaxgraph.partition import Partition, partition
from tests.law.passes import TOLERANCE, WIDE, graph_of, parts_of
from tests.strategies import NUM_CLASSES
from tests.tolerance import relative_error
from tests.training import HIDDEN

LAYERS = 2


def graph_with(val: Any = (60, 61)) -> Graph:
    """The crooked graph, of which few nodes have a loss."""
    graph = graph_of()
    chosen = {"train_mask": [10, 50, 90, 117], "val_mask": val, "test_mask": [70, 71]}
    nodes = np.arange(graph.num_nodes)
    return graph.replace(**{name: np.isin(nodes, some) for name, some in chosen.items()})


def model_of(kind: Any = nn.GraphSAGE, **options: Any) -> Any:
    return kind(WIDE, HIDDEN, NUM_CLASSES, num_layers=LAYERS, rngs=nnx.Rngs(0), **options)


def run(graph: Graph, parts: int, flow: int | None, mode: str = "sar", **options: Any) -> Any:
    how: dict[str, Any] = {"message_flow": flow}
    sharded = shard(graph, parts_of(parts, "hash"), make_mesh(parts), mode, **how)
    model = model_of(**options)
    history = train.fit(model, sharded, optax.adam(1e-2), epochs=4, seed=1)
    found = {"loss": history.loss, "val_loss": history.val_loss}
    return found | {"outputs": train.predict(model, sharded)}


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["sar", "domain"])
@pytest.mark.parametrize("val", [(60, 61), range(0, 118, 4)], ids=["all-splits", "train-alone"])
@pytest.mark.parametrize("options", [{}, {"dropout": 0.4}], ids=["aggregated", "dropout"])
def test_runs_are_those_without_it(val: Any, options: dict[str, Any], mode: str) -> None:
    val = [node for node in val if node not in (10, 50, 90, 117, 70, 71)]
    graph = graph_with(val)
    expected = run(graph, 1, None, **options)
    for name, value in run(graph, 3, LAYERS, mode, **options).items():
        assert relative_error(value, expected[name]) < TOLERANCE, name


@pytest.mark.parametrize("mode", ["sar", pytest.param("domain", marks=pytest.mark.slow)])
def test_labels_as_inputs_are_shown_and_hidden_alike(mode: str) -> None:
    graph = datasets.load("sbm", num_nodes=600, num_classes=3, num_features=8, degree=3, seed=0)
    few = np.arange(graph.num_nodes) % 15 == 0
    graph = graph.replace(train_mask=few, val_mask=np.roll(few, 1), test_mask=None)
    graph, found = transforms.with_label_columns(graph), []
    for parts, flow in ((1, None), (3, LAYERS)):
        how: dict[str, Any] = {"message_flow": flow}
        sharded = shard(graph, partition(graph, parts, "hash"), make_mesh(parts), mode, **how)
        model = nn.GCN(graph.num_features, HIDDEN, 3, dropout=0.2, rngs=nnx.Rngs(0))
        task = train.MaskedLabelPrediction()
        history = train.fit(model, sharded, optax.adam(1e-2), epochs=3, seed=1, task=task)
        found.append((history.loss, history.val_loss, history.metrics["train"]["accuracy"]))
    for one, other in zip(*found, strict=True):
        assert relative_error(one, other) < TOLERANCE


@pytest.mark.law(5)
def test_restricted_batch_norm_does_not_depend_on_the_number_of_devices() -> None:
    graph, options = graph_with(), {"norm": "restricted-batch"}
    expected, found = (run(graph, parts, LAYERS, **options) for parts in (1, 3))
    for name, value in found.items():
        assert relative_error(value, expected[name]) < TOLERANCE, name
    whole = run(graph, 1, None, **options)
    assert relative_error(whole["loss"], run(graph, 1, None, norm="batch")["loss"]) < TOLERANCE
    assert relative_error(whole["loss"], expected["loss"]) > 1e-3


def test_a_step_sends_and_computes_less() -> None:
    graph, sent, kept = graph_with(), [], []
    for flow in (None, LAYERS):
        how: dict[str, Any] = {"message_flow": flow}
        sharded = shard(graph, parts_of(3, "hash"), make_mesh(3), "domain", **how)
        model = model_of(nn.GCN, dropout=0.2)
        compiled = train.compile_train_step(model, sharded, optax.sgd(0.1))
        sent.append(sum(traffic(compiled).values()))
        analysis: Any = compiled.memory_analysis()
        kept.append(analysis.temp_size_in_bytes)
    assert sent[1] < 0.8 * sent[0]
    assert kept[1] < kept[0]


def test_parts_in_files_train_alike(tmp_path: Path) -> None:
    graph = graph_with()
    write_parts(graph, parts_of(3, "hash"), tmp_path / "parts", "sar", message_flow=LAYERS)
    sharded = place(open_parts(tmp_path / "parts"), make_mesh(3))
    assert "message flow of 2 layers" in repr(sharded)
    found = train.fit(model_of(), sharded, optax.adam(1e-2), epochs=4, seed=1)
    assert np.array_equal(found.loss, run(graph, 3, LAYERS)["loss"])


@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_results_of_edges_are_gathered(mode: str) -> None:
    graph, parts = graph_with(), parts_of(3, "hash")
    expected = np.arange(1, graph.num_edges + 1, dtype=np.float32)
    graph = graph.replace(edge_weight=expected)
    sharded = shard(graph, parts, make_mesh(3), mode, message_flow=LAYERS)
    weights = spmd(lambda shard: shard.edge_weight, outputs="edges")(sharded)
    assert np.array_equal(gather_edges(weights, sharded, graph, parts), expected)


class OwnModel(nnx.Module):
    """Two convolutions, each on the neighbourhood of its layer, or both on the shard."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first = nn.GCNConv(WIDE, HIDDEN, rngs=rngs)
        self.second = nn.GCNConv(HIDDEN, NUM_CLASSES, rngs=rngs)

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        first, second = shard if isinstance(shard, list) else (shard, shard)
        return self.second(second, jax.nn.relu(self.first(first, x)))


class OnTheShard(OwnModel):
    """One that knows of no other neighbourhood than the shard."""

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        return self.second(shard, jax.nn.relu(self.first(shard, x)))


@pytest.mark.expensive
@pytest.mark.parametrize("make", [OwnModel, lambda: model_of(saga.GatedGCN)])
def test_own_models_take_a_neighborhood_for_each_layer(make: Any) -> None:
    graph, found = graph_with(), []
    for flow in (None, LAYERS):
        how: dict[str, Any] = {"message_flow": flow}
        sharded = shard(graph, parts_of(2, "hash"), make_mesh(2), **how)
        found.append(train.loss_and_grad(make(), sharded))
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        assert relative_error(one, other) < TOLERANCE


MESH = make_mesh(1)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "p3": ({"mode": "p3"}, "mode is 'p3', and message_flow is 2; expected one of 'sar', 'domain'"),
    "stream": ({"mode": "stream"}, "mode is 'stream', and message_flow is 2"),
    "pad": ({"pad_to": 3}, "pad_to: not where message_flow is 2"),
    "text": ({"message_flow": "all"}, "message_flow is 'all'; expected the number of layers"),
    "none": ({"message_flow": 0}, "message_flow is 0; expected the number of layers"),
    "true": ({"message_flow": True}, "message_flow is True; expected the number of layers"),
}


class OfEdges(train.NodeClassification):
    """A task that reads edges."""

    def sums(self, outputs: Any, shard: Any, split: str) -> Any:
        return super().sums(outputs + 0 * shard.in_degree[:, None], shard, split)


def test_a_task_that_reads_edges_is_refused() -> None:
    sharded = shard(graph_with(), None, MESH, message_flow=2)
    with pytest.raises(ValueError, match="a task is given the nodes with a loss, without edges"):
        train.loss_and_grad(model_of(), sharded, task=OfEdges())


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_do_not_fit_are_refused(name: str) -> None:
    given, message = REFUSED[name]
    options: dict[str, Any] = {"message_flow": 2, **given}
    with pytest.raises(ValueError, match=message):
        shard(graph_with(), None, MESH, **options)


def test_partitions_and_names_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    graph, two = graph_with(), parts_of(2, "hash")
    with pytest.raises(ValueError, match="partition: got a str; expected a Partition of the graph"):
        shard(graph, "metis", MESH, message_flow=2)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"num_nodes=5\); expected a Partition .* 120 nodes"):
        shard(graph, Partition(np.zeros(5, np.int32), 1), MESH, message_flow=2)
    named = graph.with_nodes(hops_to_loss=np.zeros(graph.num_nodes))
    with pytest.raises(ValueError, match=r"has node_data\['hops_to_loss'\].* give yours another"):
        shard(named, None, MESH, message_flow=2)
    with pytest.raises(ValueError, match="2 parts and edges for each of 2 layers"):
        shard(graph, two, MESH, message_flow=2)
    write_parts(graph, two, tmp_path / "parts", message_flow=2)
    with pytest.raises(ValueError, match="this one has edges for each of 2 layers"):
        place(open_parts(tmp_path / "parts"), MESH, "stream")


def test_graphs_and_models_that_need_all_nodes_are_refused() -> None:
    graph = graph_with()
    types = np.zeros(graph.num_edges, np.int32)
    with pytest.raises(ValueError, match="the graph has edge_type"):
        shard(graph.replace(edge_type=types), None, MESH, message_flow=2)
    with pytest.raises(ValueError, match=r"message_flow=.*expected a jaxgraph.Graph"):
        shard(TypedGraph.of(graph), None, MESH, message_flow=2)
    with pytest.raises(ValueError, match="the graph has no features, and learned rows are those"):
        shard(graph.replace(nodes=None), None, MESH, message_flow=2)
    sharded = shard(graph, None, MESH, message_flow=2)
    with pytest.raises(ValueError, match="OnTheShard was called with a list of 2 neighborhoods"):
        train.loss_and_grad(OnTheShard(), sharded, train=True)
    with pytest.raises(ValueError, match="has a BatchNorm, whose mean and variance are over all"):
        train.loss_and_grad(model_of(norm="batch"), sharded, train=True)
    with pytest.raises(ValueError, match=r"GCN has 3 layers that .*flow=2; shard it with .*flow=3"):
        three = nn.GCN(WIDE, HIDDEN, NUM_CLASSES, num_layers=3, rngs=nnx.Rngs(0))
        train.fit(three, sharded, optax.sgd(0.1), epochs=1)
    with pytest.raises(ValueError, match=r"GCN has 3 layers that .*flow=2; shard it with .*flow=3"):
        train.evaluate(three, sharded)
    with pytest.raises(ValueError, match=r"APPNP has 0 layers .*; shard it without message_flow"):
        train.loss_and_grad(model_of(nn.APPNP), sharded)
    with pytest.raises(ValueError, match="measure_every, repartition: not for a graph with mess"):
        train.fit(model_of(), sharded, optax.sgd(0.1), epochs=1, source=graph, measure_every=1)
