"""Indices of parts: an index out of bounds is refused before a device reads it."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from jaxgraph.layout.index_check import check_indices
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.placed import listed_part, placed_shapes
from jaxgraph.layout.shard_tables import PartTables
from jaxgraph.parallel import make_mesh, place
from tests.layout.part_folders import HUBS, hub_source

NO_INDICES = {"edge_type", "repetition", "sender_ids", "receiver_ids"}
"""Name endings of integers that are no indices, such as ids for randomness."""


class Spoiled:
    """A source with a changed value at one place in one array of the last part."""

    def __init__(self, source: PartTables, name: str, place: int, value: int) -> None:
        self.source, self.change = source, (name, place, value)

    @property
    def manifest(self) -> Manifest:
        return self.source.manifest

    def part(self, index: int) -> dict[str, np.ndarray]:
        arrays = dict(self.source.part(index))
        name, place, value = self.change
        if index == self.manifest.num_parts - 1:
            arrays[name] = arrays[name].copy()
            arrays[name].flat[place] = value
        return arrays


def index_arrays(source: PartTables) -> Iterator[tuple[str, np.ndarray]]:
    part = source.part(source.manifest.num_parts - 1)
    for name, _, dtype in source.manifest.shapes:
        is_index = np.dtype(dtype).kind == "i" and name.split("/")[-1] not in NO_INDICES
        if is_index and part[name].size:
            yield name, part[name]


@pytest.mark.parametrize("name", HUBS)
def test_any_index_outside_of_its_table_is_refused_by_name(name: str) -> None:
    source = hub_source(name)
    manifest, last = source.manifest, source.manifest.num_parts - 1
    arrays, shapes = dict(index_arrays(source)), placed_shapes(source.manifest, "cpu")
    assert len(arrays) >= 12 and any(name.endswith("/neighbors") for name in arrays)
    for (array, values), value in itertools.product(arrays.items(), (10**9, -2)):
        # Arrays of columns come padded, and nothing reads an index in the padding.
        ends = {0} if array.startswith("columns/") else {0, values.size // 2, values.size - 1}
        for at in ends:
            with pytest.raises(ValueError, match=rf"^part {last}: .*{array.rsplit('/', 1)[0]}"):
                part = listed_part(Spoiled(source, array, at, value), manifest, last, shapes)
                check_indices(part, manifest, last)


@pytest.mark.parametrize("name", ["one", "sar"])
def test_the_message_names_the_array_and_what_it_may_hold(name: str) -> None:
    source = hub_source(name)
    spoiled = Spoiled(source, "incoming/by_receiver/neighbors", 7, 10**9)
    last = source.manifest.num_parts - 1
    message = (
        rf"part {last}: incoming/by_receiver/neighbors holds indices from 0 to 1000000000; "
        r"expected 0 to \d+\..* make them again from the graph, with jaxgraph\.parallel\.shard\("
    )
    with pytest.raises(ValueError, match=message):
        place(spoiled, make_mesh(HUBS[name]))
