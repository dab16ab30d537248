"""What is known of a sharded graph without looking at its data: counts and padded shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

__all__ = [
    "EDGE_DATA",
    "MODES",
    "TOPOLOGIES",
    "ColumnSchedule",
    "Counts",
    "Joins",
    "Manifest",
    "Padding",
    "fill_value",
    "room_behind",
]

MODES = ("sar", "domain")
Joins = tuple[tuple[int, int], ...]
TOPOLOGIES = ("replicated", "pushed")
"""Where the edges of a layer on feature columns are: on every device, or sent when needed."""
EDGE_DATA = ("edges", "edge_weight", "edge_type")
"""Arrays of a part that hold the user's data of each edge, in row order by receiver."""

_CHUNK_BEHIND = ("/neighbors", "/edge_ids", "/receivers", "/rows", "/starts", "/degrees")
"""Ends of the names of arrays of slots and of rows, into which a chunk may reach behind the end."""


@dataclasses.dataclass(frozen=True)
class Padding:
    """What padding costs: stored or sent beside needed, over all parts.

    Attributes:
      nodes, node_rows: nodes, and rows stored for them.
      edges, edge_slots: edges, and slots stored for them in one orientation, with those behind the
        end into which the last chunk may reach.
      halo_rows_needed, halo_rows_sent: rows of features that one exchange must and does send.
    """

    nodes: int
    node_rows: int
    edges: int
    edge_slots: int
    halo_rows_needed: int
    halo_rows_sent: int

    @property
    def node_ratio(self) -> float:
        """Stored node rows over nodes."""
        return self.node_rows / max(self.nodes, 1)

    @property
    def edge_ratio(self) -> float:
        """Stored edge slots over edges."""
        return self.edge_slots / max(self.edges, 1)

    @property
    def halo_ratio(self) -> float:
        """Sent halo rows over needed ones; 1 where nothing is needed and nothing sent."""
        if not self.halo_rows_sent:
            return 1.0
        return self.halo_rows_sent / max(self.halo_rows_needed, 1)


@dataclasses.dataclass(frozen=True)
class Counts:
    """How large a graph is, without any padding.

    Attributes:
      num_nodes, num_edges: of the whole graph.
      halo_rows_needed: rows that one exchange must send, over all pairs of parts.
    """

    num_nodes: int
    num_edges: int
    halo_rows_needed: int


