"""A graph of several sets of nodes and of edges on the host, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.graph_arrays import checked_categories, checked_floats, checked_ids
from jaxgraph.kinds import kind_of
from jaxgraph.named_arrays import checked_named
from jaxgraph.other_names import NAMES_OF_GRAPH

__all__ = ["EdgeSet", "TypedGraph"]

Ends = tuple[str, str, str]
"""The set that the edges leave, their name, and the set that they enter."""
_DATA = ("edges", "edge_weight", "edge_type", "edge_data")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EdgeSet:
    """Edges from the nodes of one set to those of another, or of the same.

    A `TypedGraph` makes them of the arrays that it is given, and checks these.

    Attributes:
      senders: int [num_edges], rows of the set that the edges leave.
      receivers: int [num_edges], rows of the set that they enter.
      edges: float32 [num_edges, num_edge_features], or None.
      edge_weight: float32 [num_edges], or None.
      edge_type: int32 [num_edges], types inside of the set, from 0, or None.
      edge_data: arrays [num_edges, ...] by name.
    """

    senders: np.ndarray
    receivers: np.ndarray
    edges: np.ndarray | None = None
    edge_weight: np.ndarray | None = None
    edge_type: np.ndarray | None = None
    edge_data: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        data = [name for name in _DATA[:-1] if getattr(self, name) is not None]
        return f"EdgeSet({', '.join([f'num_edges={self.num_edges}', *data, *self.edge_data])})"

    def __getstate__(self) -> dict[str, Any]:
        # `MappingProxyType` cannot be pickled.
        return self.__dict__ | {"edge_data": {**self.edge_data}}

    @property
    def num_edges(self) -> int:
        """The number of edges."""
        return len(self.senders)

    @property
    def num_edge_types(self) -> int:
        """The largest edge type plus one; 0 without types."""
        return 0 if self.edge_type is None else int(self.edge_type.max(initial=-1)) + 1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TypedGraph:
    """Sets of nodes, and sets of edges between them, by name.

    A set of nodes is a `Graph` without edges: it has features, labels, masks and named arrays of
    its own. Sets are few and have names; types inside of a set of edges are many and numbered
    (`edge_type`).

        graph = TypedGraph(
            {"paper": {"nodes": x, "labels": y, "train_mask": mask}, "author": {"num_nodes": 1134}},
            {
                ("author", "writes", "paper"): {"senders": authors, "receivers": papers},
                ("paper", "cites", "paper"): {"senders": citing, "receivers": cited},
            },
        )

    Args:
      node_sets: arrays as `Graph` takes them, by name, for each set of nodes: `num_nodes` where
        there is none to count them by. Or a `Graph` without edges.
      edge_sets: for each (set of the senders, name, set of the receivers), `senders` and
        `receivers`, and where there are some `edges`, `edge_weight`, `edge_type` and `edge_data`,
        as `Graph` takes them. Or an `EdgeSet`.
      name: a name for reports.
      target: the set of nodes that a task is about, for which a shard stands: `shard.labels` are
        its labels. None: the only set, or the only one with labels.
      readout: names of sets of edges that end in the target and carry no messages: a task reads
        rows of nodes through them, such as those of the nodes of a graph, or of the ends of a link.
        Mini-batches take all of their edges after the last layer.

    Raises:
      ValueError: an array is wrong, as for `Graph`, edges are between sets that are not there, an
        id is outside of its set, there is no set `target`, or `readout` names other sets.
    """

    node_sets: Mapping[str, Graph | Any]
    edge_sets: Mapping[Ends, EdgeSet | Any]
    name: str = "graph"
    target: str | None = None
    readout: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.node_sets, Mapping) or not self.node_sets:
            raise ValueError(
                f"node_sets: got {kind_of(self.node_sets)}; expected the arrays of at least one "
                "set of nodes by its name, such as {'paper': {'nodes': x}}"
            )
        if not isinstance(self.edge_sets, Mapping):
            raise ValueError(
                f"edge_sets: got {kind_of(self.edge_sets)}; expected the arrays of each set of "
                "edges by (set of the senders, name, set of the receivers)"
            )
        nodes = {_checked_name(name): _node_set(name, x) for name, x in self.node_sets.items()}
        edges = {
            _checked_ends(ends, nodes): _edge_set(ends, x, nodes)
            for ends, x in self.edge_sets.items()
        }
        if self.target is not None and self.target not in nodes:
            raise ValueError(
                f"target is {self.target!r}; expected a set of nodes, one of "
                f"{', '.join(map(repr, nodes))}"
            )
        labelled = [name for name, x in nodes.items() if x.labels is not None]
        for names in (list(nodes), labelled):
            if self.target is None and len(names) == 1:
                object.__setattr__(self, "target", names[0])
        into = [name for _, name, receiver in edges if receiver == self.target]
        if not isinstance(self.readout, tuple) or not set(self.readout) <= set(into):
            raise ValueError(
                f"readout is {self.readout!r}; expected a tuple of names of sets of edges that end "
                f"in the target, {self.target!r}: some of {', '.join(map(repr, into)) or 'none'}"
            )
        object.__setattr__(self, "node_sets", MappingProxyType(nodes))
        object.__setattr__(self, "edge_sets", MappingProxyType(edges))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"node_sets": {**self.node_sets}, "edge_sets": {**self.edge_sets}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        # Unpickling and copying skip the constructor and yield writable arrays.
        TypedGraph.__init__(self, **state)

    @classmethod
    def of(cls, graph: Graph) -> TypedGraph:
        """The graph of the nodes and edges of another one, in sets "node" and "edge".

        Args:
          graph: a graph.

        Returns:
          The graph, for layers such as R-GCN that read the types of its edges.
        """
        data = {name: getattr(graph, name) for name in ("senders", "receivers", *_DATA)}
        nothing = dict.fromkeys(("edges", "edge_weight", "edge_type")) | {"edge_data": {}}
        nodes = graph.replace(senders=[], receivers=[], **nothing)
        return cls({"node": nodes}, {("node", "edge", "node"): data}, graph.name)

    @property
    def num_nodes(self) -> int:
        """Nodes of all sets."""
        return sum(nodes.num_nodes for nodes in self.node_sets.values())

    @property
    def num_edges(self) -> int:
        """Edges of all sets."""
        return sum(edges.num_edges for edges in self.edge_sets.values())

    def as_one(self) -> Graph:
        """The nodes and edges of all sets in one graph, without data.

        Returns:
          The graph; the nodes of a set have consecutive ids, in the order of the sets.
        """
        counts = [nodes.num_nodes for nodes in self.node_sets.values()]
        first = dict(zip(self.node_sets, np.cumsum([0, *counts[:-1]]), strict=True))
        nothing = np.zeros(0, np.int64)
        sets = self.edge_sets.items()
        senders = [edges.senders + first[sender] for (sender, _, _), edges in sets]
        receivers = [edges.receivers + first[receiver] for (_, _, receiver), edges in sets]
        ends = (np.concatenate([nothing, *each]) for each in (senders, receivers))
        return Graph.from_edges(*ends, num_nodes=self.num_nodes, name=self.name)

    def relation_names(self) -> dict[str, Ends]:
        """The sets of edges by the names of their relations on a shard.

        Returns:
          The ends by the name of the set where no other has that name, else by all three names,
          joined by spaces.
        """
        names = [name for _, name, _ in self.edge_sets]
        return {
            ends[1] if names.count(ends[1]) == 1 else " ".join(ends): ends
            for ends in self.edge_sets
        }

    def __repr__(self) -> str:
        nodes = ", ".join(f"{name}: {x.num_nodes}" for name, x in self.node_sets.items())
        edges = ", ".join(f"{' '.join(e)}: {x.num_edges}" for e, x in self.edge_sets.items())
        return f"TypedGraph(name={self.name!r}, node_sets=[{nodes}], edge_sets=[{edges}])"


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name or "/" in name:
        raise ValueError(
            f"got {name!r} for the name of a set; expected text that is not empty and has no '/'"
        )
    return name


def _checked_ends(ends: Any, nodes: Mapping[str, Graph]) -> Ends:
    if not isinstance(ends, tuple) or len(ends) != 3:
        raise ValueError(
            f"edge set {ends!r}: expected (set of the senders, name, set of the receivers), such "
            "as ('author', 'writes', 'paper')"
        )
    sender, name, receiver = map(_checked_name, ends)
    for end in (sender, receiver):
        if end not in nodes:
            raise ValueError(
                f"edge set {ends!r}: there is no set of nodes {end!r}; expected one of "
                f"{', '.join(map(repr, nodes))}"
            )
    return sender, name, receiver


def _node_set(name: str, given: Any) -> Graph:
    if isinstance(given, Graph):
        if given.num_edges:
            raise ValueError(
                f"node set {name!r}: got a Graph with {given.num_edges} edges; edges are given in "
                "edge_sets. Pass graph.replace(senders=[], receivers=[]) or a dict of its arrays"
            )
        return given
    if not isinstance(given, Mapping):
        raise ValueError(
            f"node set {name!r}: got {kind_of(given)}; expected a dict of arrays as Graph takes "
            "them, such as {'nodes': x, 'labels': y}, or {'num_nodes': n}"
        )
    known = {*NAMES_OF_GRAPH, *(field.name for field in dataclasses.fields(Graph))}
    others = {x: y for x, y in given.items() if x not in known and isinstance(y, np.ndarray | list)}
    if others:
        first = next(iter(others))
        raise ValueError(
            f"node set {name!r}: {first!r} is no argument; labels are classes, and other arrays of "
            f"its rows are given as node_data={{{first!r}: ...}}"
        )
    try:
        return Graph.from_edges([], [], **{"name": name, **given})
    except (ValueError, TypeError) as error:
        raise ValueError(f"node set {name!r}: {error}") from error


def _edge_set(ends: Ends, given: Any, nodes: Mapping[str, Graph]) -> EdgeSet:
    if isinstance(given, EdgeSet):
        given = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    known = [field.name for field in dataclasses.fields(EdgeSet)]
    if not isinstance(given, Mapping) or not {"senders", "receivers"} <= set(given) <= set(known):
        what = sorted(given) if isinstance(given, Mapping) else kind_of(given)
        raise ValueError(
            f"edge set {ends!r}: got {what}; expected a dict with senders and receivers, and of "
            f"{', '.join(known[2:])} those that there are"
        )
    try:
        return _checked_edges(given, nodes[ends[0]].num_nodes, nodes[ends[2]].num_nodes)
    except ValueError as error:
        raise ValueError(f"edge set {ends!r}: {error}") from error


def _checked_edges(given: Mapping[str, Any], num_senders: int, num_receivers: int) -> EdgeSet:
    senders = checked_ids("senders", given["senders"], num_senders)
    receivers = checked_ids("receivers", given["receivers"], num_receivers)
    if senders.shape != receivers.shape:
        raise ValueError(
            f"senders has {senders.size} entries and receivers {receivers.size}; expected one of "
            "each per edge"
        )
    count = len(senders)
    return EdgeSet(
        senders,
        receivers,
        checked_floats("edges", given.get("edges"), (count, None)),
        checked_floats("edge_weight", given.get("edge_weight"), (count,)),
        checked_categories("edge_type", given.get("edge_type"), count, "edge"),
        checked_named("edge_data", given.get("edge_data") or {}, count, _DATA),
    )
