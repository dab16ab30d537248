"""Draws neighbors, in NumPy. `jaxgraph/ops/cpu/source/draws.h` draws the same, faster.

A draw depends on the key, the layer, the receiver and its own number alone. Every number is made of
integers, or of sums, products and quotients of float64, so that both have the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from jaxgraph.layout.block_tables import BlockSizes
from jaxgraph.layout.derived.rows import visited_rows
from jaxgraph.partition.sorting import counting_argsort
from jaxgraph.sampling.neighbors import Neighbors
from jaxgraph.seeds import mix

_GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


@dataclasses.dataclass(frozen=True)
class Draws:
    """How neighbors are drawn; by their weights where the neighbors have some.

    Attributes:
      fanouts: neighbors of a node in each layer, the first layer of the model first; -1: all.
      replace: whether a neighbor can be drawn more than once.
      method: "neighbors", or "labor": receivers share the numbers of their senders (LABOR-0,
        Balin and Çatalyürek, 2023), and a node has `fanout` neighbors in the mean.
    """

    fanouts: tuple[int, ...]
    replace: bool = False
    method: str = "neighbors"

    def __post_init__(self) -> None:
        if not self.fanouts or False:
            raise ValueError(f"fanouts: got {self.fanouts}; expected numbers from -1 on")
        if self.method not in ("neighbors", "labor"):
            raise ValueError(f"method: got {self.method!r}; expected 'neighbors' or 'labor'")
        if self.method == "labor" and self.replace:
            raise ValueError("replace: method 'labor' draws without replacement")

    def check(self, neighbors: Neighbors) -> None:
        """Refuses weights where the method has none."""
        if self.method == "labor" and neighbors.weights is not None:
            raise ValueError("weights: method 'labor' draws all neighbors alike")
        if neighbors.weights is not None:
            raise NotImplementedError("weights")


@dataclasses.dataclass
class Drawn:
    """The sizes of what was drawn.

    Attributes:
      nodes: sizes of the node tables, the input's first, the seeds' last.
      edges: edges of each layer, the first layer first.
    """

    nodes: tuple[int, ...]
    edges: tuple[int, ...]

    def check(self, layer: int, sizes: BlockSizes) -> None:
        """Refuses sizes that have no room for a layer."""
        needed = (self.nodes[layer], self.nodes[layer + 1], self.edges[layer])
        room = dataclasses.astuple(sizes)
        if any(a > b for a, b in zip(needed, room, strict=True)):
            raise ValueError(
                f"sizes: layer {layer} has {needed} senders, receivers and edges; expected at most "
                f"{room}"
            )


class Sampler(Protocol):
    """Draws for one batch after the other; used by one thread at a time."""

    def draw(self, seeds: np.ndarray, key: int) -> Drawn:
        """Draws for seeds, int32 and all different; a uint64 is the key of all random numbers."""
        ...

    def write(self, layer: int, sizes: BlockSizes, out: Mapping[str, np.ndarray]) -> None:
        """Fills the int32 arrays of a layer, named as those of `block_tables` without "block/"."""
        ...

    def node_ids(self, out: np.ndarray) -> None:
        """Writes the nodes of the input's table, then zeros."""
        ...


@dataclasses.dataclass(frozen=True)
class _Layer:
    """What was drawn: the positions of the edges, and the rows of their ends in the tables."""

    positions: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray


