"""The edges between two tables of rows, as one edge group in both orientations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxgraph.kinds import check_positive
from jaxgraph.layout.derived import rows
from jaxgraph.layout.derived.chunks import CHUNKS_ALONE, LARGEST_CHUNK, PIECE, SMALLEST_CHUNK
from jaxgraph.layout.derived.orientations import fill
from jaxgraph.layout.edge_tables import group_tables
from jaxgraph.layout.manifest import Arrays, Shapes
from jaxgraph.layout.part_edges import edge_lengths, edges_between
from jaxgraph.layout.schema import EDGES, REPETITION, ROWS, SLOTS, EdgeSet, Sizes

BLOCK = "block"
"""The name of these edges."""


@dataclasses.dataclass(frozen=True)
class BlockSizes:
    """The sizes of a block, from which all its shapes follow, whatever its edges.

    A function that was compiled for one block then runs on all blocks of these sizes. Rows past the
    nodes and slots past the edges are padding.

    Args:
      num_senders, num_receivers: rows of the tables.
      num_edges: edges that there is room for.

    Raises:
      ValueError: a size is no positive integer.
    """

    num_senders: int
    num_receivers: int
    num_edges: int

    def __post_init__(self) -> None:
        for name, size in dataclasses.asdict(self).items():
            check_positive(name, size)

    def visits(self) -> rows.EdgeSizes:
        """The sizes of the loops over the edges; a chunk has room for the runs of heavy rows."""
        limit = max(SMALLEST_CHUNK, min(LARGEST_CHUNK, int(self.num_receivers) // CHUNKS_ALONE))
        chunk = 1 << (limit.bit_length() - 1)
        block = chunk // PIECE
        longest = max(PIECE, -(-2 * self.num_edges // (chunk - block)))
        runs = 2 * self.num_edges // longest
        most = [min(x, self.num_edges) + runs for x in (self.num_receivers, self.num_senders)]
        return rows.EdgeSizes(chunk, *(rows.RowSizes(longest, x, x, block) for x in most))

    def entries(self, edges: EdgeSet) -> Sizes:
        """The entries of the arrays of the edges."""
        found = {
            (prefix, ROWS): min(edges.own_rows(side), self.num_edges)
            for side, prefix in edges.prefixes.items()
        }
        return found | {(edges.name, axis): self.num_edges for axis in (EDGES, SLOTS, REPETITION)}


def block_tables(
    senders: np.ndarray,
    receivers: np.ndarray,
    data: Mapping[str, np.ndarray],
    num_senders: int,
    num_receivers: int,
    sizes: BlockSizes | None = None,
) -> tuple[Arrays, np.ndarray, rows.EdgeSizes]:
    """Arrays by name, the edge in each slot, and the sizes of loops; given sizes fix all shapes."""
    ordered = edges_between(senders, receivers, num_senders, num_receivers, numbered=True)
    lengths = (edge_lengths([ordered]),)
    edges = EdgeSet(BLOCK, 1, num_receivers, num_senders, lengths, data="")
    edge_of_slot = ordered.by_receiver.in_row_order(ordered.edges)
    listed = group_tables(BLOCK, ordered)
    listed |= {name: values[edge_of_slot] for name, values in data.items()}
    if sizes is None:
        entries, visits = edges.sizes(len(senders)), rows.sizes_of(edges)
        entries[BLOCK, REPETITION] = len(senders)
    else:
        entries, visits = sizes.entries(edges), sizes.visits()
        listed.setdefault(f"{BLOCK}/repetition", np.zeros(0, np.int32))
    shapes: Shapes = {}
    for field in edges.fields():
        if field.name in listed:
            values = listed[field.name]
            size = entries.get((field.owner, field.axis), 0)
            shape = field.shape(size, values.shape[1:])
            shapes[field.name] = shape, field.dtype or values.dtype
    shapes |= rows.shapes(shapes, [edges], lambda _: visits)
    arrays = {name: fill(name, values, *shapes[name]) for name, values in listed.items()}
    arrays |= rows.arrays(listed, shapes, [edges], lambda _: visits)
    return arrays, edge_of_slot, visits
