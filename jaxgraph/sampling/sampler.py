"""Draws neighbours with the compiled library."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from jaxgraph.layout.block_tables import BlockSizes
from jaxgraph.layout.sample_tables import SAMPLED
from jaxgraph.ops.cpu.library import library
from jaxgraph.sampling.neighbors import Drawn, Draws, Neighbors

_METHODS = ("distinct", "repeated", "labor", "weighted", "weighted_repeated")
"""As in `Method`."""
_NAMES = (*SAMPLED, "edges")
"""The arrays in the order of `Sampler::Write`."""


class _EdgeSet(ctypes.Structure):
    _fields_ = (
        *((x, ctypes.c_void_p) for x in ("pointers", "senders", "edges", "cumulative")),
        *((x, ctypes.c_int64) for x in ("of_senders", "of_receivers", "method")),
    )


class Sampler:
    """Draws for one batch after the other; used by one thread at a time.

    Args:
      neighbors: the edges of each set.
      draws: how they are drawn.
      ends: the numbers of the sets of nodes that each set of edges leaves and enters.
      nodes: of each set, how many there are.
      target: the set of the seeds.

    Raises:
      ValueError: there is no compiled library.
    """

    def __init__(
        self,
        neighbors: Sequence[Neighbors],
        draws: Draws,
        ends: Sequence[tuple[int, int]],
        nodes: Sequence[int],
        target: int = 0,
    ) -> None:
        if library().handle is None:
            raise ValueError(f"batches are drawn by compiled code, which {library().missing}")
        self._functions = _functions()
        # Kept, since the library reads its arrays.
        self._neighbors, self._target = tuple(neighbors), target
        sets = (_EdgeSet * len(neighbors))()
        for place, (own, pair) in enumerate(zip(neighbors, ends, strict=True)):
            sets[place] = _edge_set(own, draws, pair)
        self._layers, self._nodes = len(draws.fanouts), (ctypes.c_int64 * len(nodes))(*nodes)
        fanouts = [fanout for layer in draws.fanouts for fanout in layer]
        numbers = (ctypes.c_int64 * len(fanouts))(*fanouts)
        sizes = (len(nodes), sets, len(neighbors), numbers, self._layers)
        self._sampler = self._functions["new"](self._nodes, *sizes)
        if not self._sampler:
            raise MemoryError
        weakref.finalize(self, self._functions["delete"], self._sampler)
        self._counts = np.zeros((self._layers + 1, len(nodes)), np.int64)
        self._edges = np.zeros((self._layers, len(neighbors)), np.int64)
        self._arrays = (ctypes.c_void_p * len(_NAMES))()

    def draw(self, seeds: np.ndarray, key: int) -> Drawn:
        """Draws for seeds, int32 and all different; a uint64 is the key of all random numbers."""
        seeds = np.ascontiguousarray(seeds, np.int32)
        found = _address(self._counts), _address(self._edges)
        status = self._functions["draw"](
            self._sampler, self._target, _address(seeds), len(seeds), key, *found
        )
        _check_status(status)
        nodes = tuple(map(tuple, self._counts[::-1].tolist()))
        return Drawn(nodes, tuple(map(tuple, self._edges.tolist())))

    def write(
        self, layer: int, number: int, sizes: BlockSizes, out: Mapping[str, np.ndarray]
    ) -> None:
        """Fills the int32 arrays of a set of edges in a layer, see `SampleSizes`.

        "edges" are the numbers of the edges by slot, if there is such an array.
        """
        slots = len(out["by_receiver/neighbors"])
        room = sizes.num_senders, sizes.num_receivers, sizes.num_edges, slots
        for place, name in enumerate(_NAMES):
            array = out.get(name)
            self._arrays[place] = None if array is None else _address(array)
        index = layer * self._edges.shape[1] + number
        numbers = (ctypes.c_int64 * len(room))(*room)
        _check_status(self._functions["write"](self._sampler, index, numbers, self._arrays))

    def node_ids(self, number: int, out: np.ndarray) -> None:
        """Writes the nodes of a set in the first layer's table, then zeros."""
        self._functions["ids"](self._sampler, number, _address(out), len(out))


def _edge_set(neighbors: Neighbors, draws: Draws, ends: tuple[int, int]) -> _EdgeSet:
    """A set of edges, as the library takes it."""
    if draws.method == "labor":
        method = "labor"
    elif neighbors.weights is None:
        method = "repeated" if draws.replace else "distinct"
    else:
        method = "weighted_repeated" if draws.replace else "weighted"
    # Numbers of 64 bits are asked for by none: see `jaxgraph.sampling.sources.Source.edge_data`.
    edges = neighbors.edges if neighbors.edges.dtype == np.int32 else None
    sums = None if neighbors.weights is None else neighbors.cumulative
    arrays = (neighbors.pointers, neighbors.senders, edges, sums)
    addresses = [None if array is None else _address(array) for array in arrays]
    return _EdgeSet(*addresses, *ends, _METHODS.index(method))


@functools.cache
def _functions() -> dict[str, ctypes._NamedFuncPointer]:
    """The functions of the library."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found = {}
    for name, result, arguments in (
        ("new", pointer, (pointer, number, pointer, number, pointer, number)),
        ("delete", None, (pointer,)),
        ("draw", number, (pointer, number, pointer, number, ctypes.c_uint64, pointer, pointer)),
        ("write", number, (pointer, number, pointer, pointer)),
        ("ids", None, (pointer, number, pointer, number)),
    ):
        function = getattr(library().handle, f"jaxgraph_sampler_{name}")
        function.restype, function.argtypes = result, arguments
        found[name] = function
    return found


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _check_status(status: int) -> None:
    assert status != -1, "seeds are equal"
    if status:
        raise MemoryError
