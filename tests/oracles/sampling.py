"""The sampler in NumPy: the same numbers as those of `jaxgraph/ops/cpu/source/draws.h`.

A draw depends on the key, the layer, the receiver and its own number alone. Every number is made of
integers, so that both have the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxgraph.layout.block_tables import BlockSizes
from jaxgraph.partition.sorting import counting_argsort
from jaxgraph.sampling.neighbors import Drawn, Draws, Neighbors
from jaxgraph.seeds import mix

_GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
_HALF, _LOWER = np.uint64(32), np.uint64(0xFFFFFFFF)


@dataclasses.dataclass(frozen=True)
class _Layer:
    """Drawn edges: the positions of the edges, and the rows of their ends in the tables."""

    positions: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray


class NumpySampler:
    """Draws with NumPy what `jaxgraph.sampling.sampler.Sampler` draws."""

    def __init__(
        self,
        neighbors: tuple[Neighbors, ...],
        draws: Draws,
        ends: tuple[tuple[int, int], ...] = ((0, 0),),
        target: int = 0,
    ) -> None:
        self._neighbors, self._draws, self._ends, self._target = neighbors, draws, ends, target
        self._layers: list[list[_Layer]] = []
        self._ids: list[np.ndarray] = []

    def draw(self, seeds: np.ndarray, key: int) -> Drawn:
        sets = 1 + max(max(each) for each in self._ends)
        ids = [seeds if x == self._target else np.zeros(0, np.int32) for x in range(sets)]
        layers, nodes = [], [tuple(map(len, ids))]
        for layer in reversed(range(len(self._draws.fanouts))):
            drawn, before = [], list(ids)
            for number, (sender, receiver) in enumerate(self._ends):
                positions, receivers = self._positions(before[receiver], layer, number, key)
                of_edges = self._neighbors[number].senders[positions]
                ids[sender], senders = _append(ids[sender], of_edges)
                drawn.append(_Layer(positions, senders, receivers))
            layers.append(drawn)
            nodes.append(tuple(map(len, ids)))
        self._ids, self._layers = ids, layers[::-1]
        edges = tuple(tuple(len(each.senders) for each in layer) for layer in self._layers)
        return Drawn(tuple(nodes[::-1]), edges)

    def write(
        self, layer: int, number: int, sizes: BlockSizes, out: Mapping[str, np.ndarray]
    ) -> None:
        drawn = self._layers[layer][number]
        edge_ids = counting_argsort(drawn.senders, sizes.num_senders)
        found = {"by_sender/edge_ids": edge_ids}
        if "edges" in out:
            found["edges"] = self._neighbors[number].edges[drawn.positions]
        senders, receivers = drawn.senders, drawn.receivers
        sides = {
            "by_receiver": (receivers, senders, sizes.num_receivers),
            "by_sender": (
                senders[edge_ids],
                receivers[edge_ids],
                sizes.num_senders,
            ),
        }
        for side, (rows, ends, count) in sides.items():
            tables = _compressed(rows, ends, count)
            found |= {f"{side}/{name}": values for name, values in tables.items()}
        for name, values in found.items():
            out[name][: len(values)] = values
            out[name][len(values) :] = values[-1] if name.endswith("starts") else 0

    def node_ids(self, number: int, out: np.ndarray) -> None:
        out[: len(self._ids[number])] = self._ids[number]
        out[len(self._ids[number]) :] = 0

    def _positions(
        self, ids: np.ndarray, layer: int, number: int, key: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The positions of the edges that are drawn, and the row of the receiver of each."""
        neighbors, fanout = self._neighbors[number], self._draws.fanouts[layer][number]
        pointers = neighbors.pointers
        first, degrees = pointers[ids], pointers[ids + np.int64(1)] - pointers[ids]
        of_set = np.asarray([layer | number << 32], np.uint64)
        layer_key = mix(np.asarray([key], np.uint64) ^ mix(of_set))
        if self._draws.method == "labor":
            return _together(neighbors, first, degrees, fanout, layer_key)
        row_keys = _row_keys(layer_key, ids)
        if self._draws.replace and fanout >= 0:
            return _repeated(neighbors, first, degrees, fanout, row_keys)
        if neighbors.weights is not None:
            return _weighted(neighbors, first, degrees, fanout, row_keys)
        return _distinct(first, degrees, fanout, row_keys)


