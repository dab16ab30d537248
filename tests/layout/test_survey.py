"""Rows that pairs of parts exchange, compared with the quality report."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.layout.survey import survey
from jaxgraph.partition import Partition, report
from tests.strategies import assignments, graphs, small_graphs


@pytest.mark.parametrize("mode", ["sar", "domain"])
@given(data=st.data())
def test_halos_are_those_of_the_report(mode, data):
    graph = data.draw(graphs())
    num_parts = data.draw(st.integers(1, 5))
    parts = Partition.from_assignment(data.draw(assignments(graph.num_nodes, num_parts)), num_parts)
    found = survey(graph, parts, mode)
    assert np.array_equal(found.halo, report(graph, parts).halo_pairs)
    reversed_graph = graph.replace(senders=graph.receivers, receivers=graph.senders)
    expected = report(reversed_graph, parts).halo_pairs.T
    assert np.array_equal(found.reach, expected if mode == "sar" else np.zeros_like(expected))


@pytest.mark.parametrize(("mode", "groups"), [("sar", 9), ("domain", 3)])
def test_degrees_are_counted_in_the_groups_that_are_walked(mode, groups):
    graph = small_graphs()[-1]
    found = survey(graph, Partition.from_assignment(np.arange(37) % 3, 3), mode)
    for counts in (found.lengths.by_sender, found.lengths.by_receiver):
        assert counts.num_groups == groups
        assert np.sum(counts.rows * counts.lengths) == graph.num_edges


def test_repetitions_are_noticed():
    for graph in small_graphs():
        parts = Partition.from_assignment(np.zeros(graph.num_nodes, int), 1)
        pairs = np.stack([graph.senders, graph.receivers])
        repeated = np.unique(pairs, axis=1).shape[1] < graph.num_edges
        assert survey(graph, parts, "sar").has_repetitions == repeated
