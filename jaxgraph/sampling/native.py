"""Draws neighbors with the compiled library."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Mapping

import numpy as np

from jaxgraph.layout.block_tables import BlockSizes
from jaxgraph.layout.derived.chunks import PIECE
from jaxgraph.ops.cpu.library import library
from jaxgraph.sampling.draw import Drawn, Draws, NumpySampler, Sampler, check_seeds
from jaxgraph.sampling.neighbors import Neighbors

_OF_SIDE = (
    "neighbors",
    "compressed_ptr",
    "compressed_rows",
    "compressed_starts",
    "rows",
    "starts",
    "degrees",
    "run_ptr",
    "heavy_rows",
    "position",
)
_METHODS = {"distinct": 0, "repeated": 1, "labor": 2}
_NAMES = (
    *(f"{side}/{name}" for side in ("by_receiver", "by_sender") for name in _OF_SIDE),
    "by_sender/edge_ids",
    "receivers",
    "edges",
)
"""The arrays in the order of `Sampler::Write`."""


class _Neighbors(ctypes.Structure):
    _fields_ = (
        ("num_nodes", ctypes.c_int64),
        *((x, ctypes.c_void_p) for x in ("pointers", "senders", "edges", "weights", "cumulative")),
    )


def sampler_of(neighbors: Neighbors, draws: Draws) -> Sampler:
    """A sampler for one thread: the compiled one, where there is one."""
    compiled = library().handle
    if compiled is None or neighbors.edges.dtype != np.int32:
        return NumpySampler(neighbors, draws)
    return NativeSampler(neighbors, draws, compiled)


class NativeSampler:
    """Draws with the compiled library."""

    def __init__(self, neighbors: Neighbors, draws: Draws, compiled: ctypes.CDLL) -> None:
        draws.check(neighbors)
        self._functions = _functions(compiled)
        self._neighbors = neighbors
        self._num_layers = len(draws.fanouts)
        method = "labor" if draws.method == "labor" else "repeated" if draws.replace else "distinct"
        given = _Neighbors(
            neighbors.num_nodes,
            *map(_address, (neighbors.pointers, neighbors.senders, neighbors.edges)),
        )
        fanouts = (ctypes.c_int64 * self._num_layers)(*draws.fanouts)
        self._sampler = self._functions.new(
            ctypes.byref(given), fanouts, self._num_layers, _METHODS[method]
        )
        if not self._sampler:
            raise MemoryError
        weakref.finalize(self, self._functions.delete, self._sampler)
        self._sizes = np.zeros((self._num_layers, 3), np.int64)
        self._arrays = (ctypes.c_void_p * len(_NAMES))()
        self._drawn = Drawn((), ())

    def draw(self, seeds: np.ndarray, key: int) -> Drawn:
        """See `Sampler`."""
        check_seeds(seeds, self._neighbors.num_nodes)
        seeds = np.ascontiguousarray(seeds)
        status = self._functions.draw(
            self._sampler, _address(seeds), len(seeds), key, _address(self._sizes)
        )
        if status == -1:
            raise ValueError("seeds has equal nodes")
        _check_memory(status)
        receivers, senders, edges = self._sizes.T.tolist()
        self._drawn = Drawn((*senders, receivers[-1]), tuple(edges))
        return self._drawn

    def write(self, layer: int, sizes: BlockSizes, out: Mapping[str, np.ndarray]) -> None:
        """See `Sampler`."""
        self._drawn.check(layer, sizes)
        extents, numbers = _room(sizes)
        for place, (name, extent) in enumerate(zip(_NAMES, extents, strict=True)):
            array = out.get(name)
            if array is None and name == "edges":
                self._arrays[place] = None
                continue
            self._arrays[place] = _address_of(name, array, extent)
        _check_memory(self._functions.write(self._sampler, layer, numbers, self._arrays))

    def node_ids(self, out: np.ndarray) -> None:
        """See `Sampler`."""
        if len(out) < self._drawn.nodes[0]:
            raise ValueError(f"out: got {len(out)} entries; expected {self._drawn.nodes[0]}")
        self._functions.ids(self._sampler, _address_of("out", out, len(out)), len(out))


class _Functions:
    """The functions of the library."""

    def __init__(self, compiled: ctypes.CDLL) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self.new = compiled.jaxgraph_sampler_new
        self.new.argtypes, self.new.restype = (pointer, pointer, number, number), pointer
        self.delete = compiled.jaxgraph_sampler_delete
        self.delete.argtypes, self.delete.restype = (pointer,), None
        self.draw = compiled.jaxgraph_sampler_draw
        self.draw.argtypes = (pointer, pointer, number, ctypes.c_uint64, pointer)
        self.draw.restype = number
        self.write = compiled.jaxgraph_sampler_write
        self.write.argtypes, self.write.restype = (pointer, number, pointer, pointer), number
        self.ids = compiled.jaxgraph_sampler_ids
        self.ids.argtypes, self.ids.restype = (pointer, pointer, number), None


@functools.cache
def _functions(compiled: ctypes.CDLL) -> _Functions:
    return _Functions(compiled)


@functools.lru_cache(maxsize=256)
def _room(sizes: BlockSizes) -> tuple[tuple[int, ...], ctypes.Array[ctypes.c_int64]]:
    """The extents of the arrays, and the numbers that `BlockSizes` has in C++."""
    visits, found = sizes.visits(), []
    slots = sizes.num_edges + visits.chunk
    runs = 2 * sizes.num_edges // visits.by_receiver.longest
    for table, side in (
        (sizes.num_receivers, visits.by_receiver),
        (sizes.num_senders, visits.by_sender),
    ):
        rows, visited = min(table, sizes.num_edges), side.entries + visits.chunk
        found += [slots, 2, rows, rows + 1, visited, visited, visited, 2, 1, table]
    assert visits.chunk // PIECE == visits.by_receiver.block
    numbers = (sizes.num_senders, sizes.num_receivers, sizes.num_edges)
    numbers = (*numbers, visits.chunk, visits.by_receiver.longest, runs)
    return (*found, slots, slots, slots), (ctypes.c_int64 * len(numbers))(*numbers)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _address_of(name: str, array: np.ndarray | None, extent: int) -> int:
    """Where an array starts that the library fills."""
    if array is None or array.shape != (extent,) or array.dtype != np.int32:
        raise ValueError(f"out: {name} is not int32 [{extent}]")
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError(f"out: {name} has gaps, or cannot be written")
    return _address(array)


def _check_memory(status: int) -> None:
    if status:
        raise MemoryError