def _repeated(
    neighbors: Neighbors,
    first: np.ndarray,
    degrees: np.ndarray,
    fanout: int,
    row_keys: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws with replacement; by the sums of weights, where there are some."""
    sums = None if neighbors.weights is None else neighbors.cumulative
    totals = degrees if sums is None else sums[first + degrees] - sums[first]
    rows = np.flatnonzero(totals)
    total = totals[rows, None].astype(np.uint64)
    bits = _bits(row_keys[rows, None], np.arange(fanout))
    below = bits * (total >> _HALF) + ((bits * (total & _LOWER)) >> _HALF)
    positions = first[rows, None] + below.astype(np.int64)
    if sums is not None:
        below = sums[first[rows, None]] + below.astype(np.int64)
        positions = np.searchsorted(sums, below, side="right") - 1
    return positions.ravel(), np.repeat(rows, fanout).astype(np.int32)


def _weighted(
    neighbors: Neighbors,
    first: np.ndarray,
    degrees: np.ndarray,
    fanout: int,
    row_keys: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws by weight without replacement, an edge at a time (see `DrawWeighted`)."""
    sums, tries = neighbors.cumulative.tolist(), 8
    positions: list[int] = []
    rows: list[int] = []

    def half(row: int, draw: int) -> int:
        return int(_bits(row_keys[row : row + 1], np.asarray(draw))[0])

    for row, (begin, degree) in enumerate(zip(first.tolist(), degrees.tolist(), strict=True)):
        places = range(begin, begin + degree)
        weights = {at: sums[at + 1] - sums[at] for at in places}
        taken = [at for at in places if weights[at] and not 0 <= fanout < degree]
        left = sums[begin + degree] - sums[begin] if 0 <= fanout < degree else 0
        for draw in range(fanout):
            if not left:
                break
            place, total = begin, sums[begin + degree] - sums[begin]
            for number in range(draw * (tries + 1), draw * (tries + 1) + tries):
                below = sums[begin] + (half(row, number) * total >> 32)
                place = int(np.searchsorted(neighbors.cumulative, below, side="right")) - 1
                if place not in taken:
                    break
            else:
                before = half(row, draw * (tries + 1) + tries) * left >> 32
                for place in places:
                    if place not in taken:
                        if before < weights[place]:
                            break
                        before -= weights[place]
            taken.append(place)
            left -= weights[place]
        positions += taken
        rows += [row] * len(taken)
    return np.asarray(positions, np.int64), np.asarray(rows, np.int32)


def _together(
    neighbors: Neighbors,
    first: np.ndarray,
    degrees: np.ndarray,
    fanout: int,
    layer_key: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Takes the edges whose sender's number is at most fanout / degree."""
    positions, rows = _all(first, degrees)
    if fanout < 0:
        return positions, rows
    keys = _row_keys(layer_key, neighbors.senders[positions])
    degree = degrees[rows]
    taken = (keys >> _HALF) * degree.astype(np.uint64) <= np.uint64(fanout << 32)
    taken |= degree <= fanout
    return positions[taken], rows[taken]


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
    return np.where(draw & np.uint64(1), hashes >> _HALF, hashes & _LOWER)


def _all(first: np.ndarray, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The positions of all edges of rows, and the row of each."""
    before = np.cumsum(degrees) - degrees
    rows = np.repeat(np.arange(len(first), dtype=np.int32), degrees)
    return np.arange(len(rows)) + (first - before)[rows], rows


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
