"""Batches of drawn edges, for tests."""

from __future__ import annotations

import numpy as np

from jaxgraph.layout.block_tables import BlockSizes, block_tables
from jaxgraph.sampling.draw import Drawn, Sampler

NO_VALUE = -7


def sizes_of(drawn: Drawn, layer: int, more: tuple[int, int, int] = (0, 0, 0)) -> BlockSizes:
    """Sizes with room for a layer, and for some more."""
    found = (drawn.nodes[layer], drawn.nodes[layer + 1], drawn.edges[layer])
    return BlockSizes(*(max(1, a + b) for a, b in zip(found, more, strict=True)))


def written(sampler: Sampler, layer: int, sizes: BlockSizes) -> dict[str, np.ndarray]:
    """The arrays of a layer."""
    nothing = np.zeros(0, np.int64)
    tables, _, visits = block_tables(
        nothing, nothing, {}, sizes.num_senders, sizes.num_receivers, sizes
    )
    shapes = {name.removeprefix("block/"): values.shape for name, values in tables.items()}
    del shapes["repetition"]
    shapes |= dict.fromkeys(("receivers", "edges"), (sizes.num_edges + visits.chunk,))
    out = {name: np.full(shape, NO_VALUE, np.int32) for name, shape in shapes.items()}
    sampler.write(layer, sizes, out)
    return out


def ids_of(sampler: Sampler, drawn: Drawn) -> np.ndarray:
    """The nodes of the input's table."""
    ids = np.full(drawn.nodes[0] + 3, NO_VALUE, np.int32)
    sampler.node_ids(ids)
    assert not ids[drawn.nodes[0] :].any()
    return ids[: drawn.nodes[0]]


def edges_of(sampler: Sampler, drawn: Drawn) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Nodes that are senders and receivers of each layer's edges, and the numbers of the edges."""
    ids, found = ids_of(sampler, drawn), []
    for layer, edges in enumerate(drawn.edges):
        out = written(sampler, layer, sizes_of(drawn, layer))
        ends = (out["by_receiver/neighbors"], out["receivers"])
        senders, receivers = (ids[rows[:edges]] for rows in ends)
        found.append((senders, receivers, out["edges"][:edges]))
    return found
