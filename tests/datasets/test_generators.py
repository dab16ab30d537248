"""Generated graphs: exact counts, dependence on the seed, and features that predict the classes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.datasets import chung_lu, random_graph, rmat, stochastic_block_model
from jaxgraph.graph import Graph
from tests.datasets.structure import (
    is_symmetric,
    num_repeated_edges,
    num_self_loops,
    present,
    share_of_equal_labels,
)

GENERATORS: list[Callable[..., Graph]] = [stochastic_block_model, chung_lu, rmat, random_graph]
each = pytest.mark.parametrize("generate", GENERATORS, ids=lambda function: function.__name__)


@each
@given(
    num_nodes=st.integers(1, 300),
    share=st.floats(0, 0.2),
    num_classes=st.integers(1, 5),
    num_features=st.integers(0, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_size_gives_a_simple_undirected_graph_of_exactly_that_size(
    generate: Callable[..., Graph],
    num_nodes: int,
    share: float,
    num_classes: int,
    num_features: int,
    seed: int,
) -> None:
    degree = share * (num_nodes - 1)
    graph = generate(
        num_nodes,
        degree,
        num_classes=min(num_classes, num_nodes),
        num_features=num_features,
        seed=seed,
    )
    assert (graph.num_nodes, graph.num_features) == (num_nodes, num_features)
    assert graph.num_edges == 2 * round(num_nodes * degree / 2)
    assert is_symmetric(graph)
    assert (num_self_loops(graph), num_repeated_edges(graph)) == (0, 0)
    sizes = np.bincount(present(graph.labels), minlength=min(num_classes, num_nodes))
    assert np.ptp(sizes) <= 1
    assert present(graph.train_mask).any()


@each
def test_the_seed_fixes_everything(generate: Callable[..., Graph]) -> None:
    first, again, other = (generate(200, 6, seed=seed) for seed in (5, 5, 6))
    for key, value in vars(first).items():
        np.testing.assert_array_equal(value, getattr(again, key))
    assert first.senders.tobytes() != other.senders.tobytes()
    assert present(first.nodes).tobytes() != present(other.nodes).tobytes()


@each
def test_features_tell_the_classes_better_with_more_signal(generate: Callable[..., Graph]) -> None:
    def accuracy(feature_signal: float) -> float:
        graph = generate(2000, 4, num_classes=4, feature_signal=feature_signal)
        nodes, labels = present(graph.nodes), present(graph.labels)
        train, test = present(graph.train_mask), present(graph.test_mask)
        means = np.stack([nodes[train & (labels == c)].mean(axis=0) for c in range(4)])
        distances = ((nodes[test, None] - means) ** 2).sum(axis=-1)
        return float((distances.argmin(axis=1) == labels[test]).mean())

    assert accuracy(0.0) < 0.35
    assert 0.6 < accuracy(0.25) < 0.97
    assert accuracy(1.0) > 0.99


@each
def test_ids_tell_nothing_about_degree_or_class(generate: Callable[..., Graph]) -> None:
    graph = generate(4000, 8)
    ids = np.arange(4000)
    for values in (graph.in_degrees(), present(graph.labels)):
        assert abs(np.corrcoef(ids, values)[0, 1]) < 0.06


@pytest.mark.parametrize("homophily", [0.0, 0.5, 0.8, 1.0])
def test_homophily_is_the_share_of_edges_inside_a_block(homophily: float) -> None:
    graph = stochastic_block_model(5000, 8, homophily=homophily, num_features=0)
    assert share_of_equal_labels(graph) == pytest.approx(homophily, abs=0.02)


def test_blocks_have_equal_weights_without_degree_correction() -> None:
    plain = stochastic_block_model(5000, 16, degree_exponent=None, num_features=0)
    corrected = stochastic_block_model(5000, 16, degree_exponent=2.5, num_features=0)
    # Poisson of mean 16, against a power law.
    assert plain.in_degrees().max() < 45 < 150 < corrected.in_degrees().max()
    assert plain.in_degrees().std() == pytest.approx(4, rel=0.1)


def test_expected_degrees_of_chung_lu_follow_the_power_law() -> None:
    # Summed over seeds, the k-th largest degree falls as k^(-1 / (exponent - 1)).
    exponent = 3.0
    runs = [chung_lu(4000, 20, degree_exponent=exponent, num_features=0, seed=s) for s in range(4)]
    degrees = np.mean([np.sort(run.in_degrees())[::-1] for run in runs], axis=0)
    ranks = np.arange(50, 1000)
    slope = np.polyfit(np.log(ranks), np.log(degrees[ranks]), 1)[0]
    assert slope == pytest.approx(-1 / (exponent - 1), abs=0.05)


def test_rmat_is_skewed_unless_its_quadrants_are_equal() -> None:
    skewed = rmat(4096, 16, num_features=0)
    even = rmat(4096, 16, probabilities=(0.25, 0.25, 0.25, 0.25), num_features=0)
    assert even.in_degrees().max() < 40 < 300 < skewed.in_degrees().max()
    assert share_of_equal_labels(skewed) > 1.3 * share_of_equal_labels(even)


REFUSED: list[tuple[Callable[..., Graph], dict[str, Any], str]] = [
    (random_graph, {"num_nodes": 0}, "num_nodes: got 0; expected at least 1"),
    (random_graph, {"num_nodes": 1e3}, "num_nodes: got 1000.0; expected an integer"),
    (random_graph, {"num_nodes": 9, "degree": 9}, "degree: got 9; expected a mean degree from 0"),
    (random_graph, {"num_nodes": 10**12}, "num_nodes: 10+ of degree 16: needs 391,0"),
    (random_graph, {"num_nodes": 9, "degree": 2, "num_classes": 10}, "num_classes: got 10; exp"),
    (stochastic_block_model, {"homophily": 1.1}, "homophily: got 1.1; expected a share"),
    (chung_lu, {"degree_exponent": 2.0}, "degree_exponent: got 2.0; expected more than 2"),
    (rmat, {"probabilities": (0.5, 0.5, 0.5, 0.5)}, "probabilities: got .* sum 1"),
    (
        stochastic_block_model,
        {"num_nodes": 100, "degree": 40, "homophily": 1.0},
        "degree: 40 asks for 2000 undirected edges, of which only .* could be placed",
    ),
]


@pytest.mark.parametrize(("generate", "options", "message"), REFUSED)
def test_impossible_graphs_are_refused(
    generate: Callable[..., Graph], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        generate(**options)
