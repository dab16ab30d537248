"""The arrays of a device: their shapes follow from the manifest in every process."""

import pickle

import numpy as np
import pytest

from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.common_shapes import common_shapes
from jaxgraph.layout.placed import DERIVED, placed_part, placed_shapes
from jaxgraph.layout.shard_tables import PartTables, tabulate
from jaxgraph.partition import Partition
from tests.strategies import complete, random_edges

SOURCES = {
    "one": (1, "sar", None),
    "sar": (3, "sar", None),
    "domain": (3, "domain", None),
    "p3": (2, "domain", ColumnRequest(chunks=2)),
}


def tables(name: str, num_nodes: int = 80, pad: bool = False) -> PartTables:
    """A graph with a row that is split, optionally in the shapes of a larger graph."""
    num_parts, mode, columns = SOURCES[name]
    pairs = []
    for nodes in (num_nodes, 2 * num_nodes):
        senders, receivers = random_edges(nodes, 5 * nodes, 0)
        receivers[:200] = 0
        graph = complete(senders, receivers, nodes, "hub", edge_data=True)
        pairs.append((graph, Partition.from_assignment(np.arange(nodes) % num_parts, num_parts)))
    pad_to = common_shapes(*pairs, mode=mode, headroom=0.1) if pad else None
    graph, owners = pairs[0]
    return tabulate(graph, owners, mode, pad_to, columns=columns)


@pytest.mark.parametrize("implementation", DERIVED)
@pytest.mark.parametrize(
    ("name", "pad"), [*((name, False) for name in SOURCES), ("one", True), ("sar", True)]
)
def test_every_part_has_the_shapes_that_another_process_finds(name, pad, implementation):
    source = tables(name, pad=pad)
    # Another process reads the manifest, not the graph.
    shapes = placed_shapes(pickle.loads(pickle.dumps(source.manifest)), implementation)
    for index in range(source.manifest.num_parts):
        part = placed_part(source, source.manifest, index, implementation)
        assert {name: (x.shape, x.dtype) for name, x in part.items()} == shapes
