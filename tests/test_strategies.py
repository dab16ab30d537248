import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph import Graph
from tests.strategies import SMALL_GRAPHS, assignments, graphs, skewed_assignment, small_graphs


def check_complete(graph: Graph):
    assert graph.nodes is not None and graph.nodes.shape == (graph.num_nodes, graph.num_features)
    assert graph.labels is not None and graph.labels.min() >= 0
    masks = [m for m in (graph.train_mask, graph.val_mask, graph.test_mask) if m is not None]
    assert len(masks) == min(3, graph.num_nodes)
    assert all(mask.any() for mask in masks)
    assert np.sum(masks, axis=0).max() == 1


def test_small_graphs_are_complete_and_named_apart():
    for graph in SMALL_GRAPHS:
        check_complete(graph)
    assert len({graph.name for graph in SMALL_GRAPHS}) == len(SMALL_GRAPHS)


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


@given(graphs())
def test_random_graphs_are_complete(graph: Graph):
    check_complete(graph)


@given(st.integers(1, 70), st.integers(1, 9))
def test_skewed_assignment_leaves_part_zero_empty(num_nodes: int, num_parts: int):
    assignment = skewed_assignment(num_nodes, num_parts)
    assert assignment.shape == (num_nodes,) and assignment.max() < num_parts
    assert (0 in assignment) == (num_parts == 1)


@given(st.data(), st.integers(1, 30), st.integers(1, 8))
def test_assignments_are_in_range(data: st.DataObject, num_nodes: int, num_parts: int):
    assignment = data.draw(assignments(num_nodes, num_parts))
    assert assignment.shape == (num_nodes,) and assignment.dtype == np.int32
    assert assignment.min() >= 0 and assignment.max() < num_parts