class NumpySampler:
    """Draws with NumPy."""

    def __init__(self, neighbors: Neighbors, draws: Draws) -> None:
        draws.check(neighbors)
        self._neighbors, self._draws = neighbors, draws
        self._layers: list[_Layer] = []
        self._ids = np.zeros(0, np.int32)
        self._drawn = Drawn((), ())

    def draw(self, seeds: np.ndarray, key: int) -> Drawn:
        """See `Sampler`."""
        check_seeds(seeds, self._neighbors.num_nodes)
        if len(np.unique(seeds)) < len(seeds):
            raise ValueError("seeds has equal nodes")
        ids, layers, nodes = seeds, [], [len(seeds)]
        for layer in reversed(range(len(self._draws.fanouts))):
            positions, receivers = self._positions(ids, layer, key)
            ids, senders = _append(ids, self._neighbors.senders[positions])
            layers.append(_Layer(positions, senders, receivers))
            nodes.append(len(ids))
        self._ids, self._layers = ids, layers[::-1]
        edges = tuple(len(layer.senders) for layer in self._layers)
        self._drawn = Drawn(tuple(nodes[::-1]), edges)
        return self._drawn

    def write(self, layer: int, sizes: BlockSizes, out: Mapping[str, np.ndarray]) -> None:
        """See `Sampler`."""
        self._drawn.check(layer, sizes)
        drawn, visits = self._layers[layer], sizes.visits()
        edge_ids = counting_argsort(drawn.senders, sizes.num_senders)
        found = {"receivers": drawn.receivers, "by_sender/edge_ids": edge_ids}
        if "edges" in out:
            found["edges"] = self._neighbors.edges[drawn.positions]
        for side, rows, ends, count, longest in (
            (
                "by_receiver",
                drawn.receivers,
                drawn.senders,
                sizes.num_receivers,
                visits.by_receiver,
            ),
            (
                "by_sender",
                drawn.senders[edge_ids],
                drawn.receivers[edge_ids],
                sizes.num_senders,
                visits.by_sender,
            ),
        ):
            tables = _compressed(rows, ends, count)
            tables |= visited_rows(tables, longest.longest, count)
            found |= {f"{side}/{name}": values for name, values in tables.items()}
        for name, values in found.items():
            out[name][: len(values)] = values
            out[name][len(values) :] = 0

    def node_ids(self, out: np.ndarray) -> None:
        """See `Sampler`."""
        out[: len(self._ids)] = self._ids
        out[len(self._ids) :] = 0

    def _positions(self, ids: np.ndarray, layer: int, key: int) -> tuple[np.ndarray, np.ndarray]:
        """The positions of the edges that are drawn, and the row of the receiver of each."""
        pointers = self._neighbors.pointers
        first, degrees = pointers[ids], pointers[ids + np.int64(1)] - pointers[ids]
        fanout = self._draws.fanouts[layer]
        layer_key = mix(np.asarray([key], np.uint64) ^ mix(np.asarray([layer], np.uint64)))
        if self._draws.method == "labor":
            drawn = self._together(first, degrees, fanout, layer_key)
        elif self._draws.replace and fanout >= 0:
            drawn = _repeated(first, degrees, fanout, _row_keys(layer_key, ids))
        else:
            drawn = _distinct(first, degrees, fanout, _row_keys(layer_key, ids))
        return drawn

    def _together(
        self, first: np.ndarray, degrees: np.ndarray, fanout: int, layer_key: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Takes the edges whose sender's number is at most fanout / degree."""
        positions, rows = _all(first, degrees)
        if fanout < 0:
            return positions, rows
        keys = _row_keys(layer_key, self._neighbors.senders[positions])
        degree = degrees[rows]
        bits = _bits(keys, np.asarray(1))
        taken = bits * degree.astype(np.uint64) <= np.uint64(fanout << 32)
        taken |= degree <= fanout
        return positions[taken], rows[taken]


def check_seeds(seeds: np.ndarray, num_nodes: int) -> None:
    """Refuses seeds that are no nodes."""
    if seeds.dtype != np.int32 or seeds.ndim != 1:
        raise ValueError(f"seeds: got {seeds.dtype} {list(seeds.shape)}; expected int32 [seeds]")
    if len(seeds) and not (seeds.min() >= 0 and seeds.max() < num_nodes):
        raise ValueError(f"seeds has nodes that are not from 0 to {num_nodes - 1}")


def _append(ids: np.ndarray, senders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The table with new senders in the order in which they are found, and the row of each."""
    listed = np.append(ids, senders)
    distinct, firsts, numbers = np.unique(listed, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    rows = np.empty(len(distinct), np.int32)
    rows[order] = np.arange(len(distinct), dtype=np.int32)
    return distinct[order], rows[numbers[len(ids) :]]


def _compressed(rows: np.ndarray, ends: np.ndarray, num_rows: int) -> dict[str, np.ndarray]:
    """The compressed rows of edges that are ordered by row."""
    lengths = np.bincount(rows, minlength=num_rows)
    listed = np.flatnonzero(lengths).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths[listed])]).astype(np.int32)
    pointers = np.asarray([0, len(listed)], np.int32)
    return {
        "neighbors": ends,
        "compressed_ptr": pointers,
        "compressed_rows": listed,
        "compressed_starts": starts,
    }


def _row_keys(layer_key: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return mix(layer_key ^ ids.astype(np.uint64))


def _bits(row_keys: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """32 bits of the draws of rows; two draws share a hash."""
    draw = np.atleast_1d(np.asarray(draw, np.uint64))
    hashes = mix(row_keys + (draw >> np.uint64(1)) * _GOLDEN_RATIO)
    return np.where(draw & np.uint64(1), hashes >> _HALF, hashes & np.uint64(0xFFFFFFFF))


def _all(first: np.ndarray, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The positions of all edges of rows, and the row of each."""
    before = np.cumsum(degrees) - degrees
    rows = np.repeat(np.arange(len(first), dtype=np.int32), degrees)
    return np.arange(len(rows)) + (first - before)[rows], rows


def _repeated(
    first: np.ndarray, degrees: np.ndarray, fanout: int, row_keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draws with replacement."""
    rows = np.flatnonzero(degrees)
    bits = _bits(row_keys[rows, None], np.arange(fanout))
    below = (bits * degrees[rows, None].astype(np.uint64)) >> _HALF
    positions = first[rows, None] + below.astype(np.int64)
    return positions.ravel(), np.repeat(rows, fanout).astype(np.int32)


def _distinct(
    first: np.ndarray, degrees: np.ndarray, fanout: int, row_keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draws without replacement (Floyd, see `DrawDistinct`)."""
    takes = degrees if fanout < 0 else np.minimum(degrees, fanout)
    positions, rows = _all(first, takes)
    cut = np.flatnonzero(degrees > takes)
    drawn = np.full((len(cut), max(fanout, 0)), -1)
    for i in range(drawn.shape[1]):
        last = degrees[cut] - fanout + i
        bits = _bits(row_keys[cut], np.asarray(i))
        each = ((bits * (last + 1).astype(np.uint64)) >> _HALF).astype(np.int64)
        is_taken = (drawn == each[:, None]).any(axis=1)
        drawn[:, i] = np.where(is_taken, last, each)
    starts = np.cumsum(takes) - takes
    positions[starts[cut, None] + np.arange(drawn.shape[1])] = first[cut, None] + drawn
    return positions, rows
