"""Runs that measure their layers between epochs, and move to better parts."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import Graph, nn
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from jaxgraph.partition import partition
from jaxgraph.planner.cost import online, watch
from jaxgraph.planner.cost.features import FEATURES, part_features
from jaxgraph.train import Checkpoints, History, fit
from tests.tolerance import assert_close
from tests.train.small_model import CLASSES, SmallNet, small_graph
from tests.train.small_model import FEATURES as COLUMNS

PARTS, EPOCHS = 4, 6
ADAM = optax.adam(0.02)


def hub_graph() -> Graph:
    """Random, with the edges of most nodes turned to the first ten."""
    graph = small_graph(120)
    turned = np.arange(graph.num_edges) % 4 > 0
    receivers = np.where(turned, graph.receivers % 10, graph.receivers)
    return graph.replace(receivers=receivers.astype(np.int32))


def placed(graph: Graph, parts: int = PARTS, mode: str = "domain") -> ShardedGraph:
    return shard(graph, partition(graph, parts, "equal-vertices"), make_mesh(parts), mode)


def model(**options: Any) -> nn.GCN:
    options = {"dropout": 0.5, "norm": "batch"} | options
    return nn.GCN(COLUMNS, 8, CLASSES, rngs=nnx.Rngs(0), **options)


def run(sharded: Any, epochs: int = EPOCHS, **options: Any) -> History:
    """A run that ends after `EPOCHS` epochs, whatever it believes."""
    net, options = model(), {"epochs": epochs, "seed": 3} | options
    with jax.transfer_guard("disallow"):
        return fit(net, sharded, ADAM, on_epoch=lambda r: r.epoch == EPOCHS, **options)


@pytest.fixture
def devices_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices with cores of their own, on which a layer takes 10 microseconds an edge."""

    def window(task: Any, part: Any, reference: Any) -> float:
        edges = np.asarray(part.receivers.in_degree)[np.asarray(part.receivers.node_mask)].sum()
        return float(1e-5 * edges / reference.seconds)

    monkeypatch.setattr(online, "_window", window)
    monkeypatch.setattr(watch, "SHARE", np.inf)
    monkeypatch.setattr(watch, "groups_of", lambda s: np.arange(PARTS))


