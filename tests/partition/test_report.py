"""The report: equal to counting one edge at a time."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph import Graph
from jaxgraph.partition import Partition, PartitionReport, report
from tests.strategies import assignments, graphs


def max_over_mean(values: list[int]) -> float:
    return max(values) / (sum(values) / len(values)) if sum(values) else 1.0


def check_by_counting(graph: Graph, parts: Partition, found: PartitionReport) -> None:
    """Compares every field with a count by loops and sets."""
    num_parts = parts.num_parts
    owner = parts.assignment.tolist()
    nodes, edges, labelled = ([0] * num_parts for _ in range(3))
    halos: list[list[set[int]]] = [[set() for _ in range(num_parts)] for _ in range(num_parts)]
    cut = 0
    for node, part in enumerate(owner):
        nodes[part] += 1
        labelled[part] += int(graph.train_mask is not None and graph.train_mask[node])
    for sender, receiver in zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True):
        edges[owner[receiver]] += 1
        if owner[sender] != owner[receiver]:
            cut += 1
            halos[owner[receiver]][owner[sender]].add(sender)
    pairs = [[len(rows) for rows in row] for row in halos]
    halo_rows = [sum(row) for row in pairs]
    total = sum(halo_rows)

    assert (found.method, found.num_parts) == (parts.method, num_parts)
    assert found.nodes.tolist() == nodes
    assert found.edges.tolist() == edges
    assert found.labelled.tolist() == labelled
    assert found.halo_pairs.tolist() == pairs
    assert found.halo_rows.tolist() == halo_rows
    assert (found.edge_cut, found.halo_total) == (cut, total)
    assert found.edge_cut_share == pytest.approx(cut / graph.num_edges if cut else 0.0)
    assert found.replication == pytest.approx(1 + total / graph.num_nodes)
    assert found.node_balance == pytest.approx(max_over_mean(nodes))
    assert found.edge_balance == pytest.approx(max_over_mean(edges))
    assert found.label_balance == pytest.approx(max_over_mean(labelled))
    assert found.halo_balance == pytest.approx(max_over_mean(halo_rows))
    largest = max(max(row) for row in pairs)
    sent = sum(largest for p in range(num_parts) for q in range(num_parts) if p != q)
    assert found.exchange_padding == pytest.approx(sent / total if total else 1.0)


@given(graphs(), st.integers(1, 6), st.booleans(), st.data())
def test_equals_counting(graph: Graph, num_parts: int, masked: bool, data: st.DataObject) -> None:
    if not masked:
        graph = graph.replace(train_mask=None)
    assignment = data.draw(assignments(graph.num_nodes, num_parts))
    parts = Partition.from_assignment(assignment, num_parts)
    check_by_counting(graph, parts, report(graph, parts))


def test_json_holds_every_field() -> None:
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
    found = report(graph, Partition.from_assignment([0, 1, 1], 2))
    read = json.loads(json.dumps(found.to_dict()))
    assert read["nodes"] == [1, 2]
    assert read["halo_pairs"] == [[0, 1], [1, 0]]
    assert set(read) == set(PartitionReport.__dataclass_fields__)


def test_refuses_a_partition_of_another_graph() -> None:
    graph = Graph.from_edges([0], [1], num_nodes=3)
    with pytest.raises(ValueError, match="assigns 2 nodes and the graph has 3"):
        report(graph, Partition.from_assignment(np.array([0, 1]), 2))
