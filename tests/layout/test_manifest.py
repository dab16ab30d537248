"""Manifests: comparison, and the sizes that complete the shapes."""

import dataclasses

import pytest

from jaxgraph.layout.manifest import Counts, Manifest, Padding
from jaxgraph.layout.row_lengths import EdgeLengths
from tests.lengths import lengths_of


@pytest.fixture
def manifest() -> Manifest:
    return Manifest(
        mode="sar",
        num_parts=2,
        num_classes=3,
        multilabel=False,
        node_rows=40,
        boundary_rows=7,
        halo_unit=4,
        halo_units=((0, 2), (1, 0)),
        reach_units=((0, 3), (5, 0)),
        shapes=(("node_ids", (40,), "<i4"), ("nodes", (40, 9), "<f4")),
        lengths=(EdgeLengths(lengths_of([[6, 2]]), lengths_of([[7], [1]])),),
        counts=Counts(70, 300, 10),
    )


def test_graphs_of_different_sizes_can_have_equal_manifests(manifest):
    other = dataclasses.replace(manifest, counts=Counts(1, 2, 3))
    assert other == manifest
    assert hash(other) == hash(manifest)
    assert dataclasses.replace(manifest, node_rows=32) != manifest
    assert dataclasses.replace(manifest, lengths=()) != manifest


def test_ratios_of_padding():
    padding = Padding(10, 12, 100, 125, 40, 50)
    assert (padding.node_ratio, padding.edge_ratio, padding.halo_ratio) == (1.2, 1.25, 1.25)
    assert Padding(1, 16, 0, 16, 0, 0).edge_ratio == 16
    assert Padding(1, 16, 0, 16, 0, 0).halo_ratio == 1
    assert Padding(1, 16, 0, 16, 0, 64).halo_ratio == 64
