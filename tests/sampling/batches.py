"""Batches of drawn edges, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxgraph.layout.block_tables import BlockSizes
from jaxgraph.layout.sample_tables import block_shapes
from jaxgraph.sampling.neighbors import Drawn, Draws, Neighbors
from jaxgraph.sampling.sampler import Sampler
from tests.oracles.sampling import NumpySampler

NO_VALUE = -7


def compiled(neighbors: Neighbors, draws: Draws) -> Sampler:
    """The sampler of a graph of one set."""
    return Sampler([neighbors], draws, [(0, 0)], [len(neighbors.pointers) - 1])


def in_numpy(neighbors: Neighbors, draws: Draws) -> NumpySampler:
    """Its oracle."""
    return NumpySampler((neighbors,), draws)


def layers(*fanouts: int, replace: bool = False, method: str = "neighbors") -> Draws:
    """Draws from a graph of one set."""
    return Draws(tuple((fanout,) for fanout in fanouts), replace, method)


def sizes_of(
    drawn: Drawn,
    layer: int,
    more: tuple[int, int, int] = (0, 0, 0),
    number: int = 0,
    ends: tuple[int, int] = (0, 0),
) -> BlockSizes:
    """Sizes with room for a set of edges in a layer, and for some more."""
    senders, receivers = drawn.nodes[layer][ends[0]], drawn.nodes[layer + 1][ends[1]]
    found = (senders, receivers, drawn.edges[layer][number])
    return BlockSizes(*(max(1, a + b) for a, b in zip(found, more, strict=True)))


def written(sampler: Any, layer: int, sizes: BlockSizes, number: int = 0) -> dict[str, np.ndarray]:
    """The arrays of a set of edges in a layer."""
    shapes = block_shapes(sizes)
    shapes["edges"] = shapes["by_receiver/neighbors"]
    out = {name: np.full(shape, NO_VALUE, np.int32) for name, shape in shapes.items()}
    sampler.write(layer, number, sizes, out)
    return out


def receivers_of(out: dict[str, np.ndarray]) -> np.ndarray:
    """The receiver's row of each edge."""
    lengths = np.diff(out["by_receiver/compressed_starts"])
    return np.repeat(out["by_receiver/compressed_rows"], lengths)


def ids_of(sampler: Any, drawn: Drawn, number: int = 0) -> np.ndarray:
    """The nodes of a set in the first layer's table."""
    count = drawn.nodes[0][number]
    ids = np.full(count + 3, NO_VALUE, np.int32)
    sampler.node_ids(number, ids)
    assert not ids[count:].any()
    return ids[:count]


def edges_of(sampler: Any, drawn: Drawn) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Nodes that are senders and receivers of each layer's edges, and the numbers of the edges."""
    ids, found = ids_of(sampler, drawn), []
    for layer, (edges,) in enumerate(drawn.edges):
        out = written(sampler, layer, sizes_of(drawn, layer))
        ends = (out["by_receiver/neighbors"], receivers_of(out))
        senders, receivers = (ids[rows[:edges]] for rows in ends)
        found.append((senders, receivers, out["edges"][:edges]))
    return found
