"""Random partitioning with parts of equal size: the balanced counterpart of P3's random hash.

P3 (section 3.1) hashes, which balances in expectation only. A shuffled deal makes sizes differ by
at most one, but needs the list of all nodes at once.
"""

from __future__ import annotations

import numpy as np

__all__ = ["random_assignment"]


def random_assignment(num_nodes: int, num_parts: int, seed: int = 0) -> np.ndarray:
    """Deals the nodes, shuffled, to the parts in turn.

    Args:
        num_nodes: number of nodes.
        num_parts: number of parts.
        seed: any integer.

    Returns:
        int32 [num_nodes], the part of each node; part sizes differ by at most one.
    """
    dealt = np.arange(num_nodes, dtype=np.int32) % np.int32(num_parts)
    np.random.default_rng(seed % 2**64).shuffle(dealt)
    return dealt
