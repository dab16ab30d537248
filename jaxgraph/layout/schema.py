"""The schema of a part's arrays: a row for each, which all code that handles arrays reads.

Shapes, padding, fitting, the checks of a part and of its indices, merged parts and assembly follow
from these rows. The functions take the prefix of the names of a table of nodes, a set of edges or a
halo, and its sizes: a further table or set adds its rows under its own name.
`jaxgraph.layout.manifest.Manifest.schema` lists the rows of a graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxgraph.layout.row_lengths import EdgeLengths, RowLengths, leaving

Shape = tuple[int, ...]
Sizes = dict[tuple[str, str], int]
"""Entries along the first axis of arrays that a graph has, by owner and axis."""
Kinds = Mapping[str, tuple[Shape, np.dtype]]
"""Shape of an entry and type of the arrays of nodes and edges, by name."""
EDGE_DATA = ("edges", "edge_weight", "edge_type")
"""Arrays of the user's data of each edge, in row order by receiver."""
NODE_PREFIX, EDGE_PREFIX = "node_data.", "edge_data."
"""Prefixes of the names of a user's own arrays, which have a row per node or a slot per edge."""
SIDES = ("by_receiver", "by_sender")
"""The orientations of edges."""
NODES, SLOTS = "nodes", "slots"
"""Axes of data: rows of nodes, and slots of edges."""
EDGES, ROWS, GROUPS, IDS, REPETITION = "edges", "rows", "groups", "ids", "repetition"
"""Axes of tables: edges, rows that have some, groups of edges, ids at their other end."""
SCALAR = "scalar"
"""The axis of an array that has none."""
_INT32, _FLOAT32, _FLOAT64, _BOOL = map(np.dtype, (np.int32, np.float32, np.float64, bool))


@dataclasses.dataclass(frozen=True)
class Field:
    """An array of a part.

    Attributes:
      name: its name in a part, and in the manifest that lists it.
      owner: the table of nodes, set of edges, orientation or halo that it belongs to.
      axis: what its first axis counts.
      dtype: its type; None: an array of the user's, whose type the graph says.
      count: entries along the first axis, where the sizes of a manifest decide; None: the graph.
      slack: entries that those sizes add to the graph's.
      row: shape of an entry; data has that of the graph.
      lead: dimensions ahead of the first axis, of tables that a part stacks.
      fill: the value of padding.
      least, stop: its indices are from `least` to `stop` - 1; None: no indices, or those of an
        orientation, whose bounds `EdgeSet` has.
      points_into: the array that it points into.
      may_lack: whether a graph without it fits shapes that have it, filled with padding.
    """

    name: str
    owner: str
    axis: str
    dtype: np.dtype | None = _INT32
    count: int | None = None
    slack: int = 0
    row: Shape = ()
    lead: Shape = ()
    fill: int = 0
    least: int = 0
    stop: int | None = None
    points_into: str | None = None
    may_lack: bool = False

    @property
    def is_data(self) -> bool:
        """True for a row per node or a slot per edge: the graph says whether a part has it."""
        return self.axis in (NODES, SLOTS)

    def shape(self, size: int, row: Shape) -> Shape:
        """The shape of an array of so many entries; `row` is that of data."""
        if self.axis == SCALAR:
            return ()
        first = size + self.slack if self.count is None else self.count
        return (*self.lead, first, *(row if self.is_data else self.row))


def node_fields(
    table: str = "",
    rows: int = 0,
    num_nodes: int | None = None,
    num_classes: int | None = None,
    named: Iterable[str] = (),
) -> Iterator[Field]:
    """The arrays of a table of so many rows; those without a type are the user's.

    `num_classes` is None where a label is no index. `named` has the names of the user's own arrays,
    among others.
    """

    def field(name: str, dtype: np.dtype | None = None, **rest: Any) -> Field:
        return Field(table + name, table, NODES, dtype, rows, **rest)

    yield field("node_ids", _INT32, stop=num_nodes)
    yield field("node_mask", _BOOL)
    yield field("in_degree", _FLOAT32)
    yield field("missing_self_loop", _BOOL)
    # Placement rounds sums of weights to the widest type of the devices.
    yield field("weighted_in_degree", _FLOAT64)
    yield field("nodes")
    no_label = 0 if num_classes is None else -1
    yield field("labels", fill=no_label, least=no_label, stop=num_classes, may_lack=True)
    for name in ("train_mask", "val_mask", "test_mask"):
        yield field(name, may_lack=True)
    for name in _own(named, table + NODE_PREFIX):
        yield field(name.removeprefix(table))


def halo_fields(
    name: str, steps: int, rows: int, table_rows: int, boundary: int
) -> Iterator[Field]:
    """The arrays of `jaxgraph.parallel.exchange.HaloTable`.

    A step of the ring exchanges at most `rows` rows out of the first `boundary` of a table.
    """
    yield Field(f"{name}/rows", name, ROWS, slack=rows, stop=table_rows)
    yield Field(f"{name}/ptr", name, GROUPS, count=steps + 1, points_into=f"{name}/rows")
    # A device reads a row of a message even where none arrives.
    numbers: dict[str, Any] = {"fill": -1, "least": -1, "stop": max(rows, 1)}
    yield Field(f"{name}/position", name, GROUPS, count=steps, row=(boundary,), **numbers)


