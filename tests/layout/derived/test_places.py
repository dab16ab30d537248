"""Where edges by receiver stand by sender: the inverse of the slots of the edges by sender."""

import numpy as np
import pytest

from jaxgraph.layout.placed import placed_shapes
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.ops.cpu.library import missing as missing_library
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.partition import partition
from tests.lanes import placed_parts
from tests.training import crooked_graph


@pytest.mark.parametrize("mode", ["sar", "domain"])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_places_are_those_of_the_edges(mode, num_parts):
    graph = crooked_graph(num_features=2)
    parts = partition(graph, num_parts, method="hash", seed=0)
    tables = tabulate(graph, parts, mode)
    seen = 0
    for part in placed_parts(tables, "cpu"):
        shapes = placed_shapes(tables.manifest, "cpu")
        assert {name: (x.shape, x.dtype) for name, x in part.items()} == shapes
        rows = part["incoming/by_sender/compressed_ptr"][-1]
        edges = int(part["incoming/by_sender/compressed_starts"][rows])
        places = part["incoming/by_receiver/places"]
        slots = part["incoming/by_sender/edge_ids"][:edges]
        np.testing.assert_array_equal(places[slots], np.arange(edges))
        assert not places[edges:].any()
        seen += edges
    assert seen == graph.num_edges


needs_kernels = pytest.mark.skipif(bool(missing_library()), reason=missing_library())


@pytest.mark.parametrize(
    ("implementation", "has_places"),
    [pytest.param("cpu", True, marks=needs_kernels), ("xla", False)],
)
def test_who_gets_places(implementation, has_places):
    graph = crooked_graph(num_features=2)
    sharded = shard(graph, None, make_mesh(1), implementation=implementation)
    assert (sharded.shards.incoming.by_receiver.places is not None) == has_places
