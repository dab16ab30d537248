import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import SMALL_GRAPHS, skewed_assignment, small_graphs


def test_small_graphs_hold_what_their_names_say():
    by_name = {graph.name: graph for graph in SMALL_GRAPHS}
    isolated = by_name["isolated-nodes"]
    assert ((isolated.in_degrees() == 0) & (isolated.out_degrees() == 0)).sum() >= 14
    assert by_name["star-in"].in_degrees().max() == 66
    assert by_name["star-out"].out_degrees().max() == 66
    assert by_name["no-edges"].num_edges == 0
    loops = by_name["self-loops"]
    assert 0 < (loops.senders == loops.receivers).sum() < loops.num_edges
    pairs = np.stack([by_name["repeated-edges"].senders, by_name["repeated-edges"].receivers])
    assert len(np.unique(pairs, axis=1).T) < pairs.shape[1]
    assert any(graph.num_nodes % 2 and graph.num_nodes % 3 for graph in SMALL_GRAPHS)


def test_edge_data_changes_nothing_else():
    for plain, rich in zip(SMALL_GRAPHS, small_graphs(edge_data=True), strict=True):
        np.testing.assert_array_equal(plain.nodes, rich.nodes)
        np.testing.assert_array_equal(plain.senders, rich.senders)
        assert rich.edge_weight is not None and rich.edge_weight.shape == (plain.num_edges,)


@given(st.integers(1, 70), st.integers(1, 9))
def test_skewed_assignment_leaves_part_zero_empty(num_nodes: int, num_parts: int):
    assignment = skewed_assignment(num_nodes, num_parts)
    assert assignment.shape == (num_nodes,) and assignment.max() < num_parts
    assert (0 in assignment) == (num_parts == 1)
