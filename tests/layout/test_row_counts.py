"""How edges are visited: the rows of each group, and which of them on their own."""

import numpy as np
import pytest

from jaxgraph.layout.degrees import PIECE, choose_longest
from jaxgraph.layout.row_counts import count_rows, leaving
from jaxgraph.layout.survey import Survey, survey
from jaxgraph.partition import Partition
from tests.strategies import complete, random_edges

CHUNK = 16


def surveyed(mode: str = "sar") -> Survey:
    senders, receivers = random_edges(90, 900, seed=5)
    receivers[:300] = 7
    graph = complete(senders, receivers, 90, "hub")
    return survey(graph, Partition.from_assignment(np.arange(90) % 3, 3), mode)


@pytest.mark.parametrize(("mode", "groups"), [("sar", 3), ("domain", 1)])
def test_rows_longer_than_the_cheapest_run_are_heavy(mode, groups):
    found = surveyed(mode)
    for rows, counts, orders in (
        (count_rows(found, CHUNK)[0], found.receiver_degrees, "by_receiver"),
        (count_rows(found, CHUNK)[1], found.sender_degrees, "by_sender"),
    ):
        longest = choose_longest(counts, CHUNK)[0]
        assert rows.longest == longest
        for part, edges in enumerate(found.incoming):
            order = getattr(edges, orders)
            for group in range(groups):
                own = slice(order.pointers[group], order.pointers[group + 1])
                degrees = order.degrees if mode == "domain" else order.degrees[own]
                if mode == "domain" and orders == "by_sender":
                    assert rows.rows[part, 0] == len(order.degrees)
                assert rows.rows[part, group] == len(degrees)
                heavy = degrees[degrees > longest]
                assert rows.heavy_rows[part, group] == len(heavy)
                assert rows.runs[part, group] == sum(-(-degree // longest) for degree in heavy)
    assert count_rows(found, CHUNK)[0].heavy_rows.sum() > 0


def test_edges_that_leave_a_part_are_those_that_end_in_the_next():
    values = np.arange(9).reshape(3, 3)  # [part, step from which edges come]
    assert leaving(values).tolist() == [[4, 8], [7, 2], [1, 5]]
    counts = count_rows(surveyed(), CHUNK)[0]
    assert np.array_equal(counts.leaving().heavy_rows, leaving(counts.heavy_rows))
    most = (counts.rows + counts.runs)[:, 1:].max()
    assert counts.leaving().capacity(CHUNK) == most + CHUNK // PIECE
