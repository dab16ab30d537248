"""The arrays of a sample: the relations of a model's layers, one after the other in one buffer.

The nodes that a layer receives at are the first of those that it sends from, so that one list of
nodes of each set serves all layers. All arrays have 32 bits: a sample goes to a device in one
transfer.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping

import numpy as np

from jaxgraph.layout.block_tables import BlockSizes
from jaxgraph.layout.derived.orientations import aligned
from jaxgraph.layout.manifest import Arrays

COUNTS = "counts"
"""int32 [layers + 1, sets], the nodes of each table."""
NODE_IDS, PLACES, ASKED, COLUMN_ROWS = "/node_ids", "/places", "/asked", "/column_rows"
"""Of a set: ids in the whole graph, where the rows of nodes are, rows asked of other devices; and
where the columns are, of features that are split by column."""
ROW_TABLES = ("neighbors", "compressed_ptr", "compressed_rows", "compressed_starts")
"""Those of an orientation."""
SAMPLED = (
    *(f"by_receiver/{name}" for name in ROW_TABLES),
    *(f"by_sender/{name}" for name in ROW_TABLES),
    "by_sender/edge_ids",
)
"""Of a set of edges in a layer: compressed rows in both orientations."""
_LINE = 16
"""Words of a line of the cache, where every array starts."""


@dataclasses.dataclass(frozen=True)
class SampleSizes:
    """The sizes of a sample, from which all its shapes follow.

    Attributes:
      sets: names of the sets of nodes.
      ends: of each set of edges its name, the set that they leave and the set that they enter.
      rows: of each set, in the tables from those of the first layer's senders to the seeds'.
      edges: that there is room for in each layer, the first layer first, for each set of edges.
      parts: the devices that hold the nodes' rows.
      asked: rows of each set that a device has room to ask of each other one; 0: all are here.
      by_column: whether features are split by column: the first layer's senders have no rows.
    """

    sets: tuple[str, ...]
    ends: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, ...], ...]
    parts: int
    asked: tuple[int, ...]
    by_column: bool = False

    @property
    def fetched(self) -> int:
        """The first table whose nodes have rows."""
        return 1 if self.by_column else 0

    @property
    def kind(self) -> tuple[object, ...]:
        """All but the sizes that differ from sample to sample; seeds are as many."""
        return self.sets, self.ends, self.parts, self.by_column, len(self.rows), self.rows[-1]

    def holds(self, needed: SampleSizes) -> bool:
        """True where a sample that needs other sizes fits."""
        return self.joined(needed) == self

    def joined(self, other: SampleSizes) -> SampleSizes:
        """Sizes that hold both samples."""
        return self.of_numbers(map(max, self.numbers, other.numbers))

    def with_room(self, factor: float) -> SampleSizes:
        """Sizes that hold samples larger by a factor, in multiples of 64; seeds are as many."""
        fixed = len(self.numbers) - len(self.sets)
        larger = [64 * math.ceil(factor * x / 64) for x in self.numbers[:fixed]]
        return self.of_numbers([*larger, *self.rows[-1]])

    @property
    def numbers(self) -> list[int]:
        """All sizes, those of the seeds last."""
        others = (*self.rows[:-1], *self.edges, self.asked, self.rows[-1])
        return [x for each in others for x in each]

    def of_numbers(self, numbers: Iterable[int]) -> SampleSizes:
        """The sizes of other numbers."""
        left = iter(numbers)
        tables, layers = len(self.rows) - 1, len(self.edges)
        rows = [tuple(next(left) for _ in self.sets) for _ in range(tables)]
        edges = [tuple(next(left) for _ in self.ends) for _ in range(layers)]
        asked, seeds = (tuple(next(left) for _ in self.sets) for _ in range(2))
        return dataclasses.replace(self, rows=(*rows, seeds), edges=tuple(edges), asked=asked)

    def block(self, layer: int, number: int) -> BlockSizes:
        """The sizes of the edges of a set in a layer."""
        _, sender, receiver = self.ends[number]
        senders, receivers = self.rows[layer], self.rows[layer + 1]
        return BlockSizes(
            senders[self.sets.index(sender)],
            receivers[self.sets.index(receiver)],
            self.edges[layer][number],
        )

    def shapes(self) -> Mapping[str, tuple[int, tuple[int, ...]]]:
        """Every array by name: the word where it starts, and its shape."""
        return _shapes(self)

    @property
    def words(self) -> int:
        """Words of the buffer."""
        start, shape = list(self.shapes().values())[-1]
        return start + math.prod(shape)

    def views(self, words: np.ndarray) -> Arrays:
        """The arrays of a buffer int32 [words], by name."""
        return {
            name: words[start : start + math.prod(shape)].reshape(shape)
            for name, (start, shape) in self.shapes().items()
        }


def empty_words(devices: int, sizes: SampleSizes) -> np.ndarray:
    """A buffer int32 [devices, words], which a CPU device takes without a copy."""
    return aligned((devices, sizes.words), np.dtype(np.int32))


def edges_prefix(layer: int, name: str) -> str:
    """The prefix of the names of the arrays of a set of edges in a layer."""
    return f"{layer}/{name}/"


@functools.lru_cache(maxsize=64)
def _shapes(sizes: SampleSizes) -> dict[str, tuple[int, tuple[int, ...]]]:
    listed: dict[str, tuple[int, ...]] = {COUNTS: (len(sizes.rows), len(sizes.sets))}
    fetched = sizes.rows[sizes.fetched]
    for name, rows, held, asked in zip(
        sizes.sets, sizes.rows[0], fetched, sizes.asked, strict=True
    ):
        listed |= {name + NODE_IDS: (rows,), name + PLACES: (held,)}
        if sizes.by_column:
            listed[name + COLUMN_ROWS] = (rows,)
        if asked:
            listed[name + ASKED] = (sizes.parts, asked)
    for layer in range(len(sizes.edges)):
        for number, (name, *_) in enumerate(sizes.ends):
            prefix, shapes = edges_prefix(layer, name), block_shapes(sizes.block(layer, number))
            listed |= {prefix + x: shape for x, shape in shapes.items()}
    found, start = {}, 0
    for name, shape in listed.items():
        found[name] = start, shape
        start += -(-math.prod(shape) // _LINE) * _LINE
    return found


def block_shapes(block: BlockSizes) -> dict[str, tuple[int, ...]]:
    """The arrays of a set of edges in a layer."""
    slots = block.num_edges + block.visits().chunk
    found: dict[str, tuple[int, ...]] = {"by_sender/edge_ids": (slots,)}
    for side, rows in (("by_receiver", block.num_receivers), ("by_sender", block.num_senders)):
        most = min(rows, block.num_edges)
        shapes = (slots,), (2,), (most,), (most + 1,)
        found |= {f"{side}/{x}": y for x, y in zip(ROW_TABLES, shapes, strict=True)}
    return found
