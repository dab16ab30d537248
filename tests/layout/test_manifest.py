"""Manifests: comparison, and the sizes that complete the shapes."""

import dataclasses

import numpy as np
import pytest

from jaxgraph.layout.manifest import Counts, Manifest, Padding, fill_value
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


def test_sizes_of_messages(manifest):
    assert (manifest.halo_rows, manifest.reach_rows) == (8, 20)
    assert manifest.sender_rows == 40
    domain = dataclasses.replace(manifest, mode="domain")
    assert domain.sender_rows == 40 + 2 * 8
    assert dataclasses.replace(domain, num_parts=1, halo_units=((0,),)).sender_rows == 40


@pytest.mark.parametrize(
    ("name", "dimensions", "expected"),
    [
        ("nodes", 2, (40, 0)),
        ("node_mask", 1, (40,)),
        ("edges", 2, (0, 0)),
        ("incoming/by_sender/edge_ids", 1, (0,)),
        ("incoming/by_receiver/compressed_ptr", 1, (0,)),
        ("incoming/by_receiver/compressed_rows", 1, (0,)),
        ("outgoing/by_sender/compressed_starts", 1, (1,)),
        ("incoming/sender_ids", 1, (0,)),
        ("incoming/repetition", 1, (0,)),
        ("send/rows", 1, (8,)),
        ("reach/rows", 1, (20,)),
        ("send/position", 2, (0, 7)),
    ],
)
def test_slack(manifest, name, dimensions, expected):
    assert manifest.slack(name, dimensions) == expected


def test_senders_of_domain_are_known_by_number(manifest):
    domain = dataclasses.replace(manifest, mode="domain")
    assert domain.slack("incoming/sender_ids", 1) == (56,)
    assert domain.table_rows("incoming/by_sender") == 56
    assert domain.table_rows("incoming/by_receiver") == 40


def test_padding_means_none():
    assert fill_value("send/position", 2) == -1
    assert fill_value("incoming/by_receiver/position", 1) == -1
    assert fill_value("incoming/receivers", 1) == 0
    assert fill_value("incoming/by_receiver/compressed_starts", 1) == 0
    assert fill_value("labels", 1) == -1
    assert fill_value("labels", 2) == 0
    assert fill_value("nodes", 2) == 0


def test_array_shapes(manifest):
    assert manifest.array_shapes()["nodes"] == ((40, 9), np.dtype(np.float32))


def test_ratios_of_padding():
    padding = Padding(10, 12, 100, 125, 40, 50)
    assert (padding.node_ratio, padding.edge_ratio, padding.halo_ratio) == (1.2, 1.25, 1.25)
    assert Padding(1, 16, 0, 16, 0, 0).edge_ratio == 16
    assert Padding(1, 16, 0, 16, 0, 0).halo_ratio == 1
    assert Padding(1, 16, 0, 16, 0, 64).halo_ratio == 64
