"""How edges are walked, and how that adapts to the room there is."""

import dataclasses

import numpy as np
import pytest

from jaxgraph.partition import Partition
from jaxgraph.partition.degrees import split_rows
from jaxgraph.partition.description import describe
from jaxgraph.partition.manifest import Manifest
from jaxgraph.partition.survey import Survey, survey
from jaxgraph.partition.walks import choose_walks, leaving
from tests.strategies import complete, random_edges

CHUNK = 16


def surveyed(mode: str = "sar") -> Survey:
    senders, receivers = random_edges(90, 900, seed=5)
    receivers[:300] = 7
    graph = complete(senders, receivers, 90, "hub")
    return survey(graph, Partition.from_assignment(np.arange(90) % 3, 3), mode)


def with_length(manifest: Manifest, name: str, length: int) -> Manifest:
    shapes = tuple(
        (each, (length,) if each == name else shape, dtype)
        for each, shape, dtype in manifest.shapes
    )
    return dataclasses.replace(manifest, shapes=shapes)


@pytest.mark.parametrize(("mode", "groups"), [("sar", 3), ("domain", 1)])
def test_the_cheapest_walk_is_taken(mode, groups):
    found = surveyed(mode)
    by_receiver, by_sender = choose_walks(found, CHUNK)
    for walk, counts in (
        (by_receiver, found.receiver_degrees),
        (by_sender, found.sender_degrees),
    ):
        assert walk.thresholds.shape == walk.rows.shape == walk.light.shape == (3, groups)
        assert np.array_equal(walk.thresholds.ravel(), split_rows(counts, CHUNK)[0])
    assert by_receiver.heavy.sum() >= 300 // CHUNK


def test_edges_that_leave_a_part_are_those_that_end_in_the_next():
    values = np.arange(9).reshape(3, 3)  # [part, step from which edges come]
    assert leaving(values).tolist() == [[4, 8], [7, 2], [1, 5]]
    walk = choose_walks(surveyed(), CHUNK)[0]
    assert np.array_equal(walk.leaving().light, leaving(walk.light))
    assert walk.leaving().capacity(CHUNK) == walk.rows[:, 1:].max() + CHUNK


def test_shapes_leave_room_for_more_chunks_unless_they_must_fit():
    found = surveyed()
    roomy, exact = describe(found, CHUNK, 16), None
    exact = describe(found, CHUNK, 16, roomy)
    for name in ("incoming/by_receiver/light_slots", "outgoing/by_sender/light_rows"):
        assert roomy.array_shapes()[name][0] > exact.array_shapes()[name][0]


@pytest.mark.parametrize(
    "name", ["incoming/by_receiver/heavy_slots", "outgoing/by_receiver/heavy_slots"]
)
def test_fewer_rows_are_kept_apart_where_there_is_no_room_for_them(name):
    found = surveyed()
    roomy = describe(found, CHUNK, 16)
    # Light chunks have room for any walk, heavy ones for none.
    tight = with_length(roomy, name, 0)
    for side in ("incoming", "outgoing"):
        tight = with_length(tight, f"{side}/by_receiver/light_slots", 10**6)
    free, forced = (choose_walks(found, CHUNK, within)[0] for within in (roomy, tight))
    heavy = forced.heavy if name.startswith("incoming") else forced.leaving().heavy
    assert heavy.sum() == 0 < free.heavy.sum()
    assert forced.light.sum() > free.light.sum()


def test_where_nothing_fits_the_cheapest_walk_stays():
    found = surveyed()
    hopeless = with_length(describe(found, CHUNK, 16), "incoming/by_receiver/light_slots", 0)
    forced, free = choose_walks(found, CHUNK, hopeless)[0], choose_walks(found, CHUNK)[0]
    assert np.array_equal(forced.thresholds, free.thresholds)
