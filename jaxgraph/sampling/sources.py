"""A graph as a loader reads it: of one set or of several, in memory or in parts on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.graph_arrays import checked_choice, checked_floats
from jaxgraph.kinds import kind_of
from jaxgraph.layout.part_graph import graph_of_parts
from jaxgraph.layout.schema import EDGE_DATA, REPETITION
from jaxgraph.layout.typed_manifest import TypedManifest
from jaxgraph.links import HEAD
from jaxgraph.parallel import ShardedGraph
from jaxgraph.parallel.feature_protocol import plain_of
from jaxgraph.parallel.shard import EDGES, NODES
from jaxgraph.sampling.neighbors import Neighbors, neighbors_of
from jaxgraph.typed_graph import EdgeSet, TypedGraph

_SPARSE = (
    "the features are sparse, and a batch takes dense rows of some nodes; make them dense, "
    "graph.replace(nodes=graph.nodes.toarray()), and shard that graph"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """The sets of nodes and edges of a graph, by their names on a shard.

    Attributes:
      sets: nodes, of which the number and the masks are read.
      ends: of each set of edges its name, the set that they leave and the set that they enter.
      edges: the sets of edges, in the same order.
      target: number of the set that seeds are of.
      is_typed: whether there may be several sets.
      readout: names of the sets of edges that are read after the last layer.
    """

    sets: Mapping[str, Graph]
    ends: tuple[tuple[str, str, str], ...]
    edges: tuple[Graph | EdgeSet, ...]
    target: int
    is_typed: bool
    readout: tuple[str, ...] = ()

    def fanouts(self, given: Any) -> tuple[tuple[int, ...], ...]:
        """The most neighbours in each layer, for each set of edges; 0: it is left out."""
        layers = list(given) if isinstance(given, Sequence | np.ndarray) else []
        names = [name for name, *_ in self.ends if name not in self.readout]
        found = []
        for each in layers:
            by_name = each if isinstance(each, Mapping) else dict.fromkeys(names, each)
            unknown = [name for name in by_name if name not in names]
            if unknown:
                known = ", ".join(map(repr, names))
                raise ValueError(
                    f"fanouts names the relation {unknown[0]!r}; expected some of {known}"
                )
            found.append(tuple(by_name.get(name, 0) for name, *_ in self.ends))
        flat = [x for layer in found for x in layer]
        is_count = [isinstance(x, int | np.integer) and not isinstance(x, bool) for x in flat]
        least = 0 if self.is_typed else 1
        if (
            not (flat or (self.readout and isinstance(given, Sequence)))
            or not all(is_count)
            or any(x < least and x != -1 for x in flat)
        ):
            raise ValueError(
                f"fanouts is {given!r}; expected the most neighbours of each layer, the first "
                "layer first, such as [15, 10, 5], where -1 stands for all"
            )
        if self.readout:
            found.append(tuple(-(name in self.readout) for name, *_ in self.ends))
        return tuple(tuple(map(int, layer)) for layer in found)

    def seeds(self, nodes: Any) -> np.ndarray:
        """The seeds of an epoch; None: the training nodes."""
        of_target = list(self.sets.values())[self.target]
        if nodes is None:
            if of_target.train_mask is None or not of_target.train_mask.any():
                if HEAD in self.readout:
                    raise ValueError(
                        "no links of the graph are training links to begin from; give the loader "
                        "links=jaxgraph.sampling.Links(), whose seeds are its edges"
                    )
                raise ValueError(
                    "the graph has no training nodes to begin from; give Graph train_mask=..., "
                    "draw one with jaxgraph.transforms.random_split, or give the loader nodes=..."
                )
            return np.flatnonzero(of_target.train_mask)
        return np.sort(checked_choice("nodes", nodes, of_target.num_nodes))

    def neighbors(self, weights: Any) -> tuple[Neighbors, ...]:
        """The edges by receiver, with the weights by which they are drawn."""
        names = [name for name, *_ in self.ends]
        by_name = weights if self.is_typed and weights is not None else {names[0]: weights}
        if not isinstance(by_name, Mapping) or not by_name.keys() <= set(names):
            raise ValueError(
                f"weights is {kind_of(weights)}; of a TypedGraph expected a dict of arrays by the "
                f"names of relations, which are {', '.join(map(repr, names))}"
            )
        found = []
        for (name, _, receiver), edges in zip(self.ends, self.edges, strict=True):
            given = by_name.get(name)
            if given is not None:
                given = _checked_weights(given, len(edges.senders))
            count = self.sets[receiver].num_nodes
            found.append(neighbors_of(count, edges.senders, edges.receivers, given))
        return tuple(found)

    def edge_data(self, neighbors: Sequence[Neighbors]) -> tuple[dict[str, np.ndarray], ...]:
        """The data of the edges of each set, by name."""
        found = []
        for edges, ordered in zip(self.edges, neighbors, strict=True):
            given = {name: getattr(edges, name) for name in EDGE_DATA}
            data = {name: x for name, x in given.items() if x is not None}
            repetition = ordered.repetition()
            if repetition is not None:
                data[REPETITION] = repetition
            data |= edges.edge_data
            if data and len(edges.senders) >= 2**31:
                raise ValueError(
                    f"the graph has {len(edges.senders):,} edges with data ({', '.join(data)}), "
                    "and batches number fewer than 2**31; leave the data out"
                )
            found.append(data)
        return tuple(found)

    def is_apart(self) -> bool:
        """True where each row of the target reads nodes and edges of its own, as graphs do."""
        by_name = dict(zip((name for name, *_ in self.ends), self.edges, strict=True))
        members = [by_name.pop(name) for name in self.readout]
        if len(members) != 1 or np.bincount(members[0].senders).max(initial=0) > 1:
            return False
        nodes = next(sender for name, sender, _ in self.ends if name in self.readout)
        row = np.full(self.sets[nodes].num_nodes, -1)
        row[members[0].senders] = members[0].receivers
        inside = [ends[1:] == (nodes, nodes) for ends in self.ends if ends[0] in by_name]
        return all(inside) and all(
            np.array_equal(row[x.senders], row[x.receivers]) for x in by_name.values()
        )

    def reads(self) -> dict[str, np.ndarray]:
        """int [nodes] of each set, the edges that leave a node."""
        found = {name: np.zeros(nodes.num_nodes, np.int64) for name, nodes in self.sets.items()}
        for (_, sender, _), edges in zip(self.ends, self.edges, strict=True):
            found[sender] += np.bincount(edges.senders, minlength=len(found[sender]))
        return found

    def checked(self, sharded: Any, *, fetches: bool) -> ShardedGraph:
        """Checks that a sharded graph is this one, and that batches can be read from it.

        With `fetches`, batches take rows of the features of all sets, without it of the target.
        """
        if not isinstance(sharded, ShardedGraph):
            raise ValueError(
                f"sharded is {kind_of(sharded)}; expected the result of jaxgraph.parallel.shard("
                "graph, partition, mesh)"
            )
        manifest: Any = sharded.shards.manifest
        wrong = {
            "is in mode 'stream', and devices fetch rows from each other": sharded.is_streamed,
            "has message_flow, which is for the whole graph": manifest.flow is not None,
        }
        for what, is_wrong in wrong.items():
            if is_wrong:
                raise ValueError(
                    f"sharded {what}; shard the graph in mode 'sar', 'domain' or 'p3', without "
                    "message_flow"
                )
        shards, target = sharded.shards, list(self.sets)[self.target]
        for name, table in shards.tables.items():
            is_read = table.nodes is not None and (fetches or name == target)
            if is_read and plain_of(table.nodes).is_sparse:
                raise ValueError(_SPARSE)
        known = {*self.sets, *(name for name, *_ in self.ends)} <= {
            *shards.tables,
            *shards.edge_arrays,
        }
        if not known or any(
            sharded.nodes_of(name) != nodes.num_nodes for name, nodes in self.sets.items()
        ):
            raise ValueError(
                f"sharded is {sharded!r}, and not the graph that is given, of "
                f"{sum(x.num_nodes for x in self.sets.values())} nodes; shard that one"
            )
        return sharded


def source_of(graph: Any) -> Source:
    """The sets of a graph or of parts, checked."""
    if isinstance(graph, TypedGraph):
        names, target = list(graph.node_sets), graph.target
        if target is None:
            raise ValueError(
                "the graph has no target, the set that seeds are of; give TypedGraph target=..."
            )
        relations = graph.relation_names()
        ends = tuple((name, sender, receiver) for name, (sender, _, receiver) in relations.items())
        edges = tuple(graph.edge_sets[each] for each in relations.values())
        readout = tuple(each for each, (_, name, _) in relations.items() if name in graph.readout)
        return Source(graph.node_sets, ends, edges, names.index(target), True, readout)
    if not isinstance(graph, Graph):
        if not hasattr(graph, "part") or isinstance(graph.manifest, TypedManifest):
            raise ValueError(
                f"graph is {kind_of(graph)}; expected a jaxgraph.Graph or TypedGraph, or parts of "
                "a graph of one set, such as jaxgraph.parallel.open_parts returns"
            )
        graph = graph_of_parts(graph)
    _check_features(graph)
    return Source({NODES: graph}, ((EDGES, NODES, NODES),), (graph,), 0, False)


def _check_features(graph: Graph) -> None:
    if graph.nodes is not None and not isinstance(graph.nodes, np.ndarray):
        raise ValueError(_SPARSE)


def _checked_weights(weights: Any, num_edges: int) -> np.ndarray:
    found = checked_floats("weights", weights, (num_edges,))
    assert found is not None
    if (found < 0).any():
        raise ValueError(
            f"weights: {int((found < 0).sum())} of {num_edges} are negative; expected 0 or more"
        )
    return found
