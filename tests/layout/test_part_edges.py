"""The edges of a part, in the order on which both of their ends agree."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph import Graph
from jaxgraph.layout.local_order import LocalOrder, local_order
from jaxgraph.layout.part_edges import PartEdges, incoming_edges, outgoing_edges, outgoing_rows
from jaxgraph.partition import Partition
from tests.oracles.edges import Edges
from tests.strategies import assignments, graphs


def drawn(data: st.DataObject, fewest: int = 1) -> tuple[Graph, LocalOrder]:
    graph = data.draw(graphs())
    num_parts = data.draw(st.integers(fewest, 5))
    owner = data.draw(assignments(graph.num_nodes, num_parts))
    return graph, local_order(graph, Partition.from_assignment(owner, num_parts))


def group_of_edge(edges: PartEdges) -> np.ndarray:
    pointers = edges.by_sender.edge_ptr
    return np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))


@given(st.data())
def test_incoming_edges_stand_by_ring_step_senders_row_and_number(data):
    graph, order = drawn(data)
    repetitions = Edges.of(graph.senders, graph.receivers, graph.num_nodes).repetitions()
    for part in range(order.num_parts):
        expected = sorted(
            ((part - int(order.part[sender])) % order.num_parts, int(order.row[sender]), number)
            for number, (sender, receiver) in enumerate(
                zip(graph.senders, graph.receivers, strict=True)
            )
            if order.part[receiver] == part
        )
        edges = incoming_edges(graph, order, part)
        numbers = [number for _, _, number in expected]
        assert edges.edges.tolist() == numbers
        assert group_of_edge(edges).tolist() == [group for group, _, _ in expected]
        assert edges.sender_rows.tolist() == [row for _, row, _ in expected]
        assert np.array_equal(edges.receiver_rows, order.row[graph.receivers[numbers]])
        found = np.zeros(len(numbers)) if edges.repetition is None else edges.repetition
        assert np.array_equal(found, repetitions[numbers])


@given(st.data())
def test_receivers_of_all_edges_can_be_one_group(data):
    graph, order = drawn(data)
    for part in range(order.num_parts):
        apart = incoming_edges(graph, order, part)
        whole = incoming_edges(graph, order, part, one_group_of_receivers=True)
        assert whole.by_receiver.num_groups == 1
        assert whole.by_sender.num_groups == order.num_parts
        rows, degrees = np.unique(apart.receiver_rows, return_counts=True)
        assert sorted(whole.by_receiver.rows.tolist()) == rows.tolist()
        assert sorted(whole.by_receiver.lengths.tolist()) == sorted(degrees.tolist())
        for name in ("edges", "sender_rows", "receiver_rows"):
            assert np.array_equal(getattr(whole, name), getattr(apart, name))


@given(st.data())
def test_outgoing_edges_are_groups_of_the_parts_they_end_in(data):
    graph, order = drawn(data, fewest=2)
    parts = order.num_parts
    repetitions = Edges.of(graph.senders, graph.receivers, graph.num_nodes).repetitions()
    incoming = [incoming_edges(graph, order, part) for part in range(parts)]
    for part in range(parts):
        edges = outgoing_edges(incoming, part)
        groups = group_of_edge(edges)
        assert np.all(order.part[graph.senders[edges.edges]] == part)
        assert np.array_equal(order.part[graph.receivers[edges.edges]], (part + 1 + groups) % parts)
        assert np.array_equal(edges.sender_rows, order.row[graph.senders[edges.edges]])
        for step in range(1, parts):
            target = (part + step) % parts
            there = incoming[target]
            assert np.array_equal(
                edges.edges[groups == step - 1], there.edges[group_of_edge(there) == step]
            )
        sent = outgoing_rows([each.by_sender for each in incoming], part)
        assert np.array_equal(sent.rows, edges.by_sender.rows)
        found = np.zeros(len(groups)) if edges.repetition is None else edges.repetition
        assert np.array_equal(found, repetitions[edges.edges])
