"""Random partitioning: equal sizes, seeded."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.partition.shuffling import random_assignment


@given(st.integers(1, 60), st.integers(1, 12), st.integers(-5, 2**65))
def test_sizes_differ_by_at_most_one(num_nodes: int, num_parts: int, seed: int) -> None:
    found = random_assignment(num_nodes, num_parts, seed)
    counts = np.bincount(found, minlength=num_parts)
    assert found.dtype == np.int32
    assert counts.shape == (num_parts,)
    assert counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(found, random_assignment(num_nodes, num_parts, seed))


def test_seeds_are_independent_and_nothing_follows_the_ids() -> None:
    first, second = random_assignment(40_000, 4, seed=0), random_assignment(40_000, 4, seed=1)
    assert abs(np.mean(first == second) - 0.25) < 0.015
    assert abs(np.mean(first == np.arange(40_000) % 4) - 0.25) < 0.015
