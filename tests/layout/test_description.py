"""Manifests predict the arrays of the parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.layout.description import describe
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.layout.survey import survey
from jaxgraph.partition import Partition
from tests.strategies import assignments, complete, graphs, random_edges

MODES = ("sar", "domain")


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
def test_declared_shapes_are_the_smallest_that_hold_every_part(mode, data):
    graph = data.draw(graphs(edge_data=True))
    num_parts = data.draw(st.integers(1, 5))
    assignment = data.draw(assignments(graph.num_nodes, num_parts))
    tables = tabulate(graph, Partition.from_assignment(assignment, num_parts), mode)
    parts = [tables.part(index) for index in range(num_parts)]
    assert {name for part in parts for name in part} == set(tables.manifest.array_shapes())
    for name, (shape, dtype) in tables.manifest.array_shapes().items():
        made = [part[name] for part in parts]
        assert all(np.can_cast(values.dtype, dtype, "same_kind") for values in made)
        largest = tuple(map(max, *(values.shape for values in made), (0,) * len(shape)))
        field = tables.manifest.fields[name]
        bare = (shape[0] - field.slack, *shape[1:])
        if name.endswith("repetition"):
            # Parts without equal edges leave out repetitions.
            assert largest <= shape
        elif name == "outgoing/receiver_ids":
            assert shape == (max(*largest, 1),)
        else:
            # Arrays with one entry per row are made for all rows, or for those of the part's nodes.
            assert largest in (bare, shape) or (field.is_data and largest[1:] == shape[1:])


@pytest.mark.parametrize("counts", [(16, 16), (16, 17), (15, 15)])
def test_padding_is_foretold(counts):
    num_nodes = sum(counts)
    parts = Partition.from_assignment(np.repeat([0, 1], counts), 2)
    graph = complete(*random_edges(num_nodes, 100, seed=1), num_nodes, "blocks")
    manifest = describe(survey(graph, parts, "sar").extents, 16)
    assert manifest.has_padding == (num_nodes < 2 * manifest.node_rows)
