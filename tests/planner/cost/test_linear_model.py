"""The cost model: finds what made its samples, stays sane where it cannot, reads what it wrote."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from jaxgraph import Graph
from jaxgraph.partition import Partition, partition, report
from jaxgraph.planner import CostModel, Sample, node_cost
from jaxgraph.planner.cost.features import DEFAULT, FEATURES, Access, part_features
from tests.strategies import random_edges

ACCESS = Access(columns=8, row_bytes=32, cache_bytes=1 << 9)
WEIGHTS = {
    "padded rows": 3e-7,
    "nodes": 2e-7,
    "edges": 5e-8,
    "halo rows": 4e-7,
    "missed edges": 1e-8,
}


def some_graph(seed: int, num_nodes: int = 300) -> Graph:
    senders, receivers = random_edges(num_nodes, 8 * num_nodes, seed)
    return Graph.from_edges(senders, receivers**2 // num_nodes, num_nodes=num_nodes)


def samples_of(
    graph: Graph, num_parts: int, method: str = "equal-vertices", noise: float = 0.0, seed: int = 0
) -> list[Sample]:
    """Samples whose times are sums of the features, but for noise."""
    values = part_features(graph, partition(graph, num_parts, method), ACCESS, tuple(FEATURES))
    rng, samples = np.random.default_rng(seed), []
    for part, row in enumerate(values.tolist()):
        named = dict(zip(FEATURES, row, strict=True))
        seconds = sum(weight * named[name] for name, weight in WEIGHTS.items())
        seconds *= 1 + noise * rng.standard_normal()
        samples.append(Sample("GCNConv 8->8", "sar", "cpu", ACCESS, "g", part, named, seconds))
    return samples


def training_samples(noise: float = 0.0) -> list[Sample]:
    cuts = [(4, "equal-vertices"), (3, "hash"), (7, "equal-edges"), (2, "equal-vertices")]
    return [
        sample
        for seed, (parts, method) in enumerate(cuts)
        for sample in samples_of(some_graph(seed, 200 + 90 * seed), parts, method, noise, seed)
    ]


def predicted(model: CostModel, graph: Graph, parts: Partition) -> np.ndarray:
    return model.predict(part_features(graph, parts, model.access, model.features))


def test_predicts_graphs_never_seen() -> None:
    model = CostModel.fit(training_samples())
    held_out = samples_of(some_graph(9, 500), 5)
    assert model.error(held_out).percentile_90 < 0.01
    assert model.error().percentile_90 < 0.03
    noisy = CostModel.fit(training_samples(0.05))
    assert noisy.error(held_out).median < 0.06
    assert 0.01 < noisy.error().median < 0.1


def test_weights_are_the_least_relative_squares() -> None:
    samples = training_samples(0.1)
    model = CostModel.fit(samples, ("nodes", "edges"))
    scaled = model.values / model.seconds[:, None]
    found = np.array([model.weights[name] for name in model.features])
    best = optimize.nnls(scaled, np.ones(len(scaled)))[1]
    assert np.linalg.norm(scaled @ found - 1) <= best * (1 + 1e-4)
    assert np.all(found >= 0)


@settings(deadline=None)
@given(st.permutations(training_samples(0.1)), st.integers(0, 16))
def test_order_and_portions_do_not_matter(samples: list[Sample], first: int) -> None:
    at_once = CostModel.fit(training_samples(0.1))
    in_turn = CostModel.fit(samples[:1]).update(samples[1 : first + 1]).update(samples[first + 1 :])
    assert in_turn.weights == at_once.weights
    assert in_turn.error() == at_once.error()


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 50))
def test_few_and_collinear_samples_do_not_blow_up(count: int, seed: int) -> None:
    samples = samples_of(some_graph(seed), 4, noise=0.2, seed=seed)[:count]
    model = CostModel.fit(samples + samples, tuple(FEATURES))
    known = model.predict(model.values)
    assert np.all(np.abs(known / model.seconds - 1) < 1)
    # Ten times everything is predicted to take ten times as long.
    np.testing.assert_allclose(model.predict(10 * model.values), 10 * known)
    other_graph = some_graph(seed + 1)
    other = predicted(model, other_graph, partition(other_graph, 3, "hash"))
    assert np.all(other >= 0) and np.all(other < 100 * model.seconds.max())


def test_costs_of_nodes_are_predictions_of_parts() -> None:
    graph, model = some_graph(5), CostModel.fit(training_samples())
    parts = partition(graph, 3, "hash")
    cost = node_cost([model, model], graph)
    found = report(graph, parts, cost).predicted_cost
    assert found is not None
    np.testing.assert_allclose(found, 2 * predicted(model, graph, parts))
    by_cost = partition(graph, 4, "cost", order="rcm", node_cost=cost)
    balance = report(graph, by_cost, cost).cost_balance
    assert balance is not None and balance < 1.1


def test_a_file_is_read_as_written_and_another_is_refused(tmp_path: Path) -> None:
    model, path = CostModel.fit(training_samples(0.1)), tmp_path / "model.json"
    model.save(path)
    read = CostModel.load(path)
    assert read.weights == model.weights and read.error() == model.error()
    assert (read.layer, read.access) == (model.layer, model.access)
    fields = json.loads(path.read_text())
    wrong = [{"format": 2}, {"features": ["edgs"]}, {"seconds": [-1.0]}, {"access": {"colums": 8}}]
    for text in ("{", "[]", *(json.dumps(fields | change) for change in wrong)):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"model\.json is no cost model"):
            CostModel.load(path)


def test_samples_that_do_not_belong_are_refused() -> None:
    samples = training_samples()
    model = CostModel.fit(samples)
    other = dataclasses.replace(samples[0], layer="GATConv 8->8")
    with pytest.raises(ValueError, match="layer is 'GATConv 8->8'; expected 'GCNConv 8->8'"):
        model.update([other])
    with pytest.raises(ValueError, match="got none"):
        CostModel.fit([])
    with pytest.raises(ValueError, match="times above 0"):
        model.update([dataclasses.replace(samples[0], seconds=0.0)])
    with pytest.raises(ValueError, match="1 different part"):
        CostModel.fit(samples[:1]).error()
    empty = CostModel("GCNConv 8->8", "sar", "cpu", ACCESS)
    with pytest.raises(ValueError, match="has no samples"):
        empty.predict(np.ones((1, len(DEFAULT))))


def test_node_cost_says_what_it_expects() -> None:
    graph = some_graph(0)
    model = CostModel.fit(samples_of(graph, 4))
    by_name = node_cost({"layer": model}, graph)
    np.testing.assert_array_equal(by_name.per_node, node_cost(model, graph).per_node)
    for wrong in ("GCN", [model, 3], []):
        with pytest.raises(ValueError, match="expected the CostModels of fit_layers"):
            node_cost(wrong, graph)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"expected a jaxgraph\.Graph"):
        node_cost(model, 3)  # pyright: ignore[reportArgumentType]
