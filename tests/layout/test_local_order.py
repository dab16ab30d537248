"""Owners, rows and edges of the parts, compared with looking at one edge at a time."""

from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.layout.local_order import local_order
from jaxgraph.partition import Partition
from tests.strategies import assignments, graphs


@given(st.data())
def test_nodes_stand_by_part_with_the_boundary_first(data):
    graph = data.draw(graphs())
    num_parts = data.draw(st.integers(1, 5))
    owner = data.draw(assignments(graph.num_nodes, num_parts))
    order = local_order(graph, Partition.from_assignment(owner, num_parts))
    pairs = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    boundary = {node for pair in pairs if owner[pair[0]] != owner[pair[1]] for node in pair}
    for part in range(num_parts):
        own = [node for node in range(graph.num_nodes) if owner[node] == part]
        expected = sorted(own, key=lambda node: (node not in boundary, node))
        assert order.nodes_of(part).tolist() == expected
        assert order.row[expected].tolist() == list(range(len(expected)))
        assert order.boundary[part] == len(boundary & set(own))
        edges = order.edges[order.edge_ptr[part] : order.edge_ptr[part + 1]]
        assert edges.tolist() == [e for e, (_, r) in enumerate(pairs) if owner[r] == part]
    assert order.part.tolist() == owner.tolist()
    assert order.num_parts == num_parts
