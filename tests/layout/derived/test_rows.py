"""Compact rows and runs: their sizes, and the rows that are cut."""

import dataclasses
import itertools

import numpy as np
import pytest

from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.derived.chunks import PIECE, choose_longest
from jaxgraph.layout.derived.rows import compare, sizes_of
from jaxgraph.layout.placed import placed_part, placed_shapes
from jaxgraph.layout.row_lengths import EdgeLengths, leaving
from jaxgraph.layout.shard_tables import PartTables, tabulate
from jaxgraph.partition import Partition
from tests.edge_tables import check_orientation, placed_parts
from tests.strategies import complete, random_edges
from tests.training import crooked_graph


def hub(mode: str = "sar", edges_of_hub: int = 300) -> PartTables:
    """A graph in three parts with a receiver of many edges."""
    senders, receivers = random_edges(90, 900, seed=5)
    receivers[:edges_of_hub] = 7
    graph = complete(senders, receivers, 90, "hub")
    return tabulate(graph, Partition.from_assignment(np.arange(90) % 3, 3), mode)


@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_rows_longer_than_the_cheapest_run_are_cut(mode):
    tables = hub(mode)
    sizes, lengths = sizes_of(tables.manifest.edge_sets["incoming"]), tables.survey.extents.lengths
    parts, cut = placed_parts(tables), 0
    for side in ("by_receiver", "by_sender"):
        own = getattr(sizes, side)
        assert own.longest == choose_longest(getattr(lengths, side), sizes.chunk)[0]
        entries, largest = [], []
        for part in parts:
            pointers = part[f"incoming/{side}/compressed_ptr"]
            degrees = np.diff(part[f"incoming/{side}/compressed_starts"])
            rows_and_runs = []
            for group, (first, last) in enumerate(itertools.pairwise(pointers)):
                heavy = [int(d) for d in degrees[first:last] if d > own.longest]
                assert part[f"incoming/{side}/heavy_rows"][group] == len(heavy)
                rows_and_runs.append(last - first + sum(-(-d // own.longest) for d in heavy))
                cut += len(heavy)
            assert np.diff(part[f"incoming/{side}/run_ptr"]).tolist() == rows_and_runs
            entries.append(sum(rows_and_runs))
            largest.append(max(rows_and_runs))
        assert own.entries == max(entries)
        assert own.capacity == max(largest) + sizes.chunk // PIECE
    assert cut > 0


def test_edges_that_leave_a_part_take_the_runs_of_those_that_end_there():
    manifest = hub().manifest
    incoming, outgoing = (sizes_of(manifest.edge_sets[edges]) for edges in ("incoming", "outgoing"))
    assert outgoing.chunk == incoming.chunk
    assert outgoing.by_receiver.longest == incoming.by_receiver.longest
    counts = manifest.lengths[0].by_sender
    assert incoming.by_sender.longest >= counts.longest  # no row is cut
    most = leaving(counts.by_group(counts.rows)).max()
    assert outgoing.by_sender.capacity == most + incoming.chunk // PIECE


def test_rows_are_cut_into_longer_runs_where_there_is_no_room():
    """The shapes of a graph without long rows, of which none is cut."""
    even, long = hub(edges_of_hub=0), hub(edges_of_hub=30)
    receivers = even.manifest.lengths[0].by_receiver
    short = EdgeLengths(
        dataclasses.replace(receivers, lengths=np.ones_like(receivers.lengths)),
        even.manifest.lengths[0].by_sender,
    )
    manifest = dataclasses.replace(long.manifest, lengths=(short,))
    assert sizes_of(manifest.edge_sets["incoming"]).by_receiver.longest == 1
    assert not [n for n, (a, b) in compare(long.manifest, manifest).items() if a > b and "rec" in n]
    part = placed_part(long, manifest, 1, "cpu")
    check_orientation(part, "incoming", manifest)


def test_a_part_with_more_rows_than_its_manifest_says_is_refused():
    """Sizes follow from row lengths: another graph's would be too small for the kernels."""
    tables = hub()
    receivers = tables.manifest.lengths[0].by_receiver
    fewer = dataclasses.replace(receivers, rows=(receivers.rows + 1) // 2)
    lengths = dataclasses.replace(tables.manifest.lengths[0], by_receiver=fewer)
    short = dataclasses.replace(tables.manifest, lengths=(lengths,))
    with pytest.raises(ValueError, match=r"by_receiver/compressed_ptr has \d+ rows, up to"):
        placed_part(tables, short, 0, "cpu")


def test_every_array_of_slots_has_room_for_a_chunk_after_its_last_edge():
    manifest = hub().manifest
    chunk, listed = sizes_of(manifest.edge_sets["incoming"]).chunk, manifest.array_shapes()
    placed = placed_shapes(manifest, "xla")
    for name in ("incoming/by_receiver/neighbors", "outgoing/by_sender/edge_ids"):
        assert placed[name][0][0] == listed[name][0][0] + chunk
    assert placed["incoming/receivers"] == placed["incoming/by_receiver/neighbors"]
    assert placed["outgoing/by_sender/position"][0] == (0,)
    graph = crooked_graph(num_features=8, edge_weight=True)
    parts = Partition.from_assignment(np.arange(graph.num_nodes) % 2, 2)
    placed = placed_shapes(
        tabulate(graph, parts, "domain", columns=ColumnRequest(chunks=2)).manifest, "xla"
    )
    slots = placed["columns/by_receiver/neighbors"][0]
    assert placed["columns/receivers"][0] == placed["columns/edge_weight"][0] == slots
