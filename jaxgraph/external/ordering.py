"""The fourth step: degrees and order of nodes, and a file of the compressed rows of each part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from jaxgraph.external.splitting import Buckets
from jaxgraph.external.work import StepFiles, Work
from jaxgraph.layout.compressed_rows import CompressedRows
from jaxgraph.layout.local_order import LocalOrder, order_of_nodes
from jaxgraph.layout.node_tables import Degrees
from jaxgraph.layout.part_edges import PartEdges, ordered_edges
from jaxgraph.layout.row_lengths import EdgeLengths, RowLengths, count_lengths, join_lengths
from jaxgraph.partition.sorting import index_dtype

_ALIGNMENT = 64
_SIDES = ("by_sender", "by_receiver")
_LENGTHS = ("groups", "lengths", "rows")


@dataclasses.dataclass(frozen=True, eq=False)
class NodeFacts:
    """The facts about nodes that follow from their edges.

    Attributes:
      degrees: arrays [nodes] by name, as `global_degrees` makes them.
      order: the owners of nodes.
      edge_cut: edges between different parts.
      mean_log_degree: of the graph.
    """

    degrees: Mapping[str, np.ndarray]
    order: LocalOrder
    edge_cut: int
    mean_log_degree: float


def count_nodes(buckets: Buckets, part: np.ndarray, chunk: int) -> NodeFacts:
    """Counts degrees, and orders nodes by the part that owns them."""
    nodes, edge_cut, weighted = len(part), 0, "edge_weight" in buckets.data
    counted, on_boundary = Degrees(nodes, weighted=weighted), np.zeros(nodes, bool)
    for index, count in enumerate(buckets.counts):
        for first in range(0, count, chunk):
            names = ["senders", "receivers"] + ["edge_weight"] * weighted
            own = [buckets.rows(index, each)[first : first + chunk] for each in names]
            counted.add(*own)
            senders, receivers = own[:2]
            cut = part[senders] != index
            on_boundary[senders[cut]] = True
            on_boundary[receivers[cut]] = True
            edge_cut += int(np.count_nonzero(cut))
    logarithms = counted.in_degree.astype(np.float64)
    mean = float(np.log1p(logarithms, out=logarithms).mean())
    del logarithms
    counts = np.asarray(buckets.counts, np.int64)
    order = order_of_nodes(part, on_boundary, np.zeros(0, np.int32), counts)
    return NodeFacts(counted.arrays(), order, edge_cut, mean)


def order_parts(
    work: Work,
    buckets: Buckets,
    order: LocalOrder,
    mode: str,
    on_progress: Callable[[int, int], object],
) -> OrderedFiles:
    """Orders the edges of each part, one after the other, and keeps the result in files."""
    whole = mode == "domain"

    def make(files: StepFiles) -> dict[str, Any]:
        described = []
        for part, count in enumerate(buckets.counts):
            edges = ordered_edges(
                order,
                part,
                np.arange(count, dtype=index_dtype(count)),
                buckets.read(part, "senders"),
                buckets.read(part, "receivers"),
                one_group_of_receivers=whole,
            )
            described.append(_appended(files, f"{part:04d}", dict(_arrays(edges, whole=whole))))
            del edges
            on_progress(part + 1, order.num_parts)
        return {"parts": described}

    folder, facts = work.step("order", make)
    return OrderedFiles(folder, tuple(facts["parts"]))


def _arrays(edges: PartEdges, *, whole: bool) -> Iterator[tuple[str, np.ndarray]]:
    for name in ("edges", "repetition"):
        if getattr(edges, name) is not None:
            yield name, getattr(edges, name)
    for side in _SIDES:
        rows = getattr(edges, side)
        for field in dataclasses.fields(CompressedRows):
            if getattr(rows, field.name) is not None:
                yield f"{side}/{field.name}", getattr(rows, field.name)
        lengths = count_lengths([rows], whole=whole and side == "by_sender")
        for name in _LENGTHS:
            yield f"{side}/lengths/{name}", getattr(lengths, name)


def _appended(files: StepFiles, name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Appends arrays to one file, and describes where each stands."""
    described, offset = {}, 0
    for each, values in arrays.items():
        described[each] = [offset, values.dtype.str, list(values.shape)]
        files.add(name, values)
        padding = -values.nbytes % _ALIGNMENT
        files.add(name, np.zeros(padding, np.uint8))
        offset += values.nbytes + padding
    return described


@dataclasses.dataclass(frozen=True)
class OrderedFiles(Sequence[PartEdges]):
    """The ordered edges of all parts in files, which are mapped when asked for.

    Attributes:
      folder: of a file for each part.
      parts: for each part: offset, dtype and shape of each array.
    """

    folder: Path
    parts: tuple[Mapping[str, Any], ...]

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, index: int) -> PartEdges: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PartEdges]: ...
    def __getitem__(self, index: int | slice) -> PartEdges | Sequence[PartEdges]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        arrays = self._mapped(range(len(self))[index])
        sides = [_rows(arrays, side) for side in _SIDES]
        return PartEdges(arrays["edges"], arrays.get("repetition"), sides[0], sides[1])

    @property
    def has_repetitions(self) -> bool:
        """True where some edges are equal."""
        return any("repetition" in part for part in self.parts)

    def pointers(self, side: str) -> list[np.ndarray]:
        """Where the rows of each group start, of each part."""
        return [self._mapped(part)[f"{side}/pointers"].copy() for part in range(len(self))]

    def lengths(self, mode: str) -> EdgeLengths:
        """The row lengths of all parts."""
        return EdgeLengths(self._lengths("by_receiver", mode), self._lengths("by_sender", mode))

    def _lengths(self, side: str, mode: str) -> RowLengths:
        groups = 1 if mode == "domain" else len(self)
        found = []
        for part in range(len(self)):
            arrays = self._mapped(part)
            values = {x: arrays[f"{side}/lengths/{x}"].copy() for x in _LENGTHS}
            found.append(RowLengths(**values, num_tables=1, groups_per_table=groups))
        return join_lengths(found, len(found))

    def _mapped(self, part: int) -> dict[str, np.ndarray]:
        # One map for each part: a process may have a thousand open files.
        data = np.memmap(self.folder / f"{part:04d}", np.uint8, "r").view(np.ndarray)
        found = {}
        for name, (offset, dtype, shape) in self.parts[part].items():
            size = math.prod(shape) * np.dtype(dtype).itemsize
            found[name] = data[offset : offset + size].view(dtype).reshape(shape)
        return found


def _rows(arrays: Mapping[str, np.ndarray], side: str) -> CompressedRows:
    rows, starts, pointers, edge_ptr = (
        arrays[f"{side}/{name}"] for name in ("rows", "starts", "pointers", "edge_ptr")
    )
    return CompressedRows(rows, starts, pointers, arrays.get(f"{side}/edges"), edge_ptr)
