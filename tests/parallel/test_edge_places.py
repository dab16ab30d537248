"""Where edges by receiver stand by sender: the inverse of the slots of the edges by sender."""

from collections import Counter

import numpy as np
import pytest

from jaxgraph.parallel.edge_placement import derived_arrays, shapes_of_part
from jaxgraph.parallel.edge_places import place_arrays
from jaxgraph.partition import partition
from jaxgraph.partition.column_tables import ColumnRequest
from jaxgraph.partition.shard_tables import tabulate
from tests.lanes import padded_parts
from tests.training import crooked_graph


@pytest.mark.parametrize("mode", ["sar", "domain"])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_places_are_those_of_the_edges(mode, num_parts):
    graph = crooked_graph(num_features=2)
    parts = partition(graph, num_parts, method="hash", seed=0)
    tables = tabulate(graph, parts, mode)
    seen = Counter[str]()
    for padded in padded_parts(tables):
        part = {name: values[None] for name, values in padded.items()}
        made = part | derived_arrays(part, tables.manifest, "cpu")
        shapes = shapes_of_part(tables.manifest, "cpu")
        assert {n: (x.shape[1:], x.dtype) for n, x in made.items()} == shapes
        names = [n.removesuffix("/by_receiver/places") for n in made if n.endswith("/places")]
        assert names
        for name in names:
            rows = made[f"{name}/by_sender/compressed_ptr"][0, -1]
            edges = made[f"{name}/by_sender/compressed_starts"][0, rows]
            places = made[f"{name}/by_receiver/places"][0]
            slots = made[f"{name}/by_sender/edge_ids"][0, :edges]
            np.testing.assert_array_equal(places[slots], np.arange(edges))
            assert not places[edges:].any()
            seen[name] += int(edges)
    assert seen["incoming"] == graph.num_edges


def test_edges_on_feature_columns_have_none():
    graph = crooked_graph(num_features=8)
    parts = partition(graph, 2, method="hash", seed=0)
    tables = tabulate(graph, parts, "domain", columns=ColumnRequest(chunks=3))
    part = {name: values[None] for name, values in padded_parts(tables)[0].items()}
    made = place_arrays(part)
    assert made and not any(name.startswith("columns/") for name in made)
