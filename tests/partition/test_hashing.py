"""Hash partitioning: stateless, seeded, and even in expectation; random parts of equal size."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.partition.hashing import hash_assignment, random_assignment

_MASK = 2**64 - 1


def splitmix64(value: int) -> int:
    """The published algorithm in Python integers."""
    mixed = (value + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


@given(st.integers(0, 50), st.integers(1, 9), st.integers(-(2**70), 2**70))
def test_equals_the_algorithm_in_python_integers(num_nodes: int, num_parts: int, seed: int) -> None:
    offset = splitmix64(seed % 2**64)
    expected = [splitmix64((node + offset) & _MASK) % num_parts for node in range(num_nodes)]
    found = hash_assignment(num_nodes, num_parts, seed)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)


def test_random_parts_of_two_seeds_are_independent() -> None:
    dealt = random_assignment(100_000, 4, seed=0)
    assert abs(np.mean(dealt == random_assignment(100_000, 4, seed=1)) - 0.25) < 0.01
    assert abs(np.mean(dealt == np.arange(100_000) % 4) - 0.25) < 0.01


@given(st.integers(1, 60), st.integers(1, 12), st.integers(-5, 2**65))
def test_random_sizes_differ_by_at_most_one(num_nodes: int, num_parts: int, seed: int) -> None:
    found = random_assignment(num_nodes, num_parts, seed)
    counts = np.bincount(found, minlength=num_parts)
    assert found.dtype == np.int32 and counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(found, random_assignment(num_nodes, num_parts, seed))
