"""Rows split for GPU kernels: every slot of a group is in one split or in one whole row."""

import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.layout.derived.row_splits import FIELDS, arrays, split_rows
from jaxgraph.layout.placed import placed_part, placed_shapes
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.partition import partition
from tests.edge_tables import placed_parts

Arrays = dict[str, np.ndarray]


def orientation(degrees_of_groups: list[list[int]], slots: int, of_first: int = 0) -> Arrays:
    """The arrays for GPU kernels of rows from 100 on, with padding after the compressed rows."""
    degrees = np.concatenate([np.asarray(each, np.int32) for each in degrees_of_groups])
    tables = {
        "neighbors": np.zeros(slots),
        "compressed_ptr": np.cumsum([0, *map(len, degrees_of_groups)]),
        "compressed_rows": np.append(100 + np.arange(len(degrees)), [9, 9]),
        "compressed_starts": np.append(np.cumsum([0, *degrees]), [9, 9]),
    }
    tables = {name: values.astype(np.int32) for name, values in tables.items()}
    made = split_rows(tables, degrees, of_first)
    assert made.keys() == set(FIELDS)
    return made


def test_every_slot_is_in_one_place():
    degrees = [[5, 300, 1, 700], [], [2, 1300]]
    cut, seen = orientation(degrees, 2400), []
    pointers = np.cumsum([0, *map(len, degrees)])
    assert cut["counts"].tolist() == [2, 0, 1]
    for group in range(3):
        splits = slice(*cut["split_ptr"][group : group + 2])
        seen += zip(cut["split_starts"][splits], cut["split_lengths"][splits], strict=True)
        whole = slice(pointers[group] + cut["counts"][group], pointers[group + 1])
        np.testing.assert_array_equal(cut["whole_ptr"], pointers)
        seen += zip(cut["whole_starts"][whole], cut["whole_lengths"][whole], strict=True)
        assert (np.diff(cut["whole_lengths"][whole]) <= 0).all()
        assert (cut["split_lengths"][splits] <= cut["longest"][group]).all()
        rows = slice(*cut["row_ptr"][group : group + 2])
        assert cut["splits"][rows].sum() == splits.stop - splits.start
        first = pointers[group]
        long = cut["whole_rows"][first : first + cut["counts"][group]]
        np.testing.assert_array_equal(cut["rows"][rows], long)
    slots = np.concatenate([np.arange(start, start + length) for start, length in seen])
    np.testing.assert_array_equal(np.sort(slots), np.arange(2308))


def test_few_edges_are_not_split():
    cut = orientation([[10, 90]], 100)
    assert len(cut["split_rows"]) == 0
    assert cut["whole_rows"].tolist() == [101, 100]


def test_rows_without_edges_stand_after_those_of_the_first_group():
    cut = orientation([[5, 9], [2, 3]], 20, of_first=103)
    np.testing.assert_array_equal(cut["whole_ptr"], [0, 103, 105])
    np.testing.assert_array_equal(cut["whole_rows"][:103], [101, 100, *range(100), 102])
    np.testing.assert_array_equal(cut["whole_lengths"][:103], [9, 5, *[0] * 101])
    np.testing.assert_array_equal(cut["whole_rows"][103:105], [103, 102])
    np.testing.assert_array_equal(cut["whole_lengths"][103:105], [3, 2])


def ring_with_hub(hub: int) -> Graph:
    """A ring, and edges from other nodes to its first node."""
    node = np.arange(300)
    senders = np.concatenate([node, node[:hub]])
    receivers = np.concatenate([(node + 1) % 300, np.zeros(hub, np.int64)])
    return Graph(senders, receivers, num_nodes=300)


@pytest.mark.parametrize(("hub", "is_cut"), [(120, False), (127, False), (128, True), (140, True)])
def test_a_graph_has_room_for_splits_where_a_row_is_long(hub: int, is_cut: bool) -> None:
    graph = ring_with_hub(hub)
    tables = tabulate(graph, partition(graph, 1, method="hash"))
    (made,) = placed_parts(tables, "mosaic_gpu")
    by_receiver, by_sender = (f"incoming/by_{end}/cut" for end in ("receiver", "sender"))
    assert (len(made[f"{by_receiver}/split_rows"]) > 0) == is_cut
    assert len(made[f"{by_sender}/split_rows"]) == 0
    assert made[f"{by_receiver}/counts"].tolist() == [int(is_cut)]


def test_a_row_longer_than_the_manifest_says_is_refused():
    """A kernel has no room for its splits."""
    graph, other = ring_with_hub(140), ring_with_hub(120)
    parts = partition(graph, 1, method="hash")
    tables, manifest = tabulate(graph, parts), tabulate(other, parts).manifest
    part = placed_part(tables, tables.manifest, 0, "xla")
    with pytest.raises(ValueError, match=r"has a row of 141 edges; expected at most .* 128"):
        arrays(part, placed_shapes(manifest, "mosaic_gpu"), manifest.edge_sets.values())
