"""Shapes shared by several graphs."""

import dataclasses

import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.layout.common_shapes import common_shapes
from jaxgraph.layout.derived.rows import sizes_of
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.partition import Partition, partition
from tests.edge_tables import check_orientation, placed_parts
from tests.strategies import complete, random_edges

PARTS = 4
MODES = ("sar", "domain")


def pair(num_nodes: int, degree: int = 6, seed: int = 0) -> tuple[Graph, Partition]:
    edges = random_edges(num_nodes, degree * num_nodes, seed)
    graph = complete(*edges, num_nodes, "random")
    return graph, partition(graph, PARTS, method="hash")


@pytest.mark.parametrize("mode", MODES)
def test_pairs_of_very_different_graphs_take_on_common_shapes(mode):
    pairs = [pair(40), pair(3000, seed=1), pair(200, degree=40, seed=2)]
    common = common_shapes(*pairs, mode=mode)
    for graph, parts in pairs:
        tables = tabulate(graph, parts, mode, common)
        assert tables.manifest == common
        assert tables.manifest.counts is not None
        assert tables.manifest.counts.num_nodes == graph.num_nodes
        for part in placed_parts(tables):
            check_orientation(part, "incoming", common)


def test_sources_manifests_and_pairs_can_be_mixed():
    first = tabulate(*pair(500))
    from_source = common_shapes(first, pair(600, seed=1))
    fixed = first.manifest
    from_manifest = common_shapes(fixed, pair(600, seed=1))
    assert from_manifest.halo_unit == fixed.halo_unit
    for common in (from_source, from_manifest):
        assert tabulate(*pair(500), "sar", common).manifest == common
    assert common_shapes(tabulate(*pair(500), "domain")).mode == "domain"


@pytest.mark.parametrize("mode", MODES)
def test_headroom_lets_larger_graphs_in(mode):
    known, unseen = pair(1000), pair(1100, seed=3)
    exact = common_shapes(known, mode=mode)
    with pytest.raises(ValueError, match="does not fit"):
        tabulate(*unseen, mode, exact)
    roomy = common_shapes(known, mode=mode, headroom=0.25)
    tables = tabulate(*unseen, mode, roomy)
    assert tables.manifest == roomy
    for part in placed_parts(tables):
        check_orientation(part, "incoming", roomy)
    for name, (shape, _) in exact.array_shapes().items():
        larger = roomy.array_shapes()[name][0]
        assert np.all(np.asarray(larger) >= shape)
        assert not name.endswith("ptr") or larger == shape
    chunks = [sizes_of(each.edge_sets["incoming"]).chunk for each in (roomy, exact)]
    assert chunks[0] == chunks[1]


def test_what_cannot_be_shared():
    with pytest.raises(ValueError, match="at least one graph"):
        common_shapes()
    with pytest.raises(ValueError, match=r"headroom is -0\.5"):
        common_shapes(pair(40), headroom=-0.5)
    graph, _ = pair(40)
    with pytest.raises(ValueError, match="num_parts 4 and 2 cannot"):
        common_shapes(pair(40), (graph, partition(graph, 2, method="hash")))
    large = dataclasses.replace(tabulate(*pair(5000)).manifest, halo_unit=32)
    with pytest.raises(ValueError, match=r"halo_unit 16 and 32 cannot have the same shapes; make"):
        common_shapes(tabulate(*pair(40)).manifest, large)
