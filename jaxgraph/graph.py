"""The graph on the host: validated, read-only NumPy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from jaxgraph.graph_arrays import (
    NODE_FIELDS,
    check_label_columns,
    check_masked_nodes_labelled,
    check_masks_disjoint,
    checked_categories,
    checked_count,
    checked_features,
    checked_floats,
    checked_ids,
    checked_labels,
    checked_mask,
    checked_names,
    inferred_num_nodes,
    refuse_index,
)
from jaxgraph.named_arrays import checked_named, with_named
from jaxgraph.other_names import NAMES_OF_GRAPH, no_attribute, with_our_names

if TYPE_CHECKING:
    from jaxgraph.typed_graph import TypedGraph

__all__ = ["Graph"]


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A directed graph with features, labels and masks; edge e goes senders[e] -> receivers[e].

    An undirected graph holds every edge in both directions. Every array is validated and stored as
    a read-only view. It is copied only where its dtype or memory order has to change: do not write
    to an array after passing it. A copied or unpickled graph is validated and read-only as well.

    Args:
        senders: int [num_edges], the node that each edge leaves; int32 where ids fit.
        receivers: int [num_edges], the node that each edge enters.
        num_nodes: number of nodes, at least 1.
        nodes: float32 [num_nodes, num_features], node features, an array or a SciPy sparse matrix,
            or None. A sparse matrix is stored as a `csr_array` with ascending columns and without
            zeros; layers read its non-zeros alone.
        labels: int32 [num_nodes], a class per node (-1: no label), or float32 or bool
            [num_nodes, num_labels] of 0 and 1 (NaN: not known) for multi-label data, or None.
        train_mask: bool [num_nodes], or None.
        val_mask: bool [num_nodes], or None.
        test_mask: bool [num_nodes], or None.
        edges: float32 [num_edges, num_edge_features], or None.
        edge_weight: float32 [num_edges], or None.
        edge_type: int32 [num_edges], from 0, or None.
        name: a name for reports.
        node_names: str or int [num_nodes], all different: the id of each node outside of the graph,
            or None where that is its row.
        node_data: arrays [num_nodes, ...] by name, of floats, integers or bools, such as targets;
            NaN where a float is missing. Read-only; ``with_nodes`` adds arrays.
        edge_data: arrays [num_edges, ...] by name. Read-only; ``with_edges`` adds arrays.

    Raises:
        ValueError: an array has a wrong shape or dtype, an id is out of range, a value is not
            finite, masks overlap or are empty, a masked node has no label, or two nodes have the
            same name.
    """

    senders: np.ndarray
    receivers: np.ndarray
    num_nodes: int
    nodes: Any = None
    labels: np.ndarray | None = None
    train_mask: np.ndarray | None = None
    val_mask: np.ndarray | None = None
    test_mask: np.ndarray | None = None
    edges: np.ndarray | None = None
    edge_weight: np.ndarray | None = None
    edge_type: np.ndarray | None = None
    name: str = "graph"
    node_names: np.ndarray | None = None
    node_data: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    edge_data: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        num_nodes = checked_count("num_nodes", self.num_nodes)
        for name in NODE_FIELDS:
            refuse_index(name, getattr(self, name))
        if not isinstance(self.name, str):
            raise ValueError(f"name: got a {type(self.name).__name__}; expected text.")
        senders = checked_ids("senders", self.senders, num_nodes)
        receivers = checked_ids("receivers", self.receivers, num_nodes)
        if senders.shape != receivers.shape:
            raise ValueError(
                f"senders has {senders.size} entries and receivers {receivers.size}; expected "
                "one of each per edge."
            )
        num_edges = senders.shape[0]
        checked: dict[str, Any] = {
            "num_nodes": num_nodes,
            "senders": senders,
            "receivers": receivers,
            "nodes": checked_features(self.nodes, num_nodes),
            "labels": checked_labels(self.labels, num_nodes),
            "edges": checked_floats("edges", self.edges, (num_edges, None)),
            "edge_weight": checked_floats("edge_weight", self.edge_weight, (num_edges,)),
            "edge_type": checked_categories("edge_type", self.edge_type, num_edges, "edge"),
            "node_names": checked_names(self.node_names, num_nodes),
        }
        for field, length in (("node_data", num_nodes), ("edge_data", num_edges)):
            checked[field] = checked_named(field, getattr(self, field), length, _field_names())
        masks = {
            name: checked_mask(name, getattr(self, name), num_nodes)
            for name in ("train_mask", "val_mask", "test_mask")
        }
        check_masks_disjoint(masks)
        check_masked_nodes_labelled(masks, checked["labels"])
        arrays = checked["node_data"], checked["nodes"], checked["labels"], masks["train_mask"]
        check_label_columns(*arrays)
        for name, value in (checked | masks).items():
            object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        # `MappingProxyType` cannot be pickled.
        return self.__dict__ | {"node_data": {**self.node_data}, "edge_data": {**self.edge_data}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        # Unpickling and copying skip the constructor and yield writable arrays.
        Graph.__init__(self, **state)

    @classmethod
    @with_our_names
    def from_edges(
        cls,
        senders: ArrayLike,
        receivers: ArrayLike,
        *,
        num_nodes: int | None = None,
        nodes: Any = None,
        labels: ArrayLike | None = None,
        train_mask: ArrayLike | None = None,
        val_mask: ArrayLike | None = None,
        test_mask: ArrayLike | None = None,
        edges: ArrayLike | None = None,
        edge_weight: ArrayLike | None = None,
        edge_type: ArrayLike | None = None,
        name: str = "graph",
        node_names: ArrayLike | None = None,
        node_data: Mapping[str, ArrayLike] | None = None,
        edge_data: Mapping[str, ArrayLike] | None = None,
    ) -> Graph:
        """Makes a graph from two lists of node ids; edge e goes senders[e] -> receivers[e].

        Args:
            senders: int [num_edges].
            receivers: int [num_edges].
            num_nodes: number of nodes; None: the length of the first array given per node
                (``nodes``, ``labels``, a mask, ``node_names``, ``node_data``), else the largest id
                plus one.
            nodes: [num_nodes, num_features] node features, an array or a SciPy sparse matrix,
                stored as float32.
            labels: int [num_nodes], -1 for no label, or 0/1 [num_nodes, num_labels].
            train_mask: bool [num_nodes].
            val_mask: bool [num_nodes].
            test_mask: bool [num_nodes].
            edges: [num_edges, num_edge_features] edge features, stored as float32.
            edge_weight: [num_edges], stored as float32.
            edge_type: int [num_edges], from 0.
            name: a name for reports.
            node_names: str or int [num_nodes], all different.
            node_data: arrays [num_nodes, ...] by name.
            edge_data: arrays [num_edges, ...] by name.

        Returns:
            The validated graph.

        Raises:
            ValueError: as ``Graph``.
        """
        arrays: dict[str, Any] = {
            "senders": senders,
            "receivers": receivers,
            "nodes": nodes,
            "labels": labels,
            "train_mask": train_mask,
            "val_mask": val_mask,
            "test_mask": test_mask,
            "edges": edges,
            "edge_weight": edge_weight,
            "edge_type": edge_type,
            "node_names": node_names,
            "node_data": node_data,
            "edge_data": edge_data,
        }
        if num_nodes is None:
            num_nodes = inferred_num_nodes(arrays)
        return cls(num_nodes=num_nodes, name=name, **arrays)

    @staticmethod
    def batch(graphs: Sequence[Graph], **of_graphs: Any) -> TypedGraph:
        """Makes one graph of many, for tasks about whole graphs.

        Args:
            graphs: graphs with the same arrays, of the same widths. Their masks and names of nodes
                are left out.
            **of_graphs: arrays with a row for each graph, as ``Graph`` takes them of nodes: labels,
                train_mask, val_mask, test_mask, nodes, node_data.

        Returns:
            The graph: its set "node" has the nodes of all graphs, its target "graph" a row for each
            graph. Edges are in the set "edge", and "member" goes from each node to its graph, for
            ``jaxgraph.nn.GraphReadout``.

        Raises:
            ValueError: ``graphs`` is no list of graphs, an array is missing in some or has another
                width, or an array of ``of_graphs`` does not fit.
        """
        from jaxgraph.graph_batches import batch_of

        return batch_of(graphs, **of_graphs)

    def replace(self, **changes: Any) -> Graph:
        """Returns a validated copy with some fields changed; the other arrays are shared.

        Args:
            **changes: new values by field name.

        Returns:
            The new graph.

        Raises:
            ValueError: a name is no field of ``Graph``, or the result is not a valid graph.
        """
        known = _field_names()
        unknown = sorted(set(changes) - set(known))
        if unknown:
            ours = NAMES_OF_GRAPH.get(unknown[0])
            raise ValueError(
                f"Graph has no field {unknown[0]!r}; "
                + (f"its name here is {ours}." if ours else f"its fields are {', '.join(known)}.")
            )
        return dataclasses.replace(self, **changes)

    def with_nodes(self, **arrays: ArrayLike | None) -> Graph:
        """Returns the graph with named arrays of its nodes added or replaced.

        Args:
            **arrays: [num_nodes, ...] by name, of floats (NaN: missing), integers or bools; None
                removes one.

        Returns:
            The new graph; ``node_data["name"]`` is the array, and ``shard.node_data["name"]`` its
            rows on a device.

        Raises:
            ValueError: a name is a field of ``Graph``, or an array has a wrong length or dtype.
        """
        return self.replace(node_data=with_named(self.node_data, arrays))

    def with_edges(self, **arrays: ArrayLike | None) -> Graph:
        """Returns the graph with named arrays of its edges added or replaced.

        Args:
            **arrays: [num_edges, ...] by name, in the order of the edges; as for ``with_nodes``.

        Returns:
            The new graph; ``edge_data["name"]`` is the array, and ``shard.edge_data["name"]`` is
            data that ``propagate`` takes as ``edge=``.

        Raises:
            ValueError: as for ``with_nodes``.
        """
        return self.replace(edge_data=with_named(self.edge_data, arrays))

    @property
    def num_edges(self) -> int:
        """The number of directed edges."""
        return int(self.senders.shape[0])

    @property
    def num_features(self) -> int:
        """The number of features of a node; 0 without features."""
        return 0 if self.nodes is None else int(self.nodes.shape[1])

    @property
    def num_classes(self) -> int:
        """The largest class plus one, or the number of labels if multi-label; 0 without labels."""
        if self.labels is None:
            return 0
        if self.is_multilabel:
            return int(self.labels.shape[1])
        return int(self.labels.max()) + 1

    @property
    def is_multilabel(self) -> bool:
        """True where a node can have several labels."""
        return self.labels is not None and self.labels.ndim == 2

    def _share_of_non_zeros(self) -> str:
        if not sp.issparse(self.nodes):
            return ""
        return f" ({self.nodes.nnz / max(self.num_nodes * self.num_features, 1):.2%} non-zero)"

    @property
    def edge_mask(self) -> np.ndarray:
        """bool [num_edges], True: a graph has no padding; on a shard, False for padding."""
        return np.ones(self.num_edges, bool)

    def in_degrees(self) -> np.ndarray:
        """Returns the number of edges that enter each node, int64 [num_nodes]."""
        return np.bincount(self.receivers, minlength=self.num_nodes)

    def out_degrees(self) -> np.ndarray:
        """Returns the number of edges that leave each node, int64 [num_nodes]."""
        return np.bincount(self.senders, minlength=self.num_nodes)

    # Python calls it for names that are not there; it reads `__dict__`, since a copy has no fields
    # yet. Type checkers must not see it: they would take any name for an attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            named = {field: self.__dict__.get(field, ()) for field in ("node_data", "edge_data")}
            places = [f"graph.{field}[{name!r}]" for field, data in named.items() if name in data]
            ours = NAMES_OF_GRAPH.get(name)
            remedy = f"its name here is {ours}" if ours else None
            if name in ("to", "cuda", "cpu", "device"):
                remedy = (
                    "it is on the host. Layers place it on JAX's default device, and "
                    "jaxgraph.parallel.shard on the devices of a mesh"
                )
            raise no_attribute("a Graph", name, f"use {places[0]}" if places else remedy)

        def __getitem__(self, name: Any) -> Any:
            raise TypeError(
                f"a Graph has no items: its arrays are attributes, such as graph.nodes, and "
                f"arrays of your own are graph.node_data[{name!r}] and graph.edge_data[{name!r}]"
            )

        __iter__ = None  # Python would iterate by items.

    def __repr__(self) -> str:
        parts = [
            f"name={self.name!r}",
            f"num_nodes={self.num_nodes}",
            f"num_edges={self.num_edges}",
        ]
        if self.nodes is not None:
            parts.append(f"num_features={self.num_features}{self._share_of_non_zeros()}")
        if self.labels is not None:
            parts.append(
                f"{'num_labels' if self.is_multilabel else 'num_classes'}={self.num_classes}"
            )
        for name in ("train_mask", "val_mask", "test_mask"):
            mask = getattr(self, name)
            if mask is not None:
                parts.append(f"{name}={int(mask.sum())}")
        parts += [
            n
            for n in ("edges", "edge_weight", "edge_type", "node_names")
            if getattr(self, n) is not None
        ]
        named = {"node_data": self.node_data, "edge_data": self.edge_data}
        parts += [f"{field}=[{', '.join(data)}]" for field, data in named.items() if data]
        return f"Graph({', '.join(parts)})"


Graph.__init__ = with_our_names(Graph.__init__)


def _field_names() -> list[str]:
    return [field.name for field in dataclasses.fields(Graph)]
