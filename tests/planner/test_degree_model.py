"""The shapes of parts by counts alone, against those of graphs of these counts."""

import math
from typing import Any

import pytest

from jaxgraph.datasets import load
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.placed import placed_shapes
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.partition import partition, report
from jaxgraph.planner.degree_model import GraphCounts, counted_manifest

PARTS = 8


def size(manifest: Manifest) -> int:
    shapes = placed_shapes(manifest, "cpu").values()
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)


@pytest.mark.parametrize("degrees", ["uniform", "power-law"])
@pytest.mark.parametrize("method", ["hash", "metis"])
def test_the_shapes_are_those_of_a_graph(degrees: str, method: str) -> None:
    kind: dict[str, Any] = {
        "num_nodes": 6000,
        "degree": 12,
        "num_features": 32,
        "num_classes": 4,
        "seed": 0,
    }
    if degrees == "uniform":
        graph = load("random", **kind)
    else:
        graph = load("sbm", **kind, degree_exponent=2.5)
    parts = partition(graph, PARTS, method=method)
    share = report(graph, parts).halo_total / graph.num_nodes
    counts = GraphCounts(
        graph.num_nodes,
        graph.num_edges,
        32,
        4,
        degrees=degrees,
        halo_share=share if method == "metis" else None,
    )
    for mode in ("sar", "domain"):
        made = counted_manifest(counts, PARTS, mode, method)
        real = tabulate(graph, parts, mode).manifest
        assert size(made) == pytest.approx(size(real), rel=0.15)
        assert made.counts is not None and real.counts is not None
        assert made.counts.halo_rows_needed == pytest.approx(real.counts.halo_rows_needed, rel=0.05)
        assert made.array_shapes().keys() == real.array_shapes().keys()
    for topology in ("replicated", "pushed"):
        columns = ColumnRequest(topology, 2)
        real = tabulate(graph, parts, "domain", columns=columns).manifest
        made = counted_manifest(counts, PARTS, "domain", method, topology=topology, chunks=2)
        assert size(made) == pytest.approx(size(real), rel=0.15)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_nodes": -1}, "num_nodes is -1"),
        ({"num_nodes": 1e30}, "at most 1e"),
        ({"num_edges": 2.5}, "num_edges is 2.5"),
        ({"num_features": None}, "num_features is None"),
        ({"num_classes": float("nan")}, "num_classes is nan"),
        ({"degrees": "powerlaw"}, "Did you mean 'power-law'"),
        ({"exponent": 2}, "more than 2"),
        ({"halo_share": 0}, "halo_share is 0"),
    ],
)
def test_mistakes(wrong: dict, message: str) -> None:
    right: dict[str, Any] = {
        "num_nodes": 100,
        "num_edges": 500,
        "num_features": 8,
        "num_classes": 3,
    }
    with pytest.raises(ValueError, match=message):
        GraphCounts(**right | wrong)
