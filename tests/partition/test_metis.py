"""METIS: a small cut, the requested balance, and errors instead of crashes."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgraph import Graph
from jaxgraph.datasets.gnn_benchmark import load_gnn_benchmark
from jaxgraph.partition import metis, partition, report
from jaxgraph.partition.metis import BALANCES, OBJECTIVES, metis_assignment
from tests.strategies import SMALL_GRAPHS, graphs


def communities(num_groups: int, group_size: int, seed: int = 0) -> Graph:
    """A stochastic block model: 9 of 10 edges stay in a group; one half of them has train nodes."""
    rng = np.random.default_rng(seed)
    num_nodes = num_groups * group_size
    receivers = np.repeat(np.arange(num_nodes), 10)
    group = receivers // group_size
    inside = rng.random(receivers.size) < 0.9
    group = np.where(inside, group, rng.integers(0, num_groups, receivers.size))
    senders = group * group_size + rng.integers(0, group_size, receivers.size)
    # Shuffled ids: contiguous ranges must not match the groups.
    names = rng.permutation(num_nodes)
    train_mask = np.zeros(num_nodes, bool)
    train_mask[names[: num_nodes // 2 : 5]] = True
    return Graph.from_edges(
        np.concatenate([names[senders], names[receivers]]),
        np.concatenate([names[receivers], names[senders]]),
        num_nodes=num_nodes,
        train_mask=train_mask,
    )


def power_law(num_nodes: int, seed: int = 0) -> Graph:
    """A graph with a few receivers of very high degree."""
    rng = np.random.default_rng(seed)
    receivers = (num_nodes * rng.random(8 * num_nodes) ** 3).astype(int)
    return Graph.from_edges(
        rng.integers(0, num_nodes, receivers.size), receivers, num_nodes=num_nodes
    )


@pytest.fixture(scope="module")
def community_graph() -> Graph:
    return communities(num_groups=8, group_size=150)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_cuts_far_less_than_hashing(community_graph: Graph, objective: str) -> None:
    hashed = report(community_graph, partition(community_graph, 8, "hash"))
    found = report(community_graph, partition(community_graph, 8, objective=objective))
    assert hashed.edge_cut_share > 0.8
    # 0.1 of the edges are drawn from all groups, 7/8 of those from another.
    assert found.edge_cut_share < 0.1
    assert found.halo_total < 0.5 * hashed.halo_total


@pytest.mark.parametrize("num_parts", [3, 8, 13])
def test_balances_what_was_asked_for(community_graph: Graph, num_parts: int) -> None:
    graph = community_graph
    nodes = report(graph, partition(graph, num_parts, balance="nodes"))
    edges = report(graph, partition(graph, num_parts, balance="edges"))
    labels = report(graph, partition(graph, num_parts, balance="labels"))
    assert nodes.node_balance <= 1.03
    assert edges.edge_balance <= 1.03
    # Whole nodes: the mean, rounded up.
    assert labels.labelled.max() <= np.ceil(1.03 * labels.labelled.mean())
    assert max(edges.node_balance, labels.node_balance) <= 1.1
    # The training nodes are all in one half of the groups.
    assert nodes.label_balance > 1.3


def test_balances_the_edges_of_hubs() -> None:
    graph = power_law(2000)
    found = report(graph, partition(graph, 8, balance="edges"))
    by_nodes = report(graph, partition(graph, 8, balance="nodes"))
    assert by_nodes.edge_balance > 1.1
    assert found.edge_balance <= 1.03
    assert found.edge_cut <= 1.1 * by_nodes.edge_cut


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
def test_small_graphs_have_no_empty_part(graph: Graph, balance: str) -> None:
    for num_parts in {1, min(2, graph.num_nodes), graph.num_nodes}:
        found = metis_assignment(graph, num_parts, balance=balance)
        assert found.dtype == np.int32
        assert np.bincount(found, minlength=num_parts).min() >= 1
        assert found.shape == (graph.num_nodes,)


@settings(max_examples=15)
@given(graphs(max_nodes=25), st.sampled_from(OBJECTIVES), st.data())
def test_any_graph_into_any_number_of_parts(
    graph: Graph, objective: str, data: st.DataObject
) -> None:
    num_parts = data.draw(st.integers(1, graph.num_nodes))
    found = metis_assignment(graph, num_parts, objective=objective)
    counts = np.bincount(found, minlength=num_parts)
    assert counts.shape == (num_parts,)
    assert counts.min() >= 1
    mean = graph.num_nodes / num_parts
    assert counts.max() <= max(np.ceil(mean), np.floor(1.03 * mean))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", r"signal 11 \(Segmentation"),
        ("raise MemoryError('no room')", "exit code 1.*last words: MemoryError: no room"),
        ("pass", "exit code 0 and without a result"),
        ("import time; time.sleep(600)", r"within 1 s \(timeout_seconds\)"),
    ],
)
def test_a_crash_or_a_hang_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(program)
    monkeypatch.setattr(metis, "_WORKER", worker)
    seconds = 1 if "time" in program else 600
    with pytest.raises(RuntimeError, match=f"{message}.*method='hash'"):
        metis_assignment(power_law(50), 2, timeout_seconds=seconds)


def test_the_worker_searches_no_folder_of_the_caller_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise ImportError('hidden')")
    (tmp_path / "here").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "here"))
    monkeypatch.chdir(tmp_path)
    assert np.unique(metis_assignment(power_law(50), 2)).size == 2
    assert list((tmp_path / "here").iterdir()) == []


def test_balances_the_edges_of_coauthor_cs(data_dir: Path) -> None:
    graph = load_gnn_benchmark("coauthor-cs", data_dir)
    found = report(graph, partition(graph, 8, balance="edges"))
    print(f"max/mean: edges {found.edge_balance:.3f}, nodes {found.node_balance:.3f}")
    print(f"halo rows {found.halo_total}, cut {found.edge_cut_share:.3f}")
    assert found.edge_balance <= 1.05
    assert found.node_balance <= 1.1
    # Balancing nodes only sends 12,600 rows.
    assert found.halo_total < 15_000
