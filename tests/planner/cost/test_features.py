"""Features of parts: against loops over vertices and edges, and the example of the paper."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph import Graph
from jaxgraph.partition import Partition
from jaxgraph.planner.cost.features import (
    DEFAULT,
    FEATURES,
    ROC_PRINTED,
    Access,
    checked_features,
    part_features,
)
from tests.strategies import assignments, graphs


def runs_of(senders: set[int]) -> list[int]:
    """Lengths of the runs of consecutive numbers."""
    lengths: list[int] = []
    for sender in sorted(senders):
        if sender - 1 in senders:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def by_loops(graph: Graph, owner: list[int], num_parts: int, access: Access) -> list[list[float]]:
    edges = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    halos = {
        (p, q): len({s for s, r in edges if owner[r] == p and owner[s] == q})
        for p in range(num_parts)
        for q in range(num_parts)
        if p != q
    }
    largest = max(owner.count(part) for part in range(num_parts))
    rows = []
    for part in range(num_parts):
        own = {node for node, of in enumerate(owner) if of == part}
        halo = {s for s, r in edges if r in own and s not in own}
        runs = [runs_of({s for s, r in edges if r == node}) for node in own]
        lengths = [length for some in runs for length in some]
        entering = sum(r in own for _, r in edges)
        senders = len(own) + len(halo)
        missed = max(0.0, 1 - access.cache_bytes / access.row_bytes / max(senders, 1))
        found = {
            "nodes": len(own),
            "neighbors": sum(lengths),
            "runs": len(lengths),
            "id accesses": sum(math.ceil(c / access.width) for c in lengths),
            "row accesses": sum(math.ceil(c * access.columns / access.width) for c in lengths),
            "edges": entering,
            "parts": 1,
            "padded rows": largest,
            "halo rows": len(halo),
            "padded halo rows": (num_parts - 1) * max(halos.values(), default=0),
            "missed edges": entering * missed,
        }
        rows.append([found[name] for name in FEATURES])
    return rows


@given(graphs(), st.integers(1, 5), st.integers(1, 9), st.integers(1, 5), st.data())
def test_equal_loops(
    graph: Graph, num_parts: int, columns: int, width: int, data: st.DataObject
) -> None:
    owner = data.draw(assignments(graph.num_nodes, num_parts))
    access = Access(columns, row_bytes=4 * columns, width=width, cache_bytes=30)
    parts = Partition.from_assignment(owner, num_parts)
    found = part_features(graph, parts, access, tuple(FEATURES))
    expected = by_loops(graph, parts.assignment.tolist(), num_parts, access)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_example_of_the_paper() -> None:
    # v1 with neighbours {v3, v4, v6, v8}: blocks {v3, v4}, {v6} and {v8}.
    graph = Graph.from_edges([3, 4, 6, 8], [1, 1, 1, 1], num_nodes=9)
    owner = np.arange(9) != 1
    access = Access(columns=40, row_bytes=160, width=32)
    found = part_features(
        graph, Partition.from_assignment(owner.astype(int), 2), access, ROC_PRINTED
    )
    assert found[0].tolist() == [1, 4, 3, 3, math.ceil(80 / 32) + 2 + 2]


def test_the_default_is_known_and_names_are_checked() -> None:
    graph = Graph.from_edges([0], [1], num_nodes=2)
    parts, access = Partition.from_assignment([0, 1], 2), Access(4, 16)
    assert part_features(graph, parts, access).shape == (2, len(DEFAULT))
    with pytest.raises(ValueError, match=r"got 'edge'; expected one of .*Did you mean 'edges'\?"):
        checked_features(("edge",))
    with pytest.raises(ValueError, match="each once"):
        checked_features(("edges", "edges"))
