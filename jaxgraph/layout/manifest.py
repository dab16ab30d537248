"""The exchange contract: all that the parts of a graph must agree on, without their data.

It holds the number of rows that each pair of parts exchanges, and the shapes of the arrays that a
source of parts lists. Arrays that implementations derive are in `jaxgraph.layout.derived`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from jaxgraph.layout.index_range import check_sizes
from jaxgraph.layout.row_lengths import EdgeLengths
from jaxgraph.layout.schema import SCALAR, EdgeSet, Field, halo_fields, node_fields

Arrays = dict[str, np.ndarray]
"""Arrays of one part by name."""
Shapes = dict[str, tuple[tuple[int, ...], np.dtype]]
"""Shape and type of each."""
MODES = ("sar", "domain")
TOPOLOGIES = ("replicated", "pushed")
"""Storage of the edges of a layer on feature columns: on every device, or sent when needed."""
FEATURES, COLUMNS = "features", "columns"
"""Sets of edges: the non-zeros of sparse features, and the edges of a layer on feature columns."""
SENDERS = "senders"
"""The prefix of the degrees of a relation's senders, where they are nodes of another table."""
VALUES = f"{FEATURES}/values"
"""The array of their values, in row order by receiver."""


@dataclasses.dataclass(frozen=True)
class Padding:
    """The cost of padding: rows and slots that are needed, stored and sent, over all parts.

    Attributes:
      nodes, node_rows: nodes, and rows stored for them.
      edges, edge_slots: edges, and slots stored for them in one orientation, padding of the last
        chunk included.
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

    Devices form a mesh of two axes: `replicas` rows of `groups` devices each. The devices of a row
    hold different columns, and compute the first layer for the nodes of their row's parts.

    Attributes:
      num_features: columns in all.
      groups: the number of slices that they are cut into.
      replicas: the number of devices that hold each slice.
      topology: "replicated" (a device holds the edges that its row of devices needs) or "pushed"
        (a device holds the edges of its own part and sends them to its row).
      chunks: the number of equal chunks that the rows of every part are cut into; partial results
        are computed and reduced chunk by chunk.
      lengths: row lengths of the edges; each chunk of each holder of edges is a table.
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
        """The columns of a group; the numbers of columns differ by at most one."""
        fewer, more = divmod(self.num_features, self.groups)
        first = group * fewer + min(group, more)
        return slice(first, first + fewer + (group < more))

    @property
    def blocks(self) -> int:
        """The number of edge tables of a chunk's rows."""
        return 1 if self.topology == "replicated" else self.groups

    @property
    def parts_per_table(self) -> int:
        """The number of parts that the edges of a table end in."""
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
class SenderTable:
    """The sizes of the senders' table of a relation; see `Manifest`.

    Attributes:
      node_rows, boundary_rows: as of the receivers' table.
    """

    node_rows: int
    boundary_rows: int


