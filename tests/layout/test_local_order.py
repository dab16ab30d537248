"""Owners, rows and edges of the parts, compared with looking at one edge at a time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.layout import local_order as module
from jaxgraph.layout.local_order import local_order
from jaxgraph.partition import Partition
from tests.strategies import assignments, complete, graphs


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


def test_edges_are_scanned_in_pieces(monkeypatch):
    rng = np.random.default_rng(0)
    graph = complete(rng.integers(0, 30, 200), rng.integers(0, 30, 200), 30, "pieces")
    parts = Partition.from_assignment(np.arange(30) % 3, 3)
    whole = local_order(graph, parts)
    monkeypatch.setattr(module, "_EDGES_AT_A_TIME", 7)
    pieces = local_order(graph, parts)
    for name in ("part", "row", "nodes", "part_ptr", "boundary", "edges", "edge_ptr"):
        assert np.array_equal(getattr(pieces, name), getattr(whole, name)), name
