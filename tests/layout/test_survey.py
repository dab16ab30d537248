"""Rows that pairs of parts exchange, compared with the quality report."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.layout.survey import survey
from jaxgraph.partition import Partition, report
from tests.strategies import assignments, graphs


@pytest.mark.parametrize("mode", ["sar", "domain"])
@given(data=st.data())
def test_halos_are_those_of_the_report(mode, data):
    graph = data.draw(graphs())
    num_parts = data.draw(st.integers(1, 5))
    parts = Partition.from_assignment(data.draw(assignments(graph.num_nodes, num_parts)), num_parts)
    found = survey(graph, parts, mode).extents
    assert np.array_equal(found.halo, report(graph, parts).halo_pairs)
    reversed_graph = graph.replace(senders=graph.receivers, receivers=graph.senders)
    expected = report(reversed_graph, parts).halo_pairs.T
    assert np.array_equal(found.reach, expected if mode == "sar" else np.zeros_like(expected))