@dataclasses.dataclass(frozen=True)
class Flow:
    """The relations of the layers of a model that computes what a loss needs alone.

    Attributes:
      relations: their names, the first layer's first.
      splits: the splits whose nodes have a loss.
    """

    relations: tuple[str, ...]
    splits: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The exchange schedule, the padded shape of every array of a part, and counts.

    Equal manifests run the same compiled program. The comparison ignores the counts: graphs of
    different sizes, padded to the same shapes, have equal manifests.

    Attributes:
      mode: the schedule, "sar" or "domain".
      num_parts: number of parts.
      num_classes: classes of the labels, or labels if `multilabel`.
      multilabel: whether a node has several labels.
      node_rows: rows of nodes per part.
      boundary_rows: the leading rows of a part that include all with edges to other parts.
      halo_unit: messages between parts are padded to a multiple of this number of rows.
      halo_units: [part][other], units of rows that `part` needs from `other` to aggregate.
      reach_units: [part][other], units of rows of `part` that have edges from `other`; 0 in mode
        "domain", which does not use them.
      shapes: (name, shape, dtype) of every array of a part that a source lists.
      lengths: row lengths of the edges that end in each part, one entry for each graph that the
        shapes have room for. The shapes of derived arrays follow from them. (): a table of nodes
        alone.
      has_padding: whether a row may be padding.
      columns: the split of features by column, where `mode` is that of the layers after the first.
        None: features are split by node.
      features: the sizes of sparse features. None: features are dense, or there are none.
      num_edge_types: the largest edge type plus one; 0: edges have no types, or it is not known,
        of parts that were written by an earlier version.
      senders: the senders' table, whose halos the exchange may share with other relations; None:
        senders and receivers are the same nodes, and the halos are the own ones.
      counts: the graph's size, or None where graphs of several sizes have this manifest.
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
    num_edge_types: int = 0
    senders: SenderTable | None = None
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

    @functools.cached_property
    def halo_rows(self) -> int:
        """Rows of the largest message of senders' rows."""
        return self.halo_unit * max(max(row) for row in self.halo_units)

    @functools.cached_property
    def reach_rows(self) -> int:
        """Rows of the largest message of receivers' rows."""
        return self.halo_unit * max(max(row) for row in self.reach_units)

    @property
    def own_senders(self) -> SenderTable:
        """The sizes of the senders' table."""
        own = SenderTable(self.node_rows, self.boundary_rows)
        return own if self.senders is None else self.senders

    @property
    def sender_rows(self) -> int:
        """Rows of the senders of the first group of edges: in mode "domain" with all halos."""
        rows = self.own_senders.node_rows
        if self.mode == "sar" or self.num_parts == 1:
            return rows
        return rows + self.num_parts * self.halo_rows

    @property
    def has_outgoing(self) -> bool:
        """True where a part has arrays of the edges that leave it."""
        return self.mode == "sar" and self.num_parts > 1 and bool(self.lengths)

    @property
    def feature_array(self) -> str:
        """Name of the array of the features' values."""
        return "nodes" if self.features is None else VALUES

    @functools.cached_property
    def edge_sets(self) -> Mapping[str, EdgeSet]:
        """The sets of edges of a part by name; edges that leave follow those that end here."""
        parts, rows, types = self.num_parts, self.node_rows, self.num_edge_types
        sent, answered = max(self.halo_rows, 1), max(self.reach_rows, 1)
        groups, ids = (parts, None) if self.mode == "sar" else (1, self.sender_rows)
        ends, data = {"other_end": "sender", "ids": ids}, {"data": "", "edge_types": types}
        table = groups, rows, self.sender_rows, self.lengths
        shared = self.has_outgoing and self.senders is not None
        own = EdgeSet("incoming", *table, sent, shares_halo=shared, **ends, **data)
        found = [own] if self.lengths else []
        if self.has_outgoing:
            ends = {"leaves": True, "other_end": "receiver"}
            left = self.own_senders.node_rows
            found.append(EdgeSet("outgoing", parts - 1, answered, left, self.lengths, **ends))
        if self.columns is not None:
            chunks, lengths = self.columns.chunks, (self.columns.lengths,)
            receivers = self.columns.parts_per_table * rows // chunks
            data = {"data": f"{COLUMNS}/", "edge_types": types, "chunks": chunks}
            found.append(EdgeSet(COLUMNS, 1, receivers, parts * rows, lengths, **data))
        if self.features is not None:
            held = rows if self.columns is None else parts * rows
            width, lengths = self.features.num_columns, self.features.lengths
            found.append(EdgeSet(FEATURES, 1, held, width, lengths, has_values=True))
        return {each.name: dataclasses.replace(each, parts=parts) for each in found}

    def schema(self, named: Iterable[str] = ()) -> dict[str, Field]:
        """The arrays that a part may have, by name; `named` has the names of the user's own."""
        rows, named = self.node_rows, tuple(named)
        nodes = 2**31 if self.counts is None else self.counts.num_nodes
        classes = None if self.multilabel else self.num_classes
        found = list(node_fields("", rows, nodes, classes, named))
        for edges in self.edge_sets.values():
            found += edges.fields(named)
        steps, left = self.num_parts - 1, self.own_senders
        if steps and self.lengths:
            found += halo_fields("send", steps, self.halo_rows, left.node_rows, left.boundary_rows)
        if self.has_outgoing:
            found += halo_fields("reach", steps, self.reach_rows, rows, self.boundary_rows)
        if self.columns is not None:
            stop = self.columns.num_features + 1
            found.append(Field(f"{COLUMNS}/offset", COLUMNS, SCALAR, count=1, stop=stop))
            of_all = node_fields(f"{COLUMNS}/", self.num_parts * rows, nodes)
            found += (each for each in of_all if each.dtype is not None)
        if self.senders is not None:
            of_senders = node_fields(f"{SENDERS}/", left.node_rows)
            found += (each for each in of_senders if each.dtype is not None)
        return {each.name: each for each in found}

    @functools.cached_property
    def fields(self) -> Mapping[str, Field]:
        """The arrays that a source lists, by name."""
        names = [name for name, _, _ in self.shapes]
        known = self.schema(names)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(
                f"the manifest lists {unknown[0]}, which is no array of a part; write the parts "
                "again with this version of jaxgraph, or correct the manifest of your own source"
            )
        return {name: known[name] for name in names}

    def array_shapes(self) -> Shapes:
        """Shape and dtype of each array of a part, by name."""
        return {name: (shape, np.dtype(dtype)) for name, shape, dtype in self.shapes}

    @property
    def members(self) -> Mapping[str, Manifest]:
        """The manifest itself, whose arrays have no prefix; see `TypedManifest`."""
        return {"": self}

    @property
    def flow(self) -> Flow | None:
        """None: layers compute all nodes; see `TypedManifest`."""
        return None

    def each(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """The manifest, changed; see `TypedManifest`."""
        return change(self)

    def counted(self, counts: Counts | None) -> Manifest:
        """The manifest with the size of a graph."""
        return dataclasses.replace(self, counts=counts)

    def storing(self, name: str, dtype: np.dtype) -> Manifest:
        """Returns this manifest with another dtype for one array."""
        if name not in self.fields:
            raise ValueError(f"the graph has no {name!r} to hold as {dtype}; leave the dtype out")
        return self.listing({name: (self.array_shapes()[name][0], dtype)})

    def listing(self, shapes: Shapes) -> Manifest:
        """The manifest with these arrays, beside others that it lists."""
        listed = self.array_shapes() | shapes
        # Sorted by name: manifests of the same arrays compare equal. NumPy parses its own dtypes
        # from `str`, those of extensions from `name` alone.
        ordered = tuple(
            (name, shape, dtype.str if dtype.isbuiltin == 1 else dtype.name)
            for name, (shape, dtype) in sorted(listed.items())
        )
        return dataclasses.replace(self, shapes=ordered)

    def listing_only(self, wanted: Callable[[str], bool]) -> Manifest:
        """The manifest without arrays whose names are not wanted."""
        listed = tuple(each for each in self.shapes if wanted(each[0]))
        return dataclasses.replace(self, shapes=listed)
