"""Columns of features, and the edges among all nodes in chunks: the tables of every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxgraph.graph import Graph
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.derived.rows import sizes_of
from jaxgraph.layout.shard_tables import PartTables, tabulate
from jaxgraph.partition import Partition, partition
from tests.edge_tables import compressed_edges, edges_by_receiver, edges_by_sender, placed_parts
from tests.strategies import SMALL_GRAPHS
from tests.training import crooked_graph

PARTS = 4


def tables_of(graph: Graph, parts: int = PARTS, **options: Any) -> PartTables:
    owners = partition(graph, parts, method="hash", seed=1)
    return tabulate(graph, owners, "domain", columns=ColumnRequest(**options))


def chunk_of(arrays: dict[str, np.ndarray], chunk: int) -> dict[str, np.ndarray]:
    return {name: x[chunk] for name, x in arrays.items() if name.startswith("columns/by_")}


@pytest.mark.parametrize("options", [{}, {"chunks": 3}, {"topology": "pushed", "chunks": 2}])
@pytest.mark.parametrize("num_features", [5, 8])
def test_every_edge_and_every_feature_is_there_once(
    num_features: int, options: dict[str, Any]
) -> None:
    graph = crooked_graph(edge_weight=True, num_features=num_features)
    check_law(tables_of(graph, **options), graph)


@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
def test_special_graphs(graph: Graph) -> None:
    parts = min(2, graph.num_nodes)
    check_law(tables_of(graph, parts, chunks=2), graph)


def test_parts_without_nodes() -> None:
    graph = crooked_graph()
    owners = Partition.from_assignment(np.arange(graph.num_nodes) % 2, 3)
    check_law(tabulate(graph, owners, "sar", columns=ColumnRequest(topology="pushed")), graph)


def check_law(tables: PartTables, graph: Graph) -> None:
    """Columns side by side are the features, and chunks hold the edges of their receivers once."""
    schedule, rows = tables.manifest.columns, tables.manifest.node_rows
    assert schedule is not None and graph.nodes is not None
    parts = placed_parts(tables)
    ids = parts[0]["columns/node_ids"]
    mask = parts[0]["columns/node_mask"]
    assert sorted(ids[mask]) == list(range(graph.num_nodes))
    np.testing.assert_array_equal(
        parts[0]["columns/in_degree"][mask],
        np.bincount(graph.receivers, minlength=graph.num_nodes)[ids[mask]],
    )
    held_by_row: list[list[tuple[int, int]]] = [[] for _ in range(schedule.replicas)]
    for index, arrays in enumerate(parts):
        group, replica = index % schedule.groups, index // schedule.groups
        own = schedule.slice_of(group)
        width = own.stop - own.start
        assert arrays["columns/offset"] == own.start
        np.testing.assert_array_equal(arrays["nodes"][mask][:, :width], graph.nodes[ids[mask], own])
        assert not arrays["nodes"][~mask].any() and not arrays["nodes"][:, width:].any()
        if schedule.topology == "replicated" and group:
            continue
        first = index if schedule.topology == "pushed" else replica * schedule.groups
        for chunk in range(schedule.chunks):
            size = sizes_of(tables.manifest.edge_sets["columns"]).chunk
            found = ends_of(chunk_of(arrays, chunk), size)
            run = rows // schedule.chunks
            for sender, receiver in found:
                part, row = first + receiver // run, chunk * run + receiver % run
                held_by_row[replica].append((int(ids[sender]), int(ids[part * rows + row])))
    together = sorted(edge for held in held_by_row for edge in held)
    assert together == sorted(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))


def ends_of(tables: dict[str, np.ndarray], chunk: int) -> list[tuple[int, int]]:
    """Rows of sender and receiver of every edge, the same in all tables of a chunk."""
    edges = edges_by_receiver(tables, "columns", 0, chunk)
    assert edges == edges_by_sender(tables, "columns", 0, chunk)
    for side in ("by_receiver", "by_sender"):
        assert edges == compressed_edges(tables, "columns", side, 0)
    return [(edge.sender, edge.receiver) for edge in edges]


def test_a_part_reads_no_other_columns() -> None:
    """For example arrays of a memory-mapped file."""
    graph = crooked_graph(num_features=8)
    touched: list[Any] = []

    class Recorded(np.ndarray):
        def __getitem__(self, key: Any) -> Any:
            touched.append(key)
            return np.asarray(self)[key]

    assert graph.nodes is not None
    tables = tables_of(graph)
    object.__setattr__(graph, "nodes", graph.nodes.view(Recorded))
    arrays = tables.columns.arrays(2) if tables.columns is not None else {}
    assert arrays["nodes"].shape[1] == 2
    assert touched == [(slice(None), slice(4, 6))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topology": "ring"}, "expected one of replicated, pushed"),
        ({"chunks": 0}, "chunks is 0; expected a positive integer"),
        ({"chunks": True}, "chunks is True"),
        ({"budget": 2.5}, "feature_budget is 2.5"),
        ({"budget": 100}, "the smallest slice of the features, 1 of 4, needs .*'pushed'"),
        ({"budget": 100, "topology": "pushed"}, "raise the budget, or take more devices$"),
    ],
)
def test_wrong_requests(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tables_of(crooked_graph(), **options)


def test_features_that_cannot_be_split() -> None:
    with pytest.raises(ValueError, match=r"5 feature column\(s\) for 6 devices"):
        tables_of(crooked_graph(), 6)
    with pytest.raises(ValueError, match="the graph has none"):
        tables_of(crooked_graph().replace(nodes=None))
    found = tables_of(crooked_graph(), 6, budget=10**9).manifest.columns
    assert found is not None and found.replicas == 6