@dataclasses.dataclass(frozen=True)
class ColumnSchedule:
    """How features are split by column, and the first layer with them (P3, sections 3.1 to 3.4).

    Devices stand in rows of a two-axis mesh: `replicas` rows of `groups` devices each. Those of a
    row hold different columns, and compute the first layer for the nodes of their row's parts.

    Attributes:
      num_features: columns in all.
      groups: into how many slices they are cut.
      replicas: how many devices hold each slice.
      topology: "replicated" (a device holds the edges that its row of devices needs) or "pushed"
        (those of its own part, which it sends to its row).
      chunks: into how many runs of equal length the rows of every part are cut; partial results are
        made and reduced one run after the other.
      edge_chunk: edges handled at a time.
      receiver_capacity, sender_capacity: of the edges of a chunk (see `EdgeGroups`).
      receiver_longest, sender_longest: edges of a row of a chunk, at most.
    """

    num_features: int
    groups: int
    replicas: int
    topology: str
    chunks: int
    edge_chunk: int
    receiver_capacity: int
    sender_capacity: int
    receiver_longest: int
    sender_longest: int

    @property
    def width(self) -> int:
        """Columns of a slice, padding included."""
        return -(-self.num_features // self.groups)

    def slice_of(self, group: int) -> slice:
        """The columns of a group, as many as of any other or one more."""
        fewer, more = divmod(self.num_features, self.groups)
        first = group * fewer + min(group, more)
        return slice(first, first + fewer + (group < more))

    @property
    def blocks(self) -> int:
        """Tables of edges that a chunk's rows are visited in."""
        return 1 if self.topology == "replicated" else self.groups


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The exchange schedule and the padded shape of every array of every part, and counts.

    Equal manifests run the same compiled program. The counts take no part in the comparison: graphs
    of different sizes, padded to the same shapes, have equal manifests.

    Attributes:
      mode: the schedule, "sar" or "domain".
      num_parts: number of parts.
      num_classes: classes of the labels, or labels if `multilabel`.
      multilabel: whether a node has several labels.
      node_rows: rows of nodes per part.
      boundary_rows: the first rows of a part, among which are all that have edges to other parts.
      chunk: edges handled at a time.
      halo_unit: rows by which messages between parts are rounded up.
      halo_units: [part][other], units of rows that `part` needs from `other` to aggregate.
      reach_units: [part][other], units of rows of `part` that have edges from `other`; 0 in mode
        "domain", which has no use for them.
      receiver_capacity, sender_capacity: of the edges that end in a part (see `EdgeGroups`).
      outgoing_receiver_capacity, outgoing_sender_capacity: of those that leave it, 0 where the mode
        has no use for them.
      receiver_longest, sender_longest: edges of a row of a group, at most.
      shapes: (name, shape, dtype) of every array of a part.
      lanes: of each level of a graph in one part, and of its runs (see
        `jaxgraph.layout.degrees.choose_lanes`); none where there are several parts.
      receiver_levels, sender_levels: rows of each level behind the first.
      receiver_joins, sender_joins: rows behind the last level, and runs, join by join (see
        `jaxgraph.layout.degrees.count_joins`).
      has_padding: whether there may be a row that stands for no node.
      columns: how features are split by column, or None: by node. The mode is then that of the
        layers behind the first.
      counts: the graph's size, or None where the manifest stands for graphs of several sizes.
    """

    mode: str
    num_parts: int
    num_classes: int
    multilabel: bool
    node_rows: int
    boundary_rows: int
    chunk: int
    halo_unit: int
    halo_units: tuple[tuple[int, ...], ...]
    reach_units: tuple[tuple[int, ...], ...]
    receiver_capacity: int
    sender_capacity: int
    outgoing_receiver_capacity: int
    outgoing_sender_capacity: int
    receiver_longest: int
    sender_longest: int
    shapes: tuple[tuple[str, tuple[int, ...], str], ...]
    lanes: tuple[int, ...] = ()
    receiver_levels: tuple[int, ...] = ()
    sender_levels: tuple[int, ...] = ()
    receiver_joins: Joins = ()
    sender_joins: Joins = ()
    has_padding: bool = True
    columns: ColumnSchedule | None = None
    counts: Counts | None = dataclasses.field(default=None, compare=False)

    def __repr__(self) -> str:
        size = ""
        if self.counts is not None:
            size = f"num_nodes={self.counts.num_nodes}, num_edges={self.counts.num_edges}, "
        return (
            f"Manifest({size}mode={self.mode!r}, num_parts={self.num_parts}, "
            f"node_rows={self.node_rows}, chunk={self.chunk}, arrays={len(self.shapes)})"
        )

    @property
    def halo_rows(self) -> int:
        """Rows of the largest message that brings senders' rows."""
        return self.halo_unit * max(max(row) for row in self.halo_units)

    @property
    def reach_rows(self) -> int:
        """Rows of the largest message that brings receivers' rows."""
        return self.halo_unit * max(max(row) for row in self.reach_units)

    @property
    def sender_rows(self) -> int:
        """Rows of the senders of the first group of edges: in mode "domain" with all halos."""
        if self.mode == "sar" or self.num_parts == 1:
            return self.node_rows
        return self.node_rows + self.num_parts * self.halo_rows

    def longest_row(self, prefix: str) -> int:
        """Edges of a row of a group, at most.

        Args:
          prefix: of the names of the orientation, such as "incoming/by_receiver".
        """
        schedule = self.columns if prefix.startswith("columns/") else self
        assert schedule is not None
        by_receiver = prefix.endswith("/by_receiver")
        return schedule.receiver_longest if by_receiver else schedule.sender_longest

    def array_shapes(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each array of a part, by name."""
        return {name: (shape, np.dtype(dtype)) for name, shape, dtype in self.shapes}

    def storing(self, name: str, dtype: np.dtype) -> Manifest:
        """The same with an array of another dtype.

        Args:
          name: of the array.
          dtype: the dtype.

        Raises:
          ValueError: there is no array of that name.
        """
        if name not in (listed for listed, _, _ in self.shapes):
            raise ValueError(f"the graph has no {name!r} to hold as {dtype}; leave the dtype out")
        # NumPy reads its own types back from this text, and those of others from their names.
        text = dtype.str if dtype.isbuiltin == 1 else dtype.name
        shapes = tuple((n, shape, text if n == name else old) for n, shape, old in self.shapes)
        return dataclasses.replace(self, shapes=shapes)

    def slack(self, name: str, dimensions: int) -> tuple[int, ...]:
        """What the sizes add to each dimension of an array, whatever is stored in it.

        Args:
          name: of the array.
          dimensions: how many it has.

        Returns:
          Room for a full message or chunk behind the last row or slot, the number of rows where an
          array has one entry per row, or one where an array tells as well where the last row ends.
        """
        by_name = {
            "send/rows": self.halo_rows,
            "reach/rows": self.reach_rows,
            "send/position": (0, self.boundary_rows),
            "reach/position": (0, self.boundary_rows),
            "incoming/by_receiver/position": self.node_rows,
            "incoming/by_sender/position": self.sender_rows,
            "incoming/sender_ids": self.sender_rows if self.mode == "domain" else 0,
        }
        if name in by_name:
            added = by_name[name]
        elif "/" in name or name in EDGE_DATA:
            added = room_behind(name, self.chunk)
        else:
            added = self.node_rows
        added = added if isinstance(added, tuple) else (added,)
        return added + (0,) * (dimensions - len(added))


def room_behind(name: str, chunk: int) -> int:
    """Entries that an array of edges needs behind the last one that is stored.

    Args:
      name: of the array.
      chunk: edges handled at a time.

    Returns:
      Room for a chunk in arrays of slots and of rows, one where an array tells as well where the
      last row ends, otherwise 0.
    """
    if name.endswith(_CHUNK_BEHIND) or name in EDGE_DATA:
        return chunk
    return 1 if name.endswith("/compressed_starts") else 0


def fill_value(name: str, dimensions: int) -> int:
    """What stands in the padding of an array.

    Args:
      name: of the array.
      dimensions: how many it has.

    Returns:
      -1 for positions and class labels, which mean "none" by it, otherwise 0.
    """
    return -1 if name.endswith("/position") or (name == "labels" and dimensions == 1) else 0
