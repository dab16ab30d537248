"""Parts that are merged are those of the merged partition."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.layout.merged_parts import merge_partition, merge_parts
from jaxgraph.layout.placed import placed_part
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.partition import Partition
from tests.layout.part_folders import KINDS, of_kind
from tests.strategies import assignments, graphs


@given(data=st.data(), graph=graphs(edge_data=True), devices=st.integers(1, 3))
def test_merged_parts_are_those_of_the_merged_partition(data: Any, graph: Any, devices: int):
    graph, parts = of_kind(graph, data.draw(st.sampled_from(KINDS))), 2 * devices
    owners = Partition.from_assignment(data.draw(assignments(graph.num_nodes, parts)), parts)
    mode = data.draw(st.sampled_from(["sar", "domain"]))
    found = merge_parts(tabulate(graph, owners, mode), devices)
    expected = tabulate(graph, merge_partition(owners, devices), mode)
    own, other = found.manifest, expected.manifest
    for name in ("counts", "node_rows", "halo_units", "reach_units", "lengths", "features"):
        assert getattr(own, name) == getattr(other, name), name
    for index in range(devices):
        pair = (placed_part(found, own, index, "cpu"), placed_part(expected, other, index, "cpu"))
        assert pair[0].keys() == pair[1].keys()
        by_id = [np.argsort(arrays["node_ids"][arrays["node_mask"]]) for arrays in pair]
        for name in ("node_ids", "in_degree", "nodes", "labels", "train_mask"):
            if name in pair[0]:
                a, b = (arrays[name][order] for arrays, order in zip(pair, by_id, strict=True))
                np.testing.assert_array_equal(a, b)
