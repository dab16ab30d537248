"""Facts of a graph: the few numbers that building and training a model need, without its arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.typed_graph import TypedGraph


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """The facts of a graph that a model and its training need.

    Attributes:
      name: the graph's name for reports.
      num_nodes, num_edges: of the whole graph.
      num_features: columns of node features; 0 without features.
      num_classes: classes of the labels, or labels if `multilabel`; 0 without labels.
      multilabel: whether a node has several labels.
      edge_features: columns of edge features; 0 without them.
      mean_log_degree: mean of log(d + 1) over the in-degrees d; 0 without edges.
      splits: number of nodes of each mask that the graph has, by "train", "val" and "test".
      train_class_counts: training nodes of each class; None with several labels or no training
        nodes.
      dataset: the name that the graph was loaded by; None: not known.
      normalized: whether each node's features were divided by their sum.
      split: the origin of training, validation and test nodes, for reports; None: not known.
      num_edge_types: the largest edge type plus one; 0 without types, or where it is not known.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    multilabel: bool
    edge_features: int
    mean_log_degree: float
    splits: Mapping[str, int]
    train_class_counts: tuple[int, ...] | None
    dataset: str | None = None
    normalized: bool = False
    split: str | None = None
    num_edge_types: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class EdgeFacts:
    """The facts of a set of edges that a model needs.

    Attributes:
      senders, name, receivers: the set that the edges leave, their name, the set that they enter.
      num_edges: their number.
      edge_features: columns of edge features; 0 without them.
      num_edge_types: the largest edge type plus one; 0 without types.
      mean_log_degree: mean of log(d + 1) over the in-degrees d of the receivers.
    """

    senders: str
    name: str
    receivers: str
    num_edges: int
    edge_features: int
    num_edge_types: int
    mean_log_degree: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypedFacts:
    """The facts of a graph of several sets that a model and its training need.

    Attributes:
      name: the graph's name for reports.
      node_sets: the facts of each set of nodes, by name.
      edge_sets: the facts of each set of edges, by the name of its relation.
    """

    name: str
    node_sets: Mapping[str, GraphFacts]
    edge_sets: Mapping[str, EdgeFacts]

    @property
    def num_nodes(self) -> int:
        """Nodes of all sets."""
        return sum(facts.num_nodes for facts in self.node_sets.values())

    @property
    def num_edges(self) -> int:
        """Edges of all sets."""
        return sum(facts.num_edges for facts in self.edge_sets.values())

    def of_one(self) -> GraphFacts:
        """The facts of a graph of one set of nodes and one of edges, as of a `Graph`."""
        if len(self.node_sets) != 1 or len(self.edge_sets) != 1:
            raise ValueError(
                f"{self.name} has the sets of nodes {', '.join(self.node_sets)} and of edges "
                f"{', '.join(self.edge_sets)}; expected one of each. jaxgraph.train.fit trains a "
                "model of your own on several"
            )
        (nodes,), (edges,) = self.node_sets.values(), self.edge_sets.values()
        return dataclasses.replace(
            nodes,
            name=self.name,
            num_edges=edges.num_edges,
            edge_features=edges.edge_features,
            mean_log_degree=edges.mean_log_degree,
            num_edge_types=edges.num_edge_types,
        )


def facts_of_typed(graph: TypedGraph, *, dataset: str | None = None) -> TypedFacts:
    """Counts the facts of a graph of several sets."""
    found = {}
    for relation, ends in graph.relation_names().items():
        sender, name, receiver = ends
        edges = graph.edge_sets[ends]
        degrees = np.bincount(edges.receivers, minlength=graph.node_sets[receiver].num_nodes)
        found[relation] = EdgeFacts(
            senders=sender,
            name=name,
            receivers=receiver,
            num_edges=edges.num_edges,
            edge_features=0 if edges.edges is None else int(edges.edges.shape[1]),
            num_edge_types=edges.num_edge_types,
            mean_log_degree=float(np.log1p(degrees.astype(np.float64)).mean()),
        )
    nodes = {name: facts_of(x, dataset=dataset) for name, x in graph.node_sets.items()}
    return TypedFacts(name=graph.name, node_sets=nodes, edge_sets=found)


def facts_of(
    graph: Graph,
    *,
    dataset: str | None = None,
    normalized: bool = False,
    split: str | None = None,
) -> GraphFacts:
    """Counts the facts of a graph that a model and its training need."""
    masks = {name: getattr(graph, f"{name}_mask") for name in ("train", "val", "test")}
    return GraphFacts(
        name=graph.name,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        multilabel=graph.is_multilabel,
        edge_features=0 if graph.edges is None else int(graph.edges.shape[1]),
        mean_log_degree=mean_log_degree(graph),
        splits={name: int(mask.sum()) for name, mask in masks.items() if mask is not None},
        train_class_counts=_train_class_counts(graph),
        dataset=dataset,
        normalized=normalized,
        split=split,
        num_edge_types=0 if graph.edge_type is None else int(graph.edge_type.max(initial=-1)) + 1,
    )


def mean_log_degree(graph: Graph) -> float:
    """Computes the mean of log(d + 1) over all nodes, d being the in-degree; 0 without edges."""
    return float(np.log1p(graph.in_degrees().astype(np.float64)).mean())


def _train_class_counts(graph: Graph) -> tuple[int, ...] | None:
    if graph.labels is None or graph.is_multilabel or graph.train_mask is None:
        return None
    classes = graph.labels[graph.train_mask & (graph.labels >= 0)]
    return tuple(np.bincount(classes, minlength=graph.num_classes).tolist())
