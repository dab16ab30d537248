"""The rows of the schema: one for each array, and those of a second set of edges."""

import dataclasses

import numpy as np
import pytest

from jaxgraph.layout.derived import row_splits, rows
from jaxgraph.layout.placed import listed_part, placed_shapes
from jaxgraph.layout.schema import NODES, halo_fields, node_fields
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


@pytest.mark.parametrize("name", HUBS)
def test_a_second_set_of_edges_has_the_same_arrays_under_its_name(name):
    source = hub_source(name)
    known, shapes = source.manifest.edge_sets, placed_shapes(source.manifest, "mosaic_gpu")
    listed = {array: shapes[array] for array in source.manifest.fields}
    part = listed_part(source, source.manifest, 0, shapes)
    again = [
        dataclasses.replace(edges, name=f"cites/{edges.name}", data=None)
        for edges in known.values()
    ]
    renamed = {f"cites/{array}": values for array, values in part.items()}
    room = {f"cites/{array}": kind for array, kind in listed.items()}
    for layout in (rows, row_splits):
        found = layout.shapes(listed | room, [*known.values(), *again])
        made = layout.arrays(part | renamed, found, [*known.values(), *again])
        for prefix in (prefix for edges in known.values() for prefix in edges.prefixes.values()):
            own = [array for array in made if array.startswith(f"{prefix}/")]
            assert own
            for array in own:
                np.testing.assert_array_equal(made[array], made[f"cites/{array}"])
    fields = [field.name for edges in again for field in edges.fields()]
    assert len(fields) == len(set(fields)) and all(x.startswith("cites/") for x in fields)


def test_a_second_table_of_nodes_and_its_halo():
    own, other = (
        list(node_fields()),
        list(node_fields("papers/", 40, 70, 3, ["papers/node_data.x"])),
    )
    assert [f"papers/{field.name}" for field in own] == [field.name for field in other[:-1]]
    assert other[-1].name == "papers/node_data.x"
    assert {(field.owner, field.axis, field.count) for field in other} == {("papers/", NODES, 40)}
    halo = {field.name: field for field in halo_fields("papers/send", 3, 16, 40, 12)}
    assert halo["papers/send/ptr"].points_into == "papers/send/rows"
    assert halo["papers/send/position"].shape(0, ()) == (3, 12)
