"""The arrays of a device: their shapes follow from the manifest in every process."""

import pickle

import pytest

from jaxgraph.layout.placed import DERIVED, placed_part, placed_shapes
from tests.layout.part_folders import HUBS, hub_source


@pytest.mark.parametrize("implementation", DERIVED)
@pytest.mark.parametrize(
    ("name", "pad"), [*((name, False) for name in HUBS), ("one", True), ("sar", True)]
)
def test_every_part_has_the_shapes_that_another_process_finds(name, pad, implementation):
    source = hub_source(name, pad=pad)
    # Another process reads the manifest, not the graph.
    shapes = placed_shapes(pickle.loads(pickle.dumps(source.manifest)), implementation)
    for index in range(source.manifest.num_parts):
        part = placed_part(source, source.manifest, index, implementation)
        assert {name: (x.shape, x.dtype) for name, x in part.items()} == shapes
