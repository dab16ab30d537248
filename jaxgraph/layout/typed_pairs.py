"""The pairs (edge type, receiver) of a set of edges, as a table of nodes of its own.

A layer with a matrix for each edge type sums the senders' rows of each pair, multiplies the sums by
the matrices of their types, and sums over the pairs of each receiver. So pairs are receivers of
one set of edges, and senders of another. They are ordered by type, in blocks of rows of one type,
and blocks are filled with pairs that have no edges.

The backward does the same with the edges turned round, from the gradients of the receivers to pairs
(edge type, sender): it reads the layer's input, and no sum of the forward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.layout.typed_manifest import Paired
from jaxgraph.partition.assignment import Partition
from jaxgraph.typed_graph import EdgeSet, Ends, TypedGraph

_BLOCKS = (1024, 512, 256, 128, 64, 32, 16)
"""Rows of a block, the largest first: a block reads one matrix."""
_MOST_FILL = 0.25
"""The largest share of rows that only fill blocks, but for the smallest block."""
TYPES = "type_of_pair"
"""The array of the table that has the type of each pair."""
EDGES_OF_PAIR = "edges_of_pair"
"""The data of edges that are turned round: the edges of the pair that each had before."""


@dataclasses.dataclass(frozen=True, eq=False)
class WithPairs:
    """A graph with the pairs of its typed edges.

    Attributes:
      graph, partitions: with a set of nodes and two sets of edges for each set of typed edges.
      paired: their names, by the relation that has the types.
      on_boundary: bool [pairs] by table, pairs to be ordered as if they had edges to other parts.
    """

    graph: TypedGraph
    partitions: Mapping[str, Partition]
    paired: Mapping[str, Paired]
    on_boundary: Mapping[str, np.ndarray]


def with_pairs(graph: TypedGraph, partitions: Mapping[str, Partition]) -> WithPairs:
    """Adds the pairs of every set of edges that has types, and those of its edges turned round."""
    found = WithPairs(graph, partitions, {}, {})
    for relation, ends in graph.relation_names().items():
        edges = graph.edge_sets[ends]
        if edges.edge_type is None:
            continue
        found, paired, count = _add(found, relation, ends, edges)
        turned = EdgeSet(
            edges.receivers,
            edges.senders,
            edge_weight=edges.edge_weight,
            edge_type=edges.edge_type,
            edge_data={EDGES_OF_PAIR: count},
        )
        sender, name, receiver = ends
        found, back, _ = _add(found, f"{relation} back", (receiver, name, sender), turned)
        paired = dataclasses.replace(paired, back=back)
        found = dataclasses.replace(found, paired={**found.paired, relation: paired})
    return found


def _add(
    found: WithPairs, relation: str, ends: Ends, edges: EdgeSet
) -> tuple[WithPairs, Paired, np.ndarray]:
    """Adds the pairs of typed edges; also counts, for each edge, the edges of its pair."""
    graph, parts, (sender, _, receiver) = found.graph, found.partitions, ends
    names = Paired(f"{relation} pairs", f"{relation} by type", f"{relation} of types")
    own = {names.table, names.into, names.out_of}
    taken = own & {*graph.node_sets, *(name for _, name, _ in graph.edge_sets)}
    if taken:
        raise ValueError(
            f"the set {taken.pop()!r} has the name of the pairs that {relation!r} needs for its "
            "edge types; give it another name"
        )
    cut = parts[sender].assignment[edges.senders] != parts[receiver].assignment[edges.receivers]
    made = _pairs(edges, parts[receiver], cut)
    nodes = Graph.from_edges([], [], num_nodes=len(made.types), node_data={TYPES: made.types})
    filled = made.receivers >= 0
    into = EdgeSet(
        edges.senders, made.of_edges, edge_weight=edges.edge_weight, edge_data=edges.edge_data
    )
    out_of = EdgeSet(np.flatnonzero(filled), made.receivers[filled])
    added = {(sender, names.into, names.table): into, (names.table, names.out_of, receiver): out_of}
    found = WithPairs(
        TypedGraph(
            {**graph.node_sets, names.table: nodes},
            {**graph.edge_sets, **added},
            graph.name,
            graph.target,
        ),
        {**parts, names.table: Partition(made.part, parts[receiver].num_parts)},
        found.paired,
        {**found.on_boundary, names.table: made.on_boundary},
    )
    names = dataclasses.replace(names, block=made.block, num_types=edges.num_edge_types)
    return found, names, np.bincount(made.of_edges)[made.of_edges].astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class _Pairs:
    """Pairs in the order of their rows.

    Attributes:
      of_edges: int64 [edges], the pair of each edge.
      receivers: int64 [pairs], the receiver; -1: the pair fills a block.
      types, part, on_boundary: [pairs], of each.
      block: rows of a block.
    """

    of_edges: np.ndarray
    receivers: np.ndarray
    types: np.ndarray
    part: np.ndarray
    on_boundary: np.ndarray
    block: int


def _pairs(edges: EdgeSet, partition: Partition, cut: np.ndarray) -> _Pairs:
    if not edges.num_edges:  # A table has a row at least.
        row = np.zeros(1, np.int32)
        return _Pairs(row[:0], row - 1, row, row, row > 0, _BLOCKS[-1])
    types, receivers = np.asarray(edges.edge_type, np.int64), edges.receivers.astype(np.int64)
    count = partition.num_nodes
    keys, of_edges = np.unique(types * count + receivers, return_inverse=True)
    is_cut = np.bincount(of_edges, cut, len(keys)) > 0
    types, receivers = keys // count, keys % count
    part = partition.assignment[receivers]
    order = np.lexsort((receivers, types, ~is_cut, part))
    # A run has the pairs of one part, with edges to others or not, and of one type.
    changes = [np.diff(values[order]) != 0 for values in (part, is_cut.astype(int), types)]
    starts = np.concatenate([[0], np.flatnonzero(np.any(changes, axis=0)) + 1])
    lengths = np.diff(starts, append=len(order))
    block = next((b for b in _BLOCKS if _fill(lengths, b) <= _MOST_FILL * len(order)), _BLOCKS[-1])
    padded = -(-lengths // block) * block
    first = np.cumsum(padded) - padded
    rows = np.repeat(first - starts, lengths) + np.arange(len(order))
    of_run = order[starts]
    found = np.full(int(padded.sum()), -1, np.int64)
    found[rows] = receivers[order]
    place = np.empty(len(order), np.int64)
    place[order] = rows
    return _Pairs(
        place[of_edges.reshape(-1)],
        found,
        np.repeat(types[of_run], padded).astype(np.int32),
        np.repeat(part[of_run], padded),
        np.repeat(is_cut[of_run], padded),
        block,
    )


def _fill(lengths: np.ndarray, block: int) -> int:
    return int((-lengths % block).sum())