@pytest.mark.usefixtures("devices_apart")
def test_a_run_moves_to_better_parts_and_its_curve_carries_on() -> None:
    graph = hub_graph()
    sharded = placed(graph)
    expected = run(sharded)
    found = run(sharded, epochs=10**6, source=graph, repartition="auto")
    assert found.measured is not None
    (move,) = found.measured.moves
    # 2 layers on 4 parts, 4 windows a pause.
    assert move.epoch == 2
    assert found.measured.search_seconds > 0
    edges = np.bincount(move.partition.assignment, graph.in_degrees(), PARTS)
    before = graph.in_degrees()[: graph.num_nodes // PARTS].sum()
    assert edges.max() < 0.6 * before
    assert 0 < move.predicted_gain < 2e-5 * before
    assert move.seconds > 0 and move.predicted_seconds > 0
    seconds = np.array(found.epoch_seconds)
    assert move.measured_gain == np.median(seconds[:2]) - np.median(seconds[2:])
    assert found.to_dict()["measured"]["moves"][0]["epoch"] == 2

    assert [record.epoch for record in found.records] == list(range(1, EPOCHS + 1))
    assert_close(found.loss, expected.loss, reduction_length=120)
    assert_close(found.val_loss, expected.val_loss, reduction_length=120)
    assert found.best_epoch == expected.best_epoch
    for leaf, other in zip(*map(jax.tree.leaves, (found.state, expected.state)), strict=True):
        assert_close(leaf, other, reduction_length=120)


@pytest.mark.usefixtures("devices_apart")
def test_a_run_with_few_epochs_left_stays() -> None:
    graph = hub_graph()
    found = run(placed(graph), source=graph, repartition="auto")
    assert found.measured is not None
    assert found.measured.windows == 4 * (EPOCHS - 1)
    assert found.measured.moves == ()


@pytest.mark.slow
def test_measurements_change_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SHARE", np.inf)
    graph = hub_graph()
    sharded = placed(graph, 2, "sar")
    expected = run(sharded)
    found = run(sharded, source=graph, measure_every=2)
    assert found.loss == expected.loss and found.val_loss == expected.val_loss
    record = found.measured
    assert record is not None and record.windows == 8
    assert record.share == record.seconds / sum(found.epoch_seconds)
    assert record.compile_seconds > 0
    assert [(s.layer, s.part) for s in record.samples] == [
        (f"GCNConv {widths}", part)
        for widths in (f"{COLUMNS}->8, first", f"8->{CLASSES}")
        for part in range(2)
    ]
    first = record.samples[0]
    parts = partition(graph, 2, "equal-vertices")
    values = part_features(graph, parts, first.access, tuple(FEATURES))
    np.testing.assert_array_equal([first.features[name] for name in FEATURES], values[0])
    assert expected.measured is None and "measured" not in expected.to_dict()


def test_a_layer_that_is_aggregated_once_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SHARE", np.inf)
    options: dict[str, Any] = {"epochs": 2, "measure_every": 1}
    found = fit(model(dropout=0.0), small_graph(), ADAM, **options).measured
    assert found is not None
    assert {sample.layer for sample in found.samples} == {f"GCNConv 8->{CLASSES}"}


def test_measurements_take_two_percent() -> None:
    """The budget, with windows that take 50 ms beside epochs of 100 ms."""
    made: Any = object.__new__(watch.Watch)
    made._spent, made._windows = 0.0, 0

    class Profile:
        longest_seconds = 0.05

        def take(self) -> float:
            return 0.05

    made._profile = Profile()
    for epoch in range(1, 101):
        made._measure(0.1 * epoch)
        assert made._spent <= 0.02 * 0.1 * epoch
    assert made._windows == 4


def test_wrong_requests_are_refused() -> None:
    graph = small_graph()
    sharded = placed(graph, 2)

    def refused(match: str, given: Any = sharded, net: Any = None, **options: Any) -> None:
        with pytest.raises(ValueError, match=match):
            fit(model() if net is None else net, given, ADAM, epochs=2, **options)

    auto: dict[str, Any] = {"source": graph, "repartition": "auto"}
    refused("repartition is 'always'; expected 'auto'", source=graph, repartition="always")
    refused("repartition='auto' needs the graph that was sharded", repartition="auto")
    refused("measure_every needs the graph that was sharded", measure_every=2)
    refused("measure_every is 0; expected an integer, at least 1", source=graph, measure_every=0)
    refused("source is read by measure_every and repartition", source=graph)
    refused("needs one graph; got a list", [sharded, sharded], **auto)
    refused("got a SmallNet, which is not its layers", net=SmallNet(), **auto)
    refused("got an APPNP", net=nn.APPNP(COLUMNS, 8, CLASSES, rngs=nnx.Rngs(0)), **auto)
    one = model(dropout=0.0, num_layers=1)
    refused("only layer of the model reads sparse features or aggregates once", net=one, **auto)
    refused("mode 'p3'", placed(graph, 2, "p3"), **auto)
    refused("a ShardedGraph", source=sharded, measure_every=1)
    refused("another graph than the one to train on", graph, source=small_graph(), measure_every=1)
    assert graph.nodes is not None and graph.labels is not None
    others = {
        "numbers of nodes and edges": small_graph(59),
        "in-degrees": graph.replace(receivers=np.roll(graph.receivers, 1) // 2),
        "labels": graph.replace(labels=np.roll(graph.labels, 1)),
        "features": graph.replace(nodes=graph.nodes + 1),
    }
    for name, other in others.items():
        refused(
            f"another graph than the sharded one: they differ in {name}", **auto | {"source": other}
        )
    lost = dataclasses.replace(sharded, counts=None)
    refused("has lost its counts", lost, **auto)


@pytest.mark.usefixtures("devices_apart")
def test_a_resumed_run_learns_from_what_was_measured_before(tmp_path: Path) -> None:
    graph, folder = hub_graph(), tmp_path / "run"
    options: dict[str, Any] = {"source": graph, "measure_every": 1}
    before = run(placed(graph), **options, checkpoint=Checkpoints(folder)).measured
    again = Checkpoints(folder, resume=True)
    after = run(placed(graph), epochs=EPOCHS + 2, **options, checkpoint=again).measured
    assert before is not None and after is not None and before.samples
    kept = after.samples[: len(before.samples)]
    assert list(map(dataclasses.asdict, kept)) == list(map(dataclasses.asdict, before.samples))
    assert len(after.samples) > len(before.samples)
