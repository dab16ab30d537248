"""A graph in the shapes of another one."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph import Graph
from jaxgraph.layout.derived import row_splits
from jaxgraph.layout.derived.row_splits import longest_row
from jaxgraph.layout.description import describe
from jaxgraph.layout.fitting import fit, merge, with_headroom
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.survey import survey
from jaxgraph.partition import Partition
from tests.strategies import assignments, complete, graphs, random_edges

PARTS = 3


def manifest_of(
    graph: Graph,
    mode: str = "sar",
    unit: int = 16,
) -> Manifest:
    parts = Partition.from_assignment(np.arange(graph.num_nodes) % PARTS, PARTS)
    return describe(survey(graph, parts, mode).extents, unit)


def random_graph(num_nodes: int, num_edges: int, **changes: Any) -> Graph:
    edges = random_edges(num_nodes, num_edges, seed=num_nodes)
    return complete(*edges, num_nodes, "random").replace(**changes)


@pytest.fixture
def small() -> Manifest:
    return manifest_of(random_graph(60, 200))


@pytest.fixture
def large() -> Manifest:
    return manifest_of(random_graph(300, 2000))


@pytest.mark.parametrize("name", ["halo_units", "reach_units"])
def test_messages_of_every_pair_must_fit(large, name):
    tight = np.array(getattr(large, name))
    tight[0, 1] -= 1
    pad_to = dataclasses.replace(large, **{name: tuple(map(tuple, tight.tolist()))})
    with pytest.raises(ValueError, match=f"does not fit into pad_to: {name} of 1 pairs"):
        fit(large, pad_to)


def manifest_alone(*degrees: int) -> Manifest:
    """The row lengths of a graph in one part whose receivers have these degrees."""
    receivers = np.repeat(np.arange(len(degrees)), degrees)
    graph = complete(np.arange(len(receivers)) % 50, receivers, 50, "alone")
    found = survey(graph, Partition.from_assignment(np.zeros(50, int), 1), "sar")
    return describe(found.extents, 16)


def without(manifest: Manifest, *others: Manifest) -> Manifest:
    """The same shapes with the row lengths of some graphs only."""
    return dataclasses.replace(manifest, lengths=tuple(x for m in others for x in m.lengths))


def test_the_longest_row_must_fit():
    def longest(manifest: Manifest) -> int:
        return longest_row(manifest.edge_sets["incoming"], "by_receiver")

    short, shorter, long = manifest_alone(100), manifest_alone(7), manifest_alone(200)
    assert longest(short) == longest(shorter) < longest(long) == 200
    common = merge([short, long])
    assert longest(common) == 200
    assert longest(with_headroom(common, 0.5)) == 600
    assert longest(with_headroom(common, 0.5, longer=1.1)) == 221
    assert row_splits.compare(long, short)["incoming/by_receiver: edges of a row"] == (200, 128)
    with pytest.raises(ValueError, match="does not fit"):
        fit(long, without(common, short))


@pytest.mark.parametrize("mode", ["sar", "domain"])
@given(data=st.data())
def test_all_graphs_fit_into_what_they_are_merged_to_and_into_nothing_smaller(mode, data):
    manifests = []
    for _ in range(3):
        graph = data.draw(graphs())
        owner = data.draw(assignments(graph.num_nodes, PARTS))
        found = survey(graph, Partition.from_assignment(owner, PARTS), mode)
        manifests.append(describe(found.extents, 16))
    common = merge(manifests)
    assert all(fit(manifest, common) == common for manifest in manifests)
    assert common.counts is None
    assert merge([common, *manifests]) == common
    for name in ("node_rows", "boundary_rows", "num_classes"):
        assert getattr(common, name) == max(getattr(manifest, name) for manifest in manifests)


def test_what_padding_alone_can_say_is_filled_in(large):
    bare = manifest_of(
        random_graph(60, 100, labels=None, train_mask=None, val_mask=None, test_mask=None)
    )
    assert fit(bare, large) == dataclasses.replace(large, has_padding=True)
    assert merge([bare, large]).array_shapes().keys() == large.array_shapes().keys()
    with pytest.raises(ValueError, match="no room for labels, test_mask, train_mask, val_mask"):
        fit(large, merge([bare]))


def test_repeated_edges_need_room(large):
    once = manifest_of(complete([0, 1], [1, 2], 9, "once"))
    twice = manifest_of(complete([0, 0], [1, 1], 9, "twice"))
    assert "incoming/repetition" not in once.array_shapes()
    assert fit(once, merge([once, twice])) == merge([twice, once])
    with pytest.raises(ValueError, match="pad_to has no room for incoming/repetition"):
        fit(twice, once)


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ({"mode": "domain"}, {}, "with mode '(sar|domain)' and '(sar|domain)' cannot"),
        ({"unit": 32}, {}, "with halo_unit (16|32) and (16|32) cannot"),
        ({}, {"nodes": None}, "with and without nodes cannot"),
        ({}, {"nodes": np.zeros((60, 8))}, r"nodes has \[[58]\] of float32 .* \[[58]\] of float32"),
        ({}, {"labels": np.zeros((60, 2))}, r"labels has \[2?\] of .* and \[2?\] of"),
    ],
    ids=["mode", "unit", "features", "width", "labels"],
)
def test_graphs_of_different_kinds(small, layout, changes, message):
    other = manifest_of(random_graph(60, 200, **changes), **layout)
    for manifests in ([small, other], [other, small]):
        with pytest.raises(ValueError, match=message):
            merge(manifests)
