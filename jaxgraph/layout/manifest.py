"""The exchange contract: what all parts of a graph must agree on, without looking at their data.

It says which rows travel where, and the shapes of the arrays that a source of parts lists. What an
implementation derives from these arrays is not in it; see `jaxgraph.layout.derived`.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxgraph.layout.index_range import check_sizes
from jaxgraph.layout.row_lengths import EdgeLengths

__all__ = [
    "EDGE_DATA",
    "EDGE_PREFIX",
    "FEATURES",
    "MODES",
    "NODE_PREFIX",
    "TOPOLOGIES",
    "VALUES",
    "Arrays",
    "ColumnSchedule",
    "Counts",
    "FeatureSizes",
    "Manifest",
    "Padding",
    "Shapes",
    "fill_value",
]

Arrays = dict[str, np.ndarray]
"""Arrays of one part by name."""
Shapes = dict[str, tuple[tuple[int, ...], np.dtype]]
"""Shape and type of each."""
MODES = ("sar", "domain")
TOPOLOGIES = ("replicated", "pushed")
"""Places of the edges of a layer on feature columns: on every device, or sent when needed."""
EDGE_DATA = ("edges", "edge_weight", "edge_type")
"""Arrays of a part that hold the user's data of each edge, in row order by receiver."""
NODE_PREFIX, EDGE_PREFIX = "node_data.", "edge_data."
"""What the names of a user's own arrays start with, which have a row per node or a slot per edge.

No slash: that of a name says that an array is none of rows or slots.
"""
FEATURES = "features"
"""The start of the names of arrays of sparse features, whose non-zeros are edges from columns."""
VALUES = f"{FEATURES}/values"
"""The array of their values, in row order by receiver."""


