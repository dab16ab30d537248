"""Law 4: every edge is owned exactly once, and the tables of parts are inverse to each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph import Graph
from jaxgraph.layout.derived.rows import sizes_of
from jaxgraph.layout.shard_tables import PartTables, tabulate
from jaxgraph.partition import Partition
from tests.edge_tables import (
    Edge,
    check_orientation,
    check_receivers,
    compressed_range,
    edges_by_receiver,
    global_ends,
    num_groups,
    placed_parts,
    sent_ids,
)
from tests.oracles.edges import Edges
from tests.strategies import (
    assignments,
    complete,
    graphs,
    random_edges,
    skewed_assignment,
    small_graphs,
)

MODES = ("sar", "domain")


def numbered(graph: Graph) -> Graph:
    """The graph with each edge's number as its data, so that edges can be told apart."""
    numbers = np.arange(graph.num_edges, dtype=np.float32)
    return graph.replace(
        edge_weight=numbers, edges=numbers[:, None] * 2, edge_type=numbers.astype(np.int32)
    )


def tables_of(graph: Graph, assignment: np.ndarray, num_parts: int, mode: str) -> PartTables:
    return tabulate(numbered(graph), Partition.from_assignment(assignment, num_parts), mode)


def check_law(tables: PartTables) -> None:
    """Checks all relations between the tables of all parts and the graph."""
    graph, manifest = tables.survey.graph, tables.manifest
    parts = placed_parts(tables)
    check_nodes(graph, tables, parts)
    check_edges(graph, tables, parts)
    check_row_order(tables, parts, "incoming")
    if manifest.num_parts > 1:
        check_halos(tables, parts)
    if manifest.num_parts > 1 and manifest.mode == "sar":
        check_outgoing(tables, parts)
        check_row_order(tables, parts, "outgoing")


def check_nodes(graph: Graph, tables: PartTables, parts) -> None:
    owner = tables.survey.order.part
    seen: list[int] = []
    for index, part in enumerate(parts):
        ids = part["node_ids"][part["node_mask"]]
        assert np.all(owner[ids] == index)
        assert graph.nodes is not None
        assert np.array_equal(part["nodes"][part["node_mask"]], graph.nodes[ids])
        assert not part["nodes"][~part["node_mask"]].any()
        seen += ids.tolist()
    assert sorted(seen) == list(range(graph.num_nodes))


def check_edges(graph: Graph, tables: PartTables, parts) -> None:
    """Every edge is in one part, with its own data, ends and repetition, in both orientations."""
    repetitions = Edges.of(graph.senders, graph.receivers, graph.num_nodes).repetitions()
    owner = tables.survey.order.part
    seen: list[int] = []
    for index, part in enumerate(parts):
        check_orientation(part, "incoming", tables.manifest)
        chunk = sizes_of(tables.manifest.edge_sets["incoming"]).chunk
        for group in range(num_groups(part, "incoming")):
            for edge in edges_by_receiver(part, "incoming", group, chunk):
                number = int(part["edge_type"][edge.slot])
                assert part["edge_weight"][edge.slot] == number
                assert part["edges"][edge.slot] == 2 * number
                ends = int(graph.senders[number]), int(graph.receivers[number])
                assert global_ends(part, "incoming", group, edge) == ends
                assert owner[ends[1]] == index
                if tables.manifest.mode == "sar":
                    assert (owner[ends[0]] + group) % tables.manifest.num_parts == index
                repetition = part["incoming/repetition"] if repetitions.any() else repetitions
                expected = repetitions[number] if repetitions.any() else 0
                assert (repetition[edge.slot] if repetitions.any() else 0) == expected
                seen.append(number)
        check_receivers(part, chunk)
    assert sorted(seen) == list(range(graph.num_edges))
    assert repetitions.any() == ("incoming/repetition" in tables.manifest.array_shapes())


def check_row_order(tables: PartTables, parts, name: str) -> None:
    """Compressed rows of a group ascend by the step on the ring, then by their row at the owner."""
    order, num_parts = tables.survey.order, tables.manifest.num_parts
    for index, part in enumerate(parts):
        for group in range(num_groups(part, name)):
            for side, end in (("by_sender", 0), ("by_receiver", 1)):
                ids = []
                for at in compressed_range(part, f"{name}/{side}", group):
                    row = int(part[f"{name}/{side}/compressed_rows"][at])
                    edge = Edge(-1, row, 0) if end == 0 else Edge(-1, 0, row)
                    ids.append(global_ends(part, name, group, edge)[end])
                steps = (index - order.part[ids].astype(np.int64)) % num_parts
                keys = list(zip(steps.tolist(), order.row[ids].tolist(), strict=True))
                assert keys == sorted(set(keys))


