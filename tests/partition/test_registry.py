"""Partitioners by name: their common promises, and their errors."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgraph import Graph
from jaxgraph.partition import methods, partition
from tests.strategies import graphs, random_edges

RING = Graph.from_edges(np.arange(12), (np.arange(12) + 1) % 12, num_nodes=12)


def cost_for(method: str, graph: Graph) -> np.ndarray | None:
    return 1 + graph.in_degrees() if method == "cost" else None


def test_the_names() -> None:
    assert methods() == ["hash", "random", "equal-vertices", "equal-edges", "metis", "cost"]


@pytest.mark.parametrize("method", methods())
@settings(max_examples=8)
@given(graph=graphs(), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_every_node_has_one_part_and_no_part_is_empty(
    method: str, graph: Graph, seed: int, data: st.DataObject
) -> None:
    num_parts = data.draw(st.integers(1, graph.num_nodes))
    found = partition(graph, num_parts, method, seed, node_cost=cost_for(method, graph))
    assert (found.num_parts, found.method) == (num_parts, method)
    assert found.assignment.shape == (graph.num_nodes,)
    assert found.counts().sum() == graph.num_nodes
    # Hashing treats one node at a time and cannot know the size of parts.
    if method != "hash":
        assert found.counts().min() >= 1


@pytest.mark.parametrize("method", methods())
def test_the_same_arguments_give_the_same_parts(method: str) -> None:
    senders, receivers = random_edges(300, 1500, seed=0)
    graph = Graph.from_edges(senders, receivers, num_nodes=300)
    cost = cost_for(method, graph)
    first, again, other = (
        partition(graph, 6, method, seed, node_cost=cost).assignment for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    # Ranges do not depend on the seed; many groups of METIS need not.
    if method != "cost":
        assert np.array_equal(first, other) == method.startswith("equal-")


def test_metis_and_seed_zero_are_the_defaults() -> None:
    found = partition(RING, 3)
    assert found.method == "metis"
    named = partition(RING, 3, method="metis", seed=0, balance="nodes", objective="cut")
    np.testing.assert_array_equal(found.assignment, named.assignment)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_parts": 13}, r"got 13 for a graph of 12 nodes.*num_parts=12"),
        ({"num_parts": 0}, r"num_parts: got 0"),
        ({"num_parts": 2.5}, r"num_parts: got 2.5"),
        ({"method": "metits"}, r"method: got 'metits'.*Did you mean 'metis'\?"),
        ({"method": "equal_edges"}, r"Did you mean 'equal-edges'\?"),
        ({"balance": "node"}, r"Did you mean 'nodes'\?"),
        ({"objective": "Volume"}, r"Did you mean 'volume'\?"),
        ({"order": "metsi"}, r"order: got 'metsi'; .*rcm, degree, metis.*Did you mean 'metis'\?"),
        ({"method": "hash", "balance": "edges"}, r"'hash' cannot aim at 'edges', only at nodes"),
        ({"method": "random", "objective": "volume"}, r"'random' cannot aim at 'volume'"),
        ({"balance": "labels"}, r"training mask and the graph has none"),
    ],
)
def test_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call: dict[str, Any] = {"num_parts": 2} | arguments
        partition(RING, **call)


def test_equal_edges_may_be_asked_for_equal_edges() -> None:
    np.testing.assert_array_equal(
        partition(RING, 3, "equal-edges", balance="edges").assignment,
        np.repeat([0, 1, 2], 4),
    )