@dataclasses.dataclass(frozen=True)
class Padding:
    """The cost of padding: rows and slots that are needed, stored and sent, over all parts.

    Attributes:
      nodes, node_rows: nodes, and rows stored for them.
      edges, edge_slots: edges, and slots stored for them in one orientation, with those after the
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
    """The size of a graph, without any padding.

    Attributes:
      num_nodes, num_edges: of the whole graph.
      halo_rows_needed: rows that one exchange must send, over all pairs of parts.
    """

    num_nodes: int
    num_edges: int
    halo_rows_needed: int


@dataclasses.dataclass(frozen=True)
class ColumnSchedule:
    """The split of features, and of the first layer, by column (P3, sections 3.1 to 3.4).

    Devices form rows of a two-axis mesh: `replicas` rows of `groups` devices each. Those of a
    row hold different columns, and compute the first layer for the nodes of their row's parts.

    Attributes:
      num_features: columns in all.
      groups: into how many slices they are cut.
      replicas: how many devices hold each slice.
      topology: "replicated" (a device holds the edges that its row of devices needs) or "pushed"
        (those of its own part, which it sends to its row).
      chunks: how many chunks of equal length the rows of every part are cut into; partial results
        are made and reduced one chunk after the other.
      lengths: row lengths of the edges of every chunk of every holder of edges, each a table.
    """

    num_features: int
    groups: int
    replicas: int
    topology: str
    chunks: int
    lengths: EdgeLengths = dataclasses.field(repr=False)

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

    @property
    def parts_per_table(self) -> int:
        """Parts in whose rows the edges of a table end."""
        return self.groups if self.topology == "replicated" else 1


@dataclasses.dataclass(frozen=True)
class FeatureSizes:
    """The sizes of sparse features.

    Attributes:
      num_columns: columns that a device holds, padding included.
      lengths: non-zeros of the rows and columns of every part, of one graph or of several.
    """

    num_columns: int
    lengths: tuple[EdgeLengths, ...] = dataclasses.field(repr=False)


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
      halo_unit: rows by which messages between parts are rounded up.
      halo_units: [part][other], units of rows that `part` needs from `other` to aggregate.
      reach_units: [part][other], units of rows of `part` that have edges from `other`; 0 in mode
        "domain", which has no use for them.
      shapes: (name, shape, dtype) of every array of a part that a source lists.
      lengths: row lengths of the edges that end in each part, of the graph, or of several that the
        shapes have room for. What implementations derive takes its shapes from them.
      has_padding: whether there may be a row that stands for no node.
      columns: how features are split by column, or None: by node. The mode is then that of the
        layers after the first.
      features: how large sparse features are, or None: they are dense, or there are none.
      counts: the graph's size, or None where the manifest stands for graphs of several sizes.
    """

    mode: str
    num_parts: int
    num_classes: int
    multilabel: bool
    node_rows: int
    boundary_rows: int
    halo_unit: int
    halo_units: tuple[tuple[int, ...], ...]
    reach_units: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[str, tuple[int, ...], str], ...]
    lengths: tuple[EdgeLengths, ...]
    has_padding: bool = True
    columns: ColumnSchedule | None = None
    features: FeatureSizes | None = None
    counts: Counts | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        sizes = {"rows of a part and its halos": self.sender_rows}
        sizes |= {name: max(shape, default=0) for name, shape, _ in self.shapes}
        if self.counts is not None:
            sizes["num_nodes"] = self.counts.num_nodes
        check_sizes(sizes)

    def __repr__(self) -> str:
        size = ""
        if self.counts is not None:
            size = f"num_nodes={self.counts.num_nodes}, num_edges={self.counts.num_edges}, "
        return (
            f"Manifest({size}mode={self.mode!r}, num_parts={self.num_parts}, "
            f"node_rows={self.node_rows}, arrays={len(self.shapes)})"
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

    @property
    def has_outgoing(self) -> bool:
        """True where a part has arrays of the edges that leave it."""
        return self.mode == "sar" and self.num_parts > 1

    @property
    def feature_array(self) -> str:
        """Name of the array of the features' values."""
        return "nodes" if self.features is None else VALUES

    def lengths_of(self, edges: str) -> tuple[EdgeLengths, ...]:
        """Row lengths of the edges "incoming", "outgoing", "columns" or "features"."""
        if edges == FEATURES:
            return () if self.features is None else self.features.lengths
        if edges == "columns":
            return () if self.columns is None else (self.columns.lengths,)
        return self.lengths

    def table_rows(self, prefix: str) -> int:
        """Rows of the first group's table at the own end of an orientation, without edges or not.

        Args:
          prefix: of the names of the orientation, such as "incoming/by_receiver".

        Returns:
          The rows; 0 for edges that leave a part, which are looked up by none of them.
        """
        edges, side = prefix.split("/")
        if edges == "outgoing":
            return 0
        if edges == "incoming":
            return self.node_rows if side == "by_receiver" else self.sender_rows
        if edges == FEATURES:
            assert self.features is not None
            rows = self.node_rows * (1 if self.columns is None else self.num_parts)
            return rows if side == "by_receiver" else self.features.num_columns
        assert self.columns is not None
        if side == "by_sender":
            return self.num_parts * self.node_rows
        return self.columns.parts_per_table * self.node_rows // self.columns.chunks

    def array_shapes(self) -> Shapes:
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
        """The entries that the sizes add to each dimension of an array, independent of its data.

        Args:
          name: of the array.
          dimensions: how many it has.

        Returns:
          Room for a full message after the last row, the number of rows where an array has one
          entry per row, one where an array also holds the end of the last row, otherwise 0.
        """
        by_name = {
            "send/rows": self.halo_rows,
            "reach/rows": self.reach_rows,
            "send/position": (0, self.boundary_rows),
            "reach/position": (0, self.boundary_rows),
            "incoming/sender_ids": self.sender_rows if self.mode == "domain" else 0,
        }
        if name in by_name:
            added = by_name[name]
        elif "/" in name or name in EDGE_DATA or name.startswith(EDGE_PREFIX):
            added = 1 if name.endswith("/compressed_starts") else 0
        else:
            added = self.node_rows
        added = added if isinstance(added, tuple) else (added,)
        return added + (0,) * (dimensions - len(added))


def fill_value(name: str, dimensions: int) -> int:
    """The value that fills the padding of an array.

    Args:
      name: of the array.
      dimensions: how many it has.

    Returns:
      -1 for positions and class labels, which mean "none" by it, otherwise 0.
    """
    return -1 if name.endswith("/position") or (name == "labels" and dimensions == 1) else 0
