"""Rows cut for GPU kernels: every slot of every group stands in one piece or in one whole row."""

import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.ops.core.edges import CutRows
from jaxgraph.parallel.cut_rows import cut_arrays, cut_rows_at, cut_shapes
from jaxgraph.parallel.edge_placement import derived_arrays, shapes_of_part
from jaxgraph.partition import partition
from tests.lanes import padded_parts
from tests.training import crooked_graph


def orientation(
    degrees_of_groups: list[list[int]], slots: int, of_first: int = 0
) -> dict[str, np.ndarray]:
    """Compressed rows, with padding behind the end, and how many rows the first group has."""
    degrees = np.concatenate([np.asarray(each, np.int32) for each in degrees_of_groups])
    arrays = {
        "neighbors": np.zeros(slots),
        "compressed_ptr": np.cumsum([0, *map(len, degrees_of_groups)]),
        "compressed_rows": np.append(100 + np.arange(len(degrees)), [9, 9]),
        "compressed_starts": np.append(np.cumsum([0, *degrees]), [9, 9]),
        "position": np.zeros(of_first),
    }
    return {f"edges/{name}": values.astype(np.int32)[None] for name, values in arrays.items()}


def cut_from(part: dict[str, np.ndarray], longest: int) -> CutRows | None:
    return cut_rows_at(part | cut_arrays(part, lambda _: longest), "edges", longest)


def test_every_slot_is_in_one_place():
    part = orientation([[5, 300, 1, 700], [], [2, 1300]], 2400)
    made = cut_arrays(part, lambda _: 1300)
    shapes = cut_shapes({name: (x.shape[1:], x.dtype) for name, x in part.items()}, lambda _: 1300)
    assert {name: (x.shape[1:], x.dtype) for name, x in made.items()} == shapes
    cut = cut_rows_at(part | made, "edges", 1300)
    assert cut is not None and cut.counts[0].tolist() == [2, 0, 1]
    pointers, seen = part["edges/compressed_ptr"][0], []
    for group in range(3):
        pieces = slice(*cut.piece_ptr[0, group : group + 2])
        seen += zip(cut.piece_starts[0, pieces], cut.piece_lengths[0, pieces], strict=True)
        whole = slice(pointers[group] + cut.counts[0, group], pointers[group + 1])
        np.testing.assert_array_equal(cut.whole_ptr[0], pointers)
        seen += zip(cut.whole_starts[0, whole], cut.whole_lengths[0, whole], strict=True)
        assert (np.diff(cut.whole_lengths[0, whole]) <= 0).all()
        assert (cut.piece_lengths[0, pieces] <= cut.longest[0, group]).all()
        rows = slice(*cut.row_ptr[0, group : group + 2])
        assert cut.pieces[0, rows].sum() == pieces.stop - pieces.start
        first = pointers[group]
        long = cut.whole_rows[0, first : first + cut.counts[0, group]]
        np.testing.assert_array_equal(cut.rows[0, rows], long)
    slots = np.concatenate([np.arange(start, start + length) for start, length in seen])
    np.testing.assert_array_equal(np.sort(slots), np.arange(2308))


def test_few_edges_are_not_cut():
    cut = cut_from(orientation([[10, 90]], 100), 90)
    assert cut is not None and cut.partials == 0
    assert cut.whole_rows[0, :2].tolist() == [101, 100]


def test_there_is_no_room_for_pieces_where_no_row_is_long():
    part = orientation([[120] * 10], 1200)
    cut = cut_from(part, 128)
    assert cut is not None and cut.partials == 0
    cut = cut_from(part, 129)
    assert cut is not None and cut.partials > 0 and cut.counts.tolist() == [[0]]


@pytest.mark.parametrize(("largest", "spread"), [(2048, False), (3125, False), (3126, True)])
def test_only_of_a_row_too_long_for_a_cluster_the_pieces_go_to_the_whole_chip(largest, spread):
    cut = cut_from(orientation([[5, largest]], 100_000), largest)
    assert cut is not None and cut.partials > 0 and cut.spread == spread


def test_rows_without_edges_stand_behind_those_of_the_first_group():
    cut = cut_from(orientation([[5, 9], [2, 3]], 20, of_first=103), 9)
    assert cut is not None
    np.testing.assert_array_equal(cut.whole_ptr[0], [0, 103, 105])
    np.testing.assert_array_equal(cut.whole_rows[0, :103], [101, 100, *range(100), 102])
    np.testing.assert_array_equal(cut.whole_lengths[0, :103], [9, 5, *[0] * 101])
    np.testing.assert_array_equal(cut.whole_rows[0, 103:105], [103, 102])
    np.testing.assert_array_equal(cut.whole_lengths[0, 103:105], [3, 2])


def test_pieces_of_columns_are_cut_one_by_one():
    graph = crooked_graph(num_features=8)
    parts = partition(graph, 2, method="hash", seed=0)
    tables = tabulate(graph, parts, "domain", columns=ColumnRequest(chunks=3))
    part = {name: values[None] for name, values in padded_parts(tables)[1].items()}
    made = part | derived_arrays(part, tables.manifest, "mosaic_gpu")
    shapes = shapes_of_part(tables.manifest, "mosaic_gpu")
    assert {name: x.shape[1:] for name, x in made.items()} == {n: s for n, (s, _) in shapes.items()}
    for name in ("columns/by_receiver", "columns/by_sender"):
        for chunk in range(3):
            alone = {key: x[:, chunk] for key, x in part.items() if key.startswith(name)}
            for key, expected in cut_arrays(alone, tables.manifest.longest_row).items():
                np.testing.assert_array_equal(made[key][:, chunk], expected)


@pytest.mark.parametrize(("hub", "is_cut"), [(120, False), (140, True)])
def test_a_graph_has_room_for_pieces_where_a_row_is_long(hub: int, is_cut: bool) -> None:
    """A ring, and edges of others to its first node."""
    node = np.arange(300)
    senders = np.concatenate([node, node[:hub]])
    receivers = np.concatenate([(node + 1) % 300, np.zeros(hub, np.int64)])
    graph = Graph(senders, receivers, num_nodes=300)
    tables = tabulate(graph, partition(graph, 1, method="hash"))
    part = {name: values[None] for name, values in padded_parts(tables)[0].items()}
    made = derived_arrays(part, tables.manifest, "mosaic_gpu")
    by_receiver, by_sender = (
        cut_rows_at(part | made, prefix, tables.manifest.longest_row(prefix))
        for prefix in ("incoming/by_receiver", "incoming/by_sender")
    )
    assert by_receiver is not None and by_sender is not None
    assert (by_receiver.partials > 0, by_sender.partials) == (is_cut, 0)
    assert by_receiver.counts.tolist() == [[int(is_cut)]]
