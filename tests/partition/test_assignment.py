"""The partition type: its fields, and its errors."""

from typing import Any

import numpy as np
import pytest

from jaxgraph.partition import Partition


def test_stores_read_only_copies_as_int32() -> None:
    owner, rank = np.array([0, 2, 2, 0, 0], np.int64), np.array([2, 0, 2, 1, 1], np.uint8)
    parts = Partition.from_assignment(owner, 4, rank)
    owner[0] = rank[0] = 1
    assert (parts.num_nodes, parts.num_parts, parts.method) == (5, 4, "given")
    assert parts.counts().tolist() == [3, 0, 2, 0]
    assert parts.rank is not None and parts.rank.dtype == parts.assignment.dtype == np.int32
    assert (parts.assignment[0], parts.rank.tolist()) == (0, [2, 0, 2, 1, 1])
    for stored in (parts.assignment, parts.rank):
        with pytest.raises(ValueError, match="read-only"):
            stored[0] = 1
    assert Partition.from_assignment([0, 1, 1], 2).rank is None


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        ([0, 1], r"rank: got int64 \[2\]; expected integers \[3\]"),
        ([0.0, 1.0, 2.0], r"rank: got float64"),
        ([0, 1, 3], r"run from 0 to 3; expected 0 to 2\. np\.unique"),
    ],
)
def test_refuses_ranks(rank: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Partition.from_assignment([0, 1, 1], 2, rank)


def test_takes_numpy_integers_and_shows_itself() -> None:
    parts = Partition(np.array([0, 1], np.uint8), np.int64(2), "mine")  # type: ignore[arg-type]
    assert type(parts.num_parts) is int
    assert repr(parts) == "Partition(method='mine', num_parts=2, num_nodes=2)"


@pytest.mark.parametrize(
    ("assignment", "num_parts", "message"),
    [
        ([0, 1, 2], 2, r"assignment: values run from 0 to 2; expected 0 to 1"),
        ([0, 2**32], 2, r"values run from 0 to 4294967296"),
        (np.ma.masked_equal([0, 7], 7), 8, r"assignment: got a masked array with 1 masked"),
        ([[0, 1]], 2, r"got shape \[1, 2\]; expected \[num_nodes\]"),
        ([], 2, r"got shape \[0\]"),
        ([0.0, 1.0], 2, r"got float64 \[2\]; expected integers"),
        ([True, False], 2, r"got bool"),
        ([0, 0], 0, r"num_parts: got 0; expected at least 1"),
        ([0, 0], 2**31, r"below 2\*\*31"),
        ([0, 0], 2.0, r"num_parts: got 2.0 of type float"),
        ([0, 0], True, r"num_parts: got True of type bool"),
    ],
)
def test_refuses(assignment: Any, num_parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Partition.from_assignment(assignment, num_parts)
