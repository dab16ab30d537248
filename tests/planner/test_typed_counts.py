"""Schemas: parameters and plans of graphs of several sets that are not there."""

from typing import Any

import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph.planner import TypedCounts, consider
from tests.cli.command import refused, run

NODES = {
    "paper": {"num_nodes": 60, "num_features": 5, "num_classes": 3},
    "author": {"num_nodes": 40, "num_features": 4},
}
EDGES = {
    ("author", "writes", "paper"): {"num_edges": 150},
    ("paper", "cites", "paper"): {"num_edges": 200, "num_edge_types": 3, "num_edge_features": 2},
}


class Model(nnx.Module):
    """Papers read papers by the type of a citation, and authors."""

    def __init__(self, counts: TypedCounts) -> None:
        of_edges = counts.edge_sets["paper", "cites", "paper"]
        width, classes = (counts.node_sets["paper"][x] for x in ("num_features", "num_classes"))
        rngs = nnx.Rngs(0)
        self.cites = jg.nn.RGCNConv(width, classes, num_types=of_edges["num_edge_types"], rngs=rngs)
        self.lift = jg.nn.Linear(counts.node_sets["author"]["num_features"], width, rngs=rngs)
        self.writes = jg.nn.SAGEConv(width, classes, rngs=rngs)

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        authors = self.lift(shard.table("author"), x["author"])
        y = self.cites(shard.relation("cites"), x["paper"])
        both: Any = authors, x["paper"]
        return y + self.writes(shard.relation("writes"), both)


def test_a_plan_of_a_schema_compares_the_schedules() -> None:
    # Edge features would be ignored by R-GCN.
    cites = {"num_edges": 200, "num_edge_types": 3}
    counts = TypedCounts(NODES, {**EDGES, ("paper", "cites", "paper"): cites}, "paper")
    found = list(consider(Model(counts), counts, "cpux2", optax.adam(0.01)))
    assert [(each.option.mode, each.option.method) for each in found] == [
        ("domain", "hash"),
        ("sar", "hash"),
    ]
    for each in found:
        assert each.fits and each.run is not None and each.run.compiled_for is not None
        assert each.run.work.edge_seconds > 0 and each.run.sent.total > 0


def test_a_drawn_graph_has_the_sizes_of_its_schema() -> None:
    counts = TypedCounts(NODES, EDGES, "paper")
    graph = counts.drawn()
    assert (counts.num_nodes, graph.num_nodes, graph.num_edges) == (100, 100, 350)
    assert (graph.node_sets["paper"].num_features, graph.node_sets["paper"].num_classes) == (5, 3)
    cites = graph.edge_sets["paper", "cites", "paper"]
    assert cites.num_edge_types == 3 and cites.edges is not None and cites.edges.shape == (200, 2)
    assert graph.node_sets["author"].labels is None and graph.target == "paper"


@pytest.mark.parametrize(
    ("nodes", "edges", "words"),
    [
        ({"paper": {"num_features": 3}}, {}, "set 'paper': got num_features; expected num_nodes"),
        ({"paper": {"num_nodes": 3, "width": 4}}, {}, "got num_nodes, width; expected num_nodes"),
        ({"paper": {"num_nodes": 0}}, {}, "num_nodes of 'paper' is 0; expected a positive"),
        (NODES, {("paper", "cites", "paper"): {}}, "got nothing; expected num_edges"),
        (NODES, {("paper", "cites", "paper"): {"num_edges": 2.5}}, "num_edges of .* is 2.5"),
    ],
)
def test_errors(nodes: Any, edges: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TypedCounts(nodes, edges)


GRAPH = ["--num-nodes", "300", "--num-edges", "2000", "--num-features", "8", "--num-classes", "3"]


def test_a_plan_of_counts_with_edge_types() -> None:
    more = ["--num-edge-types", "40", "--model", "rgcn", "--target", "cpux2", "--compile", "none"]
    found = run("plan", *GRAPH, *more)
    assert "domain" in found and "p3" not in found
    assert "jaxgraph partition --dataset YOUR-GRAPH" in found and "--process-memory" not in found
    assert "--num-edge-types" in refused("plan", "--dataset", "karate", *more)
