"""The rows of the schema: one for each array."""

import dataclasses

import pytest

from jaxgraph.graph_arrays import NODE_FIELDS
from jaxgraph.layout.schema import node_fields
from tests.layout.part_folders import HUBS, hub_source


@pytest.mark.parametrize("name", HUBS)
def test_every_array_of_a_part_has_a_row_and_its_shape(name):
    source = hub_source(name)
    manifest = source.manifest
    assert set(source.part(0)) == set(manifest.fields)
    for array, (shape, dtype) in manifest.array_shapes().items():
        field, ahead = manifest.fields[array], len(manifest.fields[array].lead)
        assert field.name == array and field.dtype in (None, dtype)
        size = shape[ahead] - field.slack if shape else 0
        # Features that are split by column have a row for each node of all parts.
        if array != "nodes" or manifest.columns is None:
            assert field.shape(size, shape[ahead + 1 :]) == shape


def test_an_array_without_a_row_is_refused():
    manifest = hub_source("one").manifest
    other = dataclasses.replace(manifest, shapes=(*manifest.shapes, ("old", (3,), "<i4")))
    with pytest.raises(
        ValueError, match="the manifest lists old, which is no array of a part; wri"
    ):
        _ = other.fields


def test_the_arrays_of_nodes_that_a_user_gives_are_those_of_the_graph():
    assert {field.name for field in node_fields() if field.dtype is None} == set(NODE_FIELDS)
