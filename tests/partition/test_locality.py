"""Orders of nodes: permutations that bring neighbours together, and their use in parts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgraph import Graph
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.partition import Partition, locality, orders, partition
from jaxgraph.partition.locality import locality_rank
from jaxgraph.partition.metis import metis_assignment
from tests.layout.test_shard_tables import check_law, numbered
from tests.strategies import SMALL_GRAPHS, assignments, graphs, random_edges

ORDERS = ("rcm", "degree", "metis")


def shuffled(senders: Any, receivers: Any, num_nodes: int) -> tuple[Graph, np.ndarray]:
    """The undirected graph of these edges under random ids, and the id that each node got."""
    names = np.random.default_rng(0).permutation(num_nodes)
    senders, receivers = names[senders], names[receivers]
    ends = np.concatenate([senders, receivers]), np.concatenate([receivers, senders])
    return Graph.from_edges(*ends, num_nodes=num_nodes), names


def gaps(graph: Graph, rank: np.ndarray) -> np.ndarray:
    """The distance in rank between the two ends of each edge, int [num_edges]."""
    return np.abs(rank[graph.senders] - rank[graph.receivers])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
def test_awkward_graphs_get_a_permutation(
    graph: Graph, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locality, "_NODES_PER_GROUP", 5)
    rank = locality_rank(graph, order)
    assert rank.dtype == np.int32
    np.testing.assert_array_equal(np.sort(rank), np.arange(graph.num_nodes))


@given(graphs())
def test_degree_counts_both_ends_and_breaks_ties_by_id(graph: Graph) -> None:
    degrees = [0] * graph.num_nodes
    for node in (*graph.senders.tolist(), *graph.receivers.tolist()):
        degrees[node] += 1
    by_rank = sorted(range(graph.num_nodes), key=lambda node: (-degrees[node], node))
    assert np.argsort(locality_rank(graph, "degree")).tolist() == by_rank


def test_search_finds_a_path_and_the_width_of_a_grid() -> None:
    path, _ = shuffled(np.arange(99), np.arange(1, 100), 100)
    assert gaps(path, locality_rank(path, "rcm")).max() == 1
    assert gaps(path, np.arange(100)).max() > 50
    cell = np.arange(20 * 30).reshape(30, 20)
    senders = np.concatenate([cell[:, :-1].ravel(), cell[:-1].ravel()])
    receivers = np.concatenate([cell[:, 1:].ravel(), cell[1:].ravel()])
    grid, _ = shuffled(senders, receivers, 600)
    # From a corner, the levels of the search are the diagonals.
    assert gaps(grid, locality_rank(grid, "rcm")).max() <= 21


def test_metis_puts_communities_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locality, "_NODES_PER_GROUP", 40)
    rng = np.random.default_rng(1)
    receivers = np.repeat(np.arange(480), 8)
    senders = receivers // 40 * 40 + rng.integers(0, 40, receivers.size)
    strangers = rng.random(receivers.size) < 0.05
    senders[strangers] = rng.integers(0, 480, strangers.sum())
    graph, names = shuffled(senders, receivers, 480)
    group = locality_rank(graph, "metis")[names].reshape(12, 40) // 40
    assert np.all(group == group[:, :1])
    # The same groups with another seed, in another order.
    assert np.any(locality_rank(graph, "metis", 1) != locality_rank(graph, "metis", 0))


def test_metis_puts_high_degrees_first_inside_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locality, "_NODES_PER_GROUP", 64)
    rng = np.random.default_rng(2)
    receivers = (200 * rng.random(2000) ** 2).astype(np.int32)
    graph = Graph(rng.integers(0, 200, 2000), receivers, 200)
    group = metis_assignment(graph, 4, seed=0)
    degrees = graph.in_degrees() + graph.out_degrees()
    by_rank = np.argsort(locality_rank(graph, "metis"))
    same_group = np.diff(group[by_rank]) == 0
    assert np.sum(~same_group) == 3
    assert np.all(np.diff(degrees[by_rank])[same_group] <= 0)


def test_refuses_other_names_and_numbers_of_parts() -> None:
    assert orders() == list(ORDERS)
    with pytest.raises(ValueError, match=r"order: got 'RCM'; expected one of rcm, degree, metis"):
        locality_rank(SMALL_GRAPHS[0], "RCM")
    with pytest.raises(ValueError, match="num_parts: got 0; expected at least 1"):
        locality_rank(SMALL_GRAPHS[0], "metis", num_parts=0)


@settings(deadline=None)
@given(st.data())
def test_ranks_move_rows_and_leave_shapes_and_halos(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    num_parts = data.draw(st.integers(1, 5))
    owner = data.draw(assignments(graph.num_nodes, num_parts))
    mode = data.draw(st.sampled_from(("sar", "domain")))
    values = st.integers(0, graph.num_nodes - 1)
    rank = data.draw(st.lists(values, min_size=graph.num_nodes, max_size=graph.num_nodes))
    plain, ranked = (
        tabulate(numbered(graph), Partition.from_assignment(owner, num_parts, given), mode)
        for given in (None, np.asarray(rank))
    )
    check_law(ranked)
    assert ranked.manifest == plain.manifest
    assert ranked.manifest.counts == plain.manifest.counts
    for part in range(num_parts):
        boundary = ranked.survey.order.boundary[part]
        assert boundary == plain.survey.order.boundary[part]
        nodes = ranked.part(part)["node_ids"].tolist()
        assert set(nodes[:boundary]) == set(plain.part(part)["node_ids"][:boundary].tolist())
        for stretch in (nodes[:boundary], nodes[boundary:]):
            assert stretch == sorted(stretch, key=lambda node: (rank[node], node))


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_partitions_carry_the_rank(
    order: str, num_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several groups, so that METIS's seed matters.
    monkeypatch.setattr(locality, "_NODES_PER_GROUP", 10)
    senders, receivers = random_edges(80, 300, seed=2)
    graph = Graph.from_edges(senders, receivers, num_nodes=80)
    plain = partition(graph, num_parts, "hash", seed=3)
    found = partition(graph, num_parts, "hash", seed=3, order=order)
    assert plain.rank is None and found.rank is not None
    np.testing.assert_array_equal(found.assignment, plain.assignment)
    np.testing.assert_array_equal(found.rank, locality_rank(graph, order, 3))
