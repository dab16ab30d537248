"""The arrays of a sample: the relations of a model's layers, one after the other in one buffer.

The nodes that a layer receives at are the first of those that it sends from, so that one list of
nodes serves all layers. All arrays have 32 bits: a sample goes to a device in one transfer.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np

from jaxgraph.layout.block_tables import BLOCK, BlockSizes, block_tables
from jaxgraph.layout.derived.orientations import aligned
from jaxgraph.layout.manifest import Arrays

NODE_IDS, COUNTS, PLACES, ASKED = "node_ids", "counts", "places", "asked"
"""Ids in the whole graph; the nodes of each table; where the rows of nodes are; rows asked of other
devices."""


@dataclasses.dataclass(frozen=True)
class SampleSizes:
    """The sizes of a sample, from which all its shapes follow.

    Attributes:
      rows: of the node tables, from those of the first layer's senders to the seeds.
      edges: that there is room for in each layer, the first layer first.
      parts: the devices that hold the nodes' rows.
      asked: rows that a device has room to ask of each of them; 0: of one device, which holds all.
    """

    rows: tuple[int, ...]
    edges: tuple[int, ...]
    parts: int = 1
    asked: int = 0

    def holds(self, needed: SampleSizes) -> bool:
        """Whether a sample that needs other sizes fits."""
        pairs = zip(
            (*self.rows, *self.edges, self.asked),
            (*needed.rows, *needed.edges, needed.asked),
            strict=True,
        )
        return all(room >= need for room, need in pairs)

    def with_room(self, factor: float) -> SampleSizes:
        """Sizes that hold samples larger by a factor, in multiples of 64; seeds are as many."""
        larger = [64 * math.ceil(factor * x / 64) for x in self.rows]
        rows = (*larger[:-1], self.rows[-1])
        edges = tuple(64 * max(1, math.ceil(factor * x / 64)) for x in self.edges)
        asked = 64 * math.ceil(factor * self.asked / 64)
        return dataclasses.replace(self, rows=rows, edges=edges, asked=asked)

    def block(self, layer: int) -> BlockSizes:
        """The sizes of the edges of a layer."""
        return BlockSizes(self.rows[layer], self.rows[layer + 1], self.edges[layer])

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


def joined_sizes(several: list[SampleSizes]) -> SampleSizes:
    """Sizes that hold each of several samples."""
    rows, edges = (
        tuple(map(max, zip(*(getattr(each, name) for each in several), strict=True)))
        for name in ("rows", "edges")
    )
    asked = max(each.asked for each in several)
    return dataclasses.replace(several[0], rows=rows, edges=edges, asked=asked)


def empty_words(devices: int, sizes: SampleSizes) -> np.ndarray:
    """A buffer int32 [devices, words], which a CPU device takes without a copy."""
    return aligned((devices, sizes.words), np.dtype(np.int32))


def layer_prefix(layer: int) -> str:
    """What the names of the arrays of a layer's edges start with."""
    return f"layers/{layer}/"


@functools.lru_cache(maxsize=64)
def _shapes(sizes: SampleSizes) -> dict[str, tuple[int, tuple[int, ...]]]:
    listed: dict[str, tuple[int, ...]] = {
        NODE_IDS: (sizes.rows[0],),
        COUNTS: (len(sizes.rows),),
        PLACES: (sizes.rows[0],),
    }
    if sizes.asked:
        listed[ASKED] = (sizes.parts, sizes.asked)
    for layer in range(len(sizes.edges)):
        listed |= {layer_prefix(layer) + x: y for x, y in _block_shapes(sizes.block(layer)).items()}
    found, start = {}, 0
    for name, shape in listed.items():
        found[name] = start, shape
        # Every array starts on a line of the cache.
        start += -(-math.prod(shape) // 16) * 16
    return found


@functools.lru_cache(maxsize=64)
def _block_shapes(block: BlockSizes) -> dict[str, tuple[int, ...]]:
    none = np.zeros(0, np.int64)
    tables, _, _ = block_tables(none, none, {}, block.num_senders, block.num_receivers, block)
    found = {name.removeprefix(f"{BLOCK}/"): values.shape for name, values in tables.items()}
    del found["repetition"]
    return found