@dataclasses.dataclass(frozen=True)
class EdgeSet:
    """Edges from one table of rows to another, as a part stores them in both orientations.

    Attributes:
      name: the prefix of the names of its arrays.
      groups: edge groups of a part.
      by_receiver, by_sender: rows of the tables at these ends.
      lengths: row lengths, one entry for each graph that the shapes have room for.
      halo: rows of the senders' table of all groups but the first; None: the same.
      leaves: whether these are the edges between parts, seen from the part that they leave.
      data: the prefix of the names of their data; None: they have none.
      edge_types: edge types; 0: not known.
      other_end: the end whose global ids a part lists, "sender" or "receiver"; None: neither.
      ids: entries of that list; None: the rows that have edges.
      parts: parts of the graph.
      chunks: the tables of edges that a part stacks; None: one, without an axis of its own.
      has_values: whether the edges are the non-zeros of a matrix, with values in both orders.
      shares_halo: whether halos may have rows that these edges do not read.
    """

    name: str
    groups: int
    by_receiver: int
    by_sender: int
    lengths: tuple[EdgeLengths, ...]
    halo: int | None = None
    leaves: bool = False
    data: str | None = None
    edge_types: int = 0
    other_end: str | None = None
    ids: int | None = None
    parts: int = 1
    chunks: int | None = None
    has_values: bool = False
    shares_halo: bool = False

    @property
    def prefixes(self) -> dict[str, str]:
        """The prefixes of the names of both orientations, by side."""
        return {side: f"{self.name}/{side}" for side in SIDES}

    def table(self, side: str) -> tuple[int, int]:
        """Rows of the table at an end, for the first group and for the others."""
        first: int = getattr(self, side)
        return first, first if self.halo is None or side == "by_receiver" else self.halo

    def own_rows(self, side: str) -> int:
        """Rows of the table at an end that edges within a part read, or all halos at once."""
        return 0 if self.leaves else getattr(self, side)

    def fields(self, named: Iterable[str] = ()) -> Iterator[Field]:
        """The arrays of these edges; `named` has the names of the user's own ones."""

        def field(name: str, owner: str, axis: str, dtype: Any = _INT32, **rest: Any) -> Field:
            lead = () if self.chunks is None else (self.chunks,)
            return Field(name, owner, axis, dtype, lead=lead, **rest)

        name = self.name
        for end in self.prefixes.values():
            yield field(f"{end}/neighbors", name, EDGES)
            yield field(f"{end}/compressed_ptr", end, GROUPS, count=self.groups + 1)
            yield field(f"{end}/compressed_rows", end, ROWS)
            yield field(f"{end}/compressed_starts", end, ROWS, slack=1)
        if self.has_values:
            # Values are stored in both orders: no value is looked up through edge ids.
            yield field(f"{name}/values", name, EDGES, _FLOAT32)
        else:
            yield field(f"{name}/by_sender/edge_ids", name, EDGES)
        yield field(f"{name}/repetition", name, REPETITION, may_lack=True)
        if self.other_end is not None:
            ids, pointers = (f"{name}/{self.other_end}_{each}" for each in ("ids", "ptr"))
            yield field(ids, name, IDS, count=self.ids)
            yield field(pointers, name, GROUPS, count=self.groups, points_into=ids)
        if self.data is not None:
            stops = {"edge_type": self.edge_types or None}
            data = [self.data + each for each in EDGE_DATA]
            for each in data + _own(named, self.data + EDGE_PREFIX):
                yield field(each, name, SLOTS, None, stop=stops.get(each.removeprefix(self.data)))

    def sizes(self, edges: int | None = None) -> Sizes:
        """Edges, and rows that have some, of the largest part; `edges` where they are known."""
        found: Sizes = {}
        for side, prefix in self.prefixes.items():
            counts: RowLengths = getattr(self.lengths[0], side)
            found[prefix, ROWS] = self._most(counts, counts.rows)
        if edges is None:
            counts = self.lengths[0].by_sender
            edges = self._most(counts, counts.rows * counts.lengths)
        return found | {(self.name, EDGES): edges, (self.name, SLOTS): edges}

    def _most(self, counts: RowLengths, values: np.ndarray) -> int:
        return int(self.by_part(counts.by_group(values)).sum(axis=1).max())

    def by_part(self, values: np.ndarray) -> np.ndarray:
        """Values [parts, groups] of the edges that end in a part, by the part that stores them."""
        return leaving(values) if self.leaves else values


def orientations(sets: Iterable[EdgeSet]) -> list[tuple[EdgeSet, str, str]]:
    """Both orientations of some sets of edges: set, side, and prefix of the names."""
    return [(edges, side, prefix) for edges in sets for side, prefix in edges.prefixes.items()]


def _own(named: Iterable[str], prefix: str) -> list[str]:
    return [name for name in named if name.startswith(prefix)]
