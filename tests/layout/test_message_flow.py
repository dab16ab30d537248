"""Message flow on the host: the nodes and edges that the layers need, and when it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.layout.message_flow import HOPS, plan_flow, with_flow
from jaxgraph.layout.typed_tables import TypedTables, tabulate_typed
from jaxgraph.partition import Partition
from tests.training import crooked_graph

LAYERS = 2


def graph_with(train: Any, val: Any = ()) -> Graph:
    graph = crooked_graph(edge_weight=True)
    masks: dict[str, Any] = {}
    for name, chosen in (("train_mask", train), ("val_mask", val)):
        masks[name] = None if not len(chosen) else np.isin(np.arange(graph.num_nodes), chosen)
    return graph.replace(**masks, test_mask=None)


def reached(graph: Graph, nodes: Any, hops: int) -> np.ndarray:
    """bool [nodes], those from which at most so many edges lead to some nodes: powers of A + I."""
    steps = np.eye(graph.num_nodes, dtype=bool)
    steps[graph.receivers, graph.senders] = True
    found = nodes.copy()
    for _ in range(hops):
        found = found @ steps
    return found


def tables(graph: Graph, mode: str, parts: int) -> tuple[Any, TypedTables]:
    typed, plan = with_flow(graph, LAYERS)
    partition = Partition(np.arange(graph.num_nodes) * 7 % parts, parts)
    return plan, tabulate_typed(typed, {"node": partition}, mode, plan)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_layers_have_the_edges_that_the_loss_needs(mode: str, parts: int) -> None:
    graph = graph_with([10, 50, 90, 117])
    plan, source = tables(graph, mode, parts)
    known = [source.part(part) for part in range(parts)]
    for part in known:
        hops = part[f"tables/node/node_data.{HOPS}"]
        assert np.all(np.diff(hops) >= 0), "what a layer reads comes first"
    relations = dict(source.manifest.relations)
    for layer, name in enumerate(plan.flow.relations):
        receivers = reached(graph, graph.train_mask, LAYERS - 1 - layer)
        expected = np.asarray(graph.edge_weight)[receivers[graph.receivers]]
        found = np.concatenate([part[f"relations/{name}/edge_weight"] for part in known])
        assert np.array_equal(np.sort(found), np.sort(expected))
        senders = reached(graph, graph.train_mask, LAYERS - layer)
        for rows, chosen in (
            (relations[name].node_rows, receivers),
            (relations[name].own_senders.node_rows, senders),
        ):
            counts = np.bincount((np.arange(graph.num_nodes) * 7 % parts)[chosen])
            assert rows == max(counts.max(), 16)
    assert len(expected) < graph.num_edges / 4


def test_all_splits_are_covered_where_that_is_cheaper() -> None:
    alone = plan_of(graph_with([10, 50], range(1, 120, 2)))
    assert alone.flow.splits == ("train",)
    both = plan_of(graph_with([10, 50], [90]))
    assert both.flow.splits == ("train", "val", "test")
    assert np.flatnonzero(both.hops == 0).tolist() == [10, 50, 90]


def plan_of(graph: Graph) -> Any:
    return with_flow(graph, LAYERS)[1]


def test_it_refuses_itself() -> None:
    with pytest.raises(ValueError, match="no training nodes"):
        plan_of(graph_with([]))
    with pytest.raises(
        ValueError, match=r"message_flow=2: .* the 120 training nodes that 100% of the"
    ):
        plan_of(graph_with(range(120)))


def test_a_graph_without_edges_is_refused() -> None:
    graph = Graph.from_edges([], [], num_nodes=5, train_mask=np.arange(5) == 1)
    with pytest.raises(ValueError, match="message_flow=2"):
        plan_of(graph)


@pytest.mark.parametrize("seed", range(3))
def test_hops_are_the_fewest(seed: int) -> None:
    graph = graph_with(np.random.default_rng(seed).choice(120, 3, replace=False))
    typed, _ = with_flow(graph, 1)
    (edges,) = typed.edge_sets.values()
    plan = plan_flow(edges, [graph.train_mask, None, None], 4)
    for hops in range(5):
        assert np.array_equal(plan.hops <= hops, reached(graph, graph.train_mask, hops))