def check_halos(tables: PartTables, parts) -> None:
    """The rows that a part sends at step k are the halo rows of the part k steps ahead."""
    manifest = tables.manifest
    for index, part in enumerate(parts):
        for step in range(1, manifest.num_parts):
            target = (index + step) % manifest.num_parts
            there = parts[target]
            ids = sent_ids(part, "send", step)
            assert len(ids) <= manifest.halo_unit * manifest.halo_units[target][index]
            if manifest.mode == "sar":
                first = there["incoming/sender_ptr"][step]
            else:
                first = manifest.node_rows + index * manifest.halo_rows
            assert there["incoming/sender_ids"][first : first + len(ids)].tolist() == ids
            assert set(ids) == wanted_ids(tables, index, target)
            check_positions(part, "send", step)


def wanted_ids(tables: PartTables, source: int, target: int) -> set[int]:
    """The nodes of one part with an edge to another, found edge by edge."""
    graph, owner = tables.survey.graph, tables.survey.order.part
    travels = (owner[graph.senders] == source) & (owner[graph.receivers] == target)
    return set(graph.senders[travels].tolist())


def check_positions(part, table: str, step: int) -> None:
    """Positions invert the rows of a step."""
    first, last = part[f"{table}/ptr"][step - 1], part[f"{table}/ptr"][step]
    rows = part[f"{table}/rows"][first:last]
    position = part[f"{table}/position"][step - 1]
    assert position[rows].tolist() == list(range(len(rows)))
    assert np.count_nonzero(position >= 0) == len(rows)


def check_outgoing(tables: PartTables, parts) -> None:
    """Outgoing edges are the incoming ones of the receiver's part, and so are their receivers."""
    manifest = tables.manifest
    chunk = sizes_of(manifest.edge_sets["outgoing"]).chunk
    for index, part in enumerate(parts):
        check_orientation(part, "outgoing", manifest)
        for step in range(1, manifest.num_parts):
            target = (index + step) % manifest.num_parts
            there = parts[target]
            leaving = edges_by_receiver(part, "outgoing", step - 1, chunk)
            ending = edges_by_receiver(there, "incoming", step, chunk)
            assert ends_and_repetitions(part, "outgoing", step - 1, leaving) == (
                ends_and_repetitions(there, "incoming", step, ending)
            )
            first = part["outgoing/receiver_ptr"][step - 1]
            reached = sent_ids(there, "reach", step)
            assert part["outgoing/receiver_ids"][first : first + len(reached)].tolist() == reached
            assert len(reached) <= manifest.halo_unit * manifest.reach_units[target][index]
            check_positions(there, "reach", step)


def ends_and_repetitions(part, name: str, group: int, edges) -> list[tuple[int, ...]]:
    repetition = part.get(f"{name}/repetition")
    return sorted(
        (*global_ends(part, name, group, edge), 0 if repetition is None else repetition[edge.slot])
        for edge in edges
    )


@pytest.mark.law(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("graph", small_graphs(), ids=lambda graph: graph.name)
def test_law_on_awkward_graphs_in_unequal_parts(graph, num_parts, mode):
    check_law(tables_of(graph, skewed_assignment(graph.num_nodes, num_parts), num_parts, mode))


@pytest.mark.law(4)
@given(st.data())
def test_law_on_random_graphs(data):
    graph = data.draw(graphs())
    num_parts = data.draw(st.integers(1, 6))
    assignment = data.draw(assignments(graph.num_nodes, num_parts))
    check_law(tables_of(graph, assignment, num_parts, data.draw(st.sampled_from(MODES))))


@pytest.mark.law(4)
@pytest.mark.parametrize("mode", MODES)
def test_law_with_hubs_of_which_each_end_fills_many_chunks(mode):
    senders, receivers = random_edges(300, 3000, seed=3)
    receivers[:900], senders[900:1500] = 7, 8
    graph = complete(senders, receivers, 300, "hubs")
    tables = tables_of(graph, np.arange(300) % 3, 3, mode)
    parts = placed_parts(tables)
    for side in ("by_receiver", "by_sender"):
        assert sum(part[f"incoming/{side}/heavy_rows"].sum() for part in parts)
    check_law(tables)
