"""Partitions of graphs of several sets: one cut of all of them, each of them balanced."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgraph import Graph, TypedGraph
from jaxgraph.datasets.triples import load_aifb
from jaxgraph.partition import Partition, partition, report

SIZES = {"paper": 900, "author": 600, "venue": 40}


def typed_graph(seed: int = 0, groups: int = 24, *, apart: bool = False) -> TypedGraph:
    """Groups of nodes with few edges between them; with `apart`, each has nodes of one set alone.

    The few edges between sets then leave the groups.
    """
    rng = np.random.default_rng(seed)
    group = {name: rng.integers(0, groups, size) for name, size in SIZES.items()}
    if apart:
        step = groups // len(SIZES)
        group = {name: x % step + step * i for i, (name, x) in enumerate(group.items())}

    def edges(sender: str, receiver: str, count: int) -> dict[str, np.ndarray]:
        senders = rng.integers(0, SIZES[sender], count)
        near = [np.flatnonzero(group[receiver] == g) for g in range(groups)]
        far = np.arange(SIZES[receiver])
        homes = [
            near[g] if near[g].size and rng.random() < 0.9 else far for g in group[sender][senders]
        ]
        return {"senders": senders, "receivers": np.array([rng.choice(x) for x in homes])}

    return TypedGraph(
        {name: {"num_nodes": size} for name, size in SIZES.items()},
        {
            ("paper", "cites", "paper"): edges("paper", "paper", 5000),
            ("author", "writes", "paper"): edges("author", "paper", 2500),
            ("paper", "appears in", "venue"): edges("paper", "venue", 900),
        },
    )


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_every_set_is_balanced_and_few_rows_are_sent(num_parts: int, apart: bool) -> None:
    graph = typed_graph(apart=apart)
    found = partition(graph, num_parts)
    quality = report(graph, found)
    assert quality.set_balance is not None
    for name, balance in quality.set_balance.items():
        is_node_set = name in SIZES
        mean = SIZES[name] / num_parts if is_node_set else 1000.0
        # Rounded up to whole nodes.
        assert balance <= max(1.1 if is_node_set else 1.2, np.ceil(mean) / mean), name
    union = graph.as_one()
    of_one_weight = report(union, partition(union, num_parts))
    assert quality.halo_total <= 1.5 * of_one_weight.halo_total


def test_real_triples(data_dir: Path) -> None:
    graph = load_aifb(data_dir)
    quality = report(graph, partition(graph, 8))
    assert quality.set_balance is not None
    assert quality.set_balance["entity"] <= 1.1 and quality.set_balance["related"] <= 1.2
    one = graph.as_one()
    assert quality.halo_total <= 1.5 * report(one, partition(one, 8)).halo_total


@pytest.mark.parametrize("method", ["metis", "hash", "random"])
def test_all_methods_give_a_partition_of_each_set(method: str) -> None:
    graph = typed_graph()
    found = partition(graph, 5, method, 3)
    assert list(found) == list(SIZES)
    for name, each in found.items():
        assert (each.num_nodes, each.num_parts, each.method) == (SIZES[name], 5, method)
    again = partition(graph, 5, method, 3)
    assert all(np.array_equal(found[name].assignment, again[name].assignment) for name in SIZES)


def test_the_order_of_all_nodes_orders_each_set() -> None:
    graph = typed_graph()
    found = partition(graph, 2, order="degree")
    one = graph.as_one()
    degrees = np.bincount(np.append(one.senders, one.receivers))[: SIZES["paper"]]
    rank = found["paper"].rank
    assert rank is not None and sorted(rank) == list(range(SIZES["paper"]))
    assert np.all(np.diff(degrees[np.argsort(rank)]) <= 0)


def test_nodes_of_a_set_follow_another() -> None:
    graph = typed_graph()
    found = partition(graph, 4, follow={"author": "paper"})
    writes = graph.edge_sets["author", "writes", "paper"]
    counts = np.zeros((SIZES["author"], 4))
    np.add.at(counts, (writes.senders, found["paper"].assignment[writes.receivers]), 1)
    chosen = counts[np.arange(SIZES["author"]), found["author"].assignment]
    np.testing.assert_array_equal(chosen, counts.max(axis=1))
    balance = report(graph, found).set_balance
    assert balance is not None and balance["paper"] <= 1.1 and balance["venue"] <= 1.1


def test_ids_of_all_sets_in_one_graph() -> None:
    graph = TypedGraph(
        {"a": {"num_nodes": 2}, "b": {"num_nodes": 3}},
        {("a", "to", "b"): {"senders": [0, 1], "receivers": [2, 0]}},
    )
    one = graph.as_one()
    assert one.num_nodes == 5
    np.testing.assert_array_equal([one.senders, one.receivers], [[0, 1], [4, 2]])
    assert TypedGraph({"a": {"num_nodes": 2}}, {}).as_one().num_edges == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "cost"}, "method: got 'cost'; expected one of metis, hash, random"),
        ({"balance": "edges"}, "balance: not for a TypedGraph"),
        ({"objective": "volume"}, "objective: not for a TypedGraph"),
        ({"node_cost": np.ones(5)}, "node_cost: not for a TypedGraph"),
        ({"follow": {"author": "reader"}}, "edges between 'author' and 'reader'"),
        ({"follow": {"author": "author"}}, "another that follows none"),
        ({"follow": {"author": "venue"}}, "edges between 'author' and 'venue'"),
        ({"follow": {"author": "paper", "paper": "venue"}}, "another that follows none"),
        ({"num_parts": 2000}, "one part per node"),
    ],
)
def test_errors(options: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"num_parts": 2, **options}
    with pytest.raises(ValueError, match=words):
        partition(typed_graph(), **given)


def test_a_graph_of_one_set_follows_none() -> None:
    with pytest.raises(ValueError, match="follow: not for a Graph"):
        partition(Graph.from_edges([0], [1]), 1, follow={"a": "b"})  # type: ignore


def test_a_report_asks_for_a_partition_of_each_set() -> None:
    part = Partition(np.zeros(900, np.int32), 1)
    with pytest.raises(ValueError, match="a Partition for each set of nodes"):
        report(typed_graph(), part)
    with pytest.raises(ValueError, match="a Partition for each set of nodes"):
        report(typed_graph(), {"paper": part})
    with pytest.raises(ValueError, match="node_cost: not for a TypedGraph"):
        report(typed_graph(), partition(typed_graph(), 2), np.ones(1540))
