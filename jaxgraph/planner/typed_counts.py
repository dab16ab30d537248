"""A graph of several sets that is not there, by how large its sets are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgraph.kinds import check_positive
from jaxgraph.typed_graph import TypedGraph

METHODS = ("hash",)
"""Partitioners: edges between nodes that are drawn uniformly have no cut that is better."""
_OF_NODES = ("num_nodes", "num_features", "num_classes")
_OF_EDGES = ("num_edges", "num_edge_types", "num_edge_features")


@dataclasses.dataclass(frozen=True)
class TypedCounts:
    """A schema: the sets of a `jaxgraph.TypedGraph`, their sizes, widths and edge types.

    Attributes:
      node_sets: for each set of nodes by name `num_nodes`, and where there are some
        `num_features` and `num_classes`.
      edge_sets: for each (set of the senders, name, set of the receivers) `num_edges`, and where
        there are some `num_edge_types` and `num_edge_features`.
      target: as of a `TypedGraph`.

    Raises:
      ValueError: a count has another name, is missing, or no positive whole number.
    """

    node_sets: Mapping[str, Mapping[str, int]]
    edge_sets: Mapping[tuple[str, str, str], Mapping[str, int]]
    target: str | None = None

    def __post_init__(self) -> None:
        for sets, names in ((self.node_sets, _OF_NODES), (self.edge_sets, _OF_EDGES)):
            for name, counts in sets.items():
                if names[0] not in counts or not set(counts) <= set(names):
                    raise ValueError(
                        f"set {name!r}: got {', '.join(counts) or 'nothing'}; expected {names[0]}, "
                        f"and of {' and '.join(names[1:])} those that there are"
                    )
                for count, value in counts.items():
                    check_positive(f"{count} of {name!r}", value)

    @property
    def num_nodes(self) -> int:
        """Nodes of all sets."""
        return sum(counts["num_nodes"] for counts in self.node_sets.values())

    def drawn(self, seed: int = 0) -> TypedGraph:
        """Draws a graph of these sizes, with edges between uniform nodes and features of 0.

        Args:
          seed: of the ends and the types of the edges.

        Returns:
          The graph, for the shapes of its parts; all nodes of a set with classes are for training.
        """
        generator = np.random.default_rng(seed)
        nodes: dict[str, Any] = {}
        for name, counts in self.node_sets.items():
            size = counts["num_nodes"]
            nodes[name] = {"num_nodes": size}
            if "num_features" in counts:
                nodes[name]["nodes"] = np.zeros((size, counts["num_features"]), np.float32)
            if "num_classes" in counts:
                labels = np.arange(size) % counts["num_classes"]
                nodes[name] |= {"labels": labels, "train_mask": np.ones(size, bool)}
        edges: dict[Any, Any] = {}
        for ends, counts in self.edge_sets.items():
            size = counts["num_edges"]
            sides = {"senders": ends[0], "receivers": ends[2]}
            edges[ends] = {
                side: generator.integers(0, self.node_sets[name]["num_nodes"], size)
                for side, name in sides.items()
            }
            if "num_edge_types" in counts:
                edges[ends]["edge_type"] = np.arange(size) % counts["num_edge_types"]
            if "num_edge_features" in counts:
                width = counts["num_edge_features"]
                edges[ends]["edges"] = np.zeros((size, width), np.float32)
        return TypedGraph(nodes, edges, target=self.target)
