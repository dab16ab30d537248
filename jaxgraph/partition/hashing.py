"""Partitioning without a look at the edges: by the hash of a node's id, or at random.

P3 (section 3.1) partitions nodes "using a random hash partitioner", edges with the node they enter.
It needs no pass over the graph and no routing table, and any process can compute the owner of any
node on the fly. The price is the cut: about 1 - 1/num_parts of the edges cross parts.

Hashing balances in expectation only. A shuffled deal makes sizes differ by at most one, but needs
the list of all nodes at once.
"""

from __future__ import annotations

import numpy as np

from jaxgraph.seeds import mix


def hash_assignment(num_nodes: int, num_parts: int, seed: int = 0) -> np.ndarray:
    """Assigns node v to part mix(v + mix(seed)) mod num_parts.

    The part of a node depends on its id, the seed and num_parts only: a graph that grows keeps the
    parts of its old nodes. Parts are equal in expectation only; with few nodes per part some may be
    empty.

    References:
        P3: Distributed Deep Graph Learning at Scale, section 3.1; the mixing function is that of
        Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014 (SplitMix64).
    """
    offset = mix(np.array([seed % 2**64], dtype=np.uint64))
    mixed = mix(np.arange(num_nodes, dtype=np.uint64) + offset)
    return (mixed % np.uint64(num_parts)).astype(np.int32)


def random_assignment(num_nodes: int, num_parts: int, seed: int = 0) -> np.ndarray:
    """Deals the nodes, shuffled, to the parts in turn."""
    dealt = np.arange(num_nodes, dtype=np.int32) % np.int32(num_parts)
    np.random.default_rng(seed % 2**64).shuffle(dealt)
    return dealt
