"""Sizes beyond int32: refused from counts alone, before any array is made."""

import dataclasses

import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.layout import index_range
from jaxgraph.layout.manifest import Counts, Manifest
from jaxgraph.layout.placed import placed_shapes
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.partition import Partition
from tests.strategies import complete, random_edges

MOST = 2**31 - 1


@pytest.fixture
def manifest() -> Manifest:
    graph = complete(*random_edges(60, 300, seed=1), 60, "random")
    return tabulate(graph, Partition.from_assignment(np.arange(60) % 2, 2), "domain").manifest


def with_slots(manifest: Manifest, slots: int) -> Manifest:
    name = "incoming/by_receiver/neighbors"
    shapes = tuple((n, (slots,) if n == name else x, dtype) for n, x, dtype in manifest.shapes)
    return dataclasses.replace(manifest, shapes=shapes)


def test_slots_rows_and_ids(manifest):
    full = with_slots(manifest, MOST)
    with pytest.raises(ValueError, match=r"incoming/by_receiver/neighbors: 2,147,483,648 entries"):
        with_slots(manifest, MOST + 1)
    # A chunk reaches past the last slot.
    with pytest.raises(
        ValueError, match=r"incoming/by_receiver/neighbors: 2,147,483,6\d\d entries"
    ):
        placed_shapes(full, "cpu")
    with pytest.raises(
        ValueError, match=r"rows of a part and its halos: .* cut the graph into more"
    ):
        dataclasses.replace(manifest, halo_unit=2**30)
    with pytest.raises(ValueError, match="num_nodes: 2,147,483,648 entries"):
        dataclasses.replace(manifest, counts=Counts(MOST + 1, 1, 1))


@pytest.mark.parametrize("most", [40, 39])
def test_edges_that_end_in_a_part_are_counted_where_all_are_many(most, monkeypatch):
    graph = Graph(np.arange(60) % 6, np.arange(60) % 6, num_nodes=6)
    parts = Partition.from_assignment([0, 1, 0, 0, 1, 0], 2)  # 40 and 20 edges
    monkeypatch.setattr(index_range, "_LIMIT", most)
    monkeypatch.setattr(index_range, "_EDGES_AT_A_TIME", 7)
    if most == 40:
        index_range.check_graph(graph, parts)
        return
    with pytest.raises(ValueError, match=r"edges that end in part 0: 40 entries; .* at most 39"):
        index_range.check_graph(graph, parts)
