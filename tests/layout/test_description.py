"""Manifests predict the arrays of the parts."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.layout.derived.rows import edge_sizes
from jaxgraph.layout.description import choose_halo_unit, describe
from jaxgraph.layout.halo import SMALLEST_UNIT
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
        slack = tables.manifest.slack(name, len(shape))
        bare = tuple(size - more for size, more in zip(shape, slack, strict=True))
        if name.endswith("repetition"):
            # Parts without equal edges leave out repetitions.
            assert largest <= shape
        elif name == "outgoing/receiver_ids":
            assert shape == (max(*largest, 1),)
        else:
            # Arrays with one entry per row are made for all rows, or for those of the part's nodes.
            assert largest in (bare, shape) or ("/" not in name and largest[1:] == shape[1:])


def test_counts_are_those_of_the_graph():
    graph = complete([0, 1, 2, 2], [1, 0, 3, 3], 4, "four")
    tables = tabulate(graph, Partition.from_assignment([0, 0, 0, 1], 2))
    assert tables.manifest.counts is not None
    assert dataclasses.astuple(tables.manifest.counts) == (4, 4, 1)


@pytest.mark.parametrize("counts", [(16, 16), (16, 17), (15, 15)])
def test_padding_is_foretold(counts):
    num_nodes = sum(counts)
    parts = Partition.from_assignment(np.repeat([0, 1], counts), 2)
    graph = complete(*random_edges(num_nodes, 100, seed=1), num_nodes, "blocks")
    manifest = describe(survey(graph, parts, "sar"), 16)
    assert manifest.has_padding == (num_nodes < 2 * manifest.node_rows)


def test_the_unit_of_messages_suits_all_graphs():
    edges = random_edges(2000, 30_000, seed=5)
    large = complete(*edges, 2000, "large")
    small = complete(*random_edges(40, 100, seed=6), 40, "small")
    surveys = [
        survey(graph, Partition.from_assignment(np.arange(graph.num_nodes) % 4, 4), "sar")
        for graph in (large, small)
    ]
    unit, of_large, of_small = map(choose_halo_unit, (surveys, surveys[:1], surveys[1:]))
    assert unit == min(of_large, of_small)


def test_messages_of_one_size_are_not_cut_into_units():
    graph = complete(*random_edges(40_000, 200_000, seed=5), 40_000, "uniform")
    parts = Partition.from_assignment(np.arange(40_000) % 2, 2)
    assert choose_halo_unit([survey(graph, parts, "sar")]) > SMALLEST_UNIT
    assert choose_halo_unit([survey(graph, parts, "domain")]) == SMALLEST_UNIT


def test_rows_are_at_least_a_chunk():
    graph = complete([0], [1], 2, "two")
    manifest = describe(survey(graph, Partition.from_assignment([0, 1], 2), "sar"), 16)
    assert manifest.node_rows == edge_sizes(manifest)["incoming"].chunk == 16
